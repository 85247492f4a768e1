//! Buffers, memory and posted work.

use portolan::provider::verbs::WcStatus;
use portolan::{Access, Cause, Failed, RemoteMemory, Step};

use super::{failed_so, says};
use crate::harness::*;

#[test]
fn buffers_of_zero_and_of_absurd_length_are_refused() {
    let (active, _passive) = pair();
    for length in [0, usize::MAX] {
        for error in [
            active.buffer(length).unwrap_err(),
            active.share(length, Access::REMOTE_READ).unwrap_err(),
        ] {
            assert!(
                matches!(error.cause, Cause::InvalidArgument { .. }),
                "{error}"
            );
            says(
                &error,
                Step::RegisterMemory,
                &["length", &length.to_string()],
            );
        }
    }
    let buffer = active.buffer(8).unwrap();
    let failed = active.send_prefix(buffer, 9).unwrap_err();
    says(
        &failed.error,
        Step::PostSend,
        &["length of the prefix: expected at most 8, found 9", "sw_lo"],
    );
    assert_eq!(failed.buffer.unwrap().len(), 8);
}

/// A way to spoil an offer of memory.
type Spoil = fn(RemoteMemory) -> RemoteMemory;

fn without_rights(remote: RemoteMemory) -> RemoteMemory {
    RemoteMemory::new(remote.addr, remote.length, remote.rkey)
}

/// Each case breaks its connection, so each case has its own connection.
#[test]
fn wrong_keys_ranges_and_rights_are_refused_by_the_peer_without_effect() {
    let every = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let cases: [(&str, Access, bool, Spoil); 7] = [
        ("a wrong key", every, true, |mut remote| {
            remote.rkey ^= 1;
            remote
        }),
        ("a read with a wrong key", every, false, |mut remote| {
            remote.rkey ^= 1;
            remote
        }),
        ("past the end", every, true, |mut remote| {
            remote.addr += 1;
            remote
        }),
        ("a read before the start", every, false, |mut remote| {
            remote.addr -= 1;
            remote
        }),
        (
            "around the end of all addresses",
            every,
            true,
            |mut remote| {
                remote.addr = u64::MAX - 7;
                remote
            },
        ),
        // A description without access rights, as in other protocols.
        (
            "no right to write",
            Access::REMOTE_READ,
            true,
            without_rights,
        ),
        (
            "no right to read",
            Access::REMOTE_WRITE,
            false,
            without_rights,
        ),
    ];
    for (what, access, is_write, spoil) in cases {
        let (active, passive) = pair();
        let memory = passive.share(4096, access).unwrap();
        memory.store(0, &pattern(4096, 9));
        let remote = spoil(memory.remote());
        let buffer = active.buffer(4096).unwrap();
        let posted = match is_write {
            true => active.write(buffer, remote),
            false => active.read(buffer, remote),
        };
        let failed = posted.unwrap().wait().unwrap_err();
        failed_so(&failed, WcStatus::RemAccessErr);
        let peer = active.peer_addr().unwrap().to_string();
        says(
            &failed.error,
            Step::Transfer,
            &["remote access error", &peer, "sw_lo"],
        );
        let refused = passive.receive_within(PATIENCE).unwrap_err();
        let Cause::PeerRequestRefused(refusal) = refused.cause else {
            panic!("{what}: {refused}");
        };
        assert_eq!(refusal.status, WcStatus::RemAccessErr, "{what}");
        let named = refusal.memory.unwrap();
        assert_eq!((named.addr, named.rkey), (remote.addr, remote.rkey));
        assert_eq!(named.length, 4096);
        let (at, key) = (format!("{:#x}", remote.addr), format!("{:#x}", remote.rkey));
        says(&refused, Step::Receive, &["4096 bytes", &at, &key]);
        let ended = passive.ended().unwrap();
        assert_eq!(ended.cause, refused.cause, "{what}");
        assert!(ended.is_disconnected() && !ended.is_timeout());
        let mut found = vec![0; 4096];
        memory.load(0, &mut found);
        assert_same(&found, &pattern(4096, 9));
        let again = active.send(active.buffer(1).unwrap());
        let error = again.map(|transfer| transfer.wait().unwrap_err());
        let error = error.unwrap_or_else(|failed| failed).error;
        assert!(
            matches!(error.cause, Cause::WorkFailed(_)),
            "{what}: {error}"
        );
    }
}

#[test]
fn a_write_longer_than_the_peers_memory_is_refused_before_it_is_sent_and_the_connection_still_works()
 {
    let (active, passive) = pair();
    let memory = passive.share(64, Access::REMOTE_WRITE).unwrap();
    memory.store(0, &pattern(64, 3));
    let whole = memory.remote();
    let last_eight = whole.slice(56, 8).unwrap();
    let local = active.local_addr().unwrap().to_string();
    let peer = active.peer_addr().unwrap().to_string();
    for (to, length) in [(whole, 65), (whole, 4096), (last_eight, 9)] {
        for immediate in [None, Some(7)] {
            let buffer = active.buffer(length).unwrap();
            let posted = match immediate {
                None => active.write(buffer, to),
                Some(immediate) => active.write_with_immediate(buffer, to, immediate),
            };
            let failed = posted.unwrap_err();
            let cause = Cause::BeyondRemoteMemory {
                addr: to.addr,
                available: to.length,
                length: length as u64,
            };
            assert_eq!(failed.error.cause, cause);
            assert_eq!(failed.error.errno(), 22, "EINVAL");
            let (length, available) = (format!("{length} bytes"), format!("{} bytes", to.length));
            let at = format!("{:#x}", to.addr);
            let parts = [&length[..], &available, &at, &local, &peer, "sw_lo"];
            says(&failed.error, Step::PostSend, &parts);
            let back = failed.buffer.unwrap();
            assert_eq!(
                format!("{} bytes", back.len()),
                length,
                "the buffer comes back"
            );
        }
    }
    let mut found = vec![0; 64];
    memory.load(0, &mut found);
    assert_same(&found, &pattern(64, 3));

    // Data that fit are written, and messages continue.
    let eight = active.buffer_from(&[9; 8]).unwrap();
    active.write(eight, last_eight).unwrap().wait().unwrap();
    memory.load(0, &mut found);
    assert_same(&found[..56], &pattern(64, 3)[..56]);
    assert_same(&found[56..], &[9; 8]);
    let message = active.buffer_from(b"still here").unwrap();
    active.send(message).unwrap().wait().unwrap();
    assert_eq!(&*passive.receive_within(PATIENCE).unwrap(), b"still here");
}

#[test]
fn a_destination_without_a_port_is_refused_as_such() {
    for destination in ["127.0.0.1", "127.0.0.1:0"] {
        let error = connector().connect(destination).unwrap_err();
        says(
            &error,
            Step::Connect,
            &[
                "port of the destination: expected 1 to 65535, as in host:port, found 0",
                "127.0.0.1:0",
            ],
        );
    }
}

#[test]
fn a_request_beyond_an_offer_is_refused_before_it_is_sent_and_the_connection_still_works() {
    let (active, passive) = pair_with(&options().inline(8), &options());
    let offer = |access| passive.share(64, access).unwrap();
    let readable = offer(Access::REMOTE_READ);
    let writable = offer(Access::REMOTE_WRITE);
    // The description as the peer receives it.
    let told = |memory: &portolan::SharedMemory| {
        RemoteMemory::from_bytes(&memory.remote().to_bytes()).unwrap()
    };
    let eight = |memory: &portolan::SharedMemory| told(memory).slice(8, 8).unwrap();
    let buffer = || active.buffer(8).unwrap();
    let cases = [
        (active.write(buffer(), eight(&readable)), "a write needs"),
        (
            active.write_with_immediate(buffer(), eight(&readable), 1),
            "a write needs",
        ),
        (active.write_inline(&[1], eight(&readable)), "a write needs"),
        (active.read(buffer(), eight(&writable)), "a read needs"),
        (
            active.fetch_add(buffer(), eight(&writable), 1),
            "an atomic needs",
        ),
        (
            active.compare_swap(buffer(), eight(&readable), 0, 1),
            "an atomic needs",
        ),
    ];
    for (posted, what) in cases {
        let failed = posted.unwrap_err();
        let Cause::RemoteRightMissing { addr, length, .. } = failed.error.cause else {
            panic!("{failed}");
        };
        assert_eq!((length, failed.error.errno()), (8, 13));
        let at = format!("{addr:#x}");
        // Inline data has no buffer to return.
        let back = failed.buffer.unwrap().len();
        assert!(back == 8 || back == 0, "{back}");
        says(
            &failed.error,
            Step::PostSend,
            &[what, "8 bytes", &at, "sw_lo"],
        );
    }
    let mut batch = active.batch();
    assert!(batch.write(buffer(), told(&readable)).is_err());
    assert!(batch.read(buffer(), told(&writable)).is_err());
    active
        .write(vec![7; 64], told(&writable))
        .unwrap()
        .wait()
        .unwrap();
    active
        .read(vec![0; 64], told(&readable))
        .unwrap()
        .wait()
        .unwrap();
}

#[test]
fn a_side_that_only_shares_memory_learns_after_the_end_what_the_peer_did_wrong() {
    let (active, passive) = pair();
    assert_eq!(passive.ended(), None);
    let memory = passive.share(64, Access::REMOTE_READ).unwrap();
    let mut beyond = memory.remote();
    beyond.length = 65;
    let transfer = active.read(active.buffer(65).unwrap(), beyond).unwrap();
    failed_so(&transfer.wait().unwrap_err(), WcStatus::RemAccessErr);
    drop(active);
    passive.wait_disconnected(PATIENCE).unwrap();
    let ended = passive.ended().unwrap();
    says(&ended, Step::Transfer, &["refused", "65 bytes"]);
    let posted = passive.send(passive.buffer(1).unwrap());
    let failed = posted.unwrap().wait().unwrap_err();
    assert_eq!(failed.error.cause, ended.cause);
}

#[test]
fn withdrawn_memory_is_inaccessible_to_the_peer() {
    let (active, passive) = pair();
    let memory = passive.share(64, Access::REMOTE_WRITE).unwrap();
    let remote = memory.remote();
    let buffer = passive.revoke(memory).unwrap();
    let failed = active
        .write(active.buffer_from(&[1; 64]).unwrap(), remote)
        .unwrap();
    failed_so(&failed.wait().unwrap_err(), WcStatus::RemAccessErr);
    assert_eq!(&buffer[..], [0; 64]);
}

#[test]
fn a_message_longer_than_a_receive_that_the_program_posted_is_not_compared_with_receive_size() {
    let (active, passive) = pair_with(&options(), &options().receive_depth(1));
    let receive = passive.post_receive(passive.buffer(8).unwrap()).unwrap();
    // This takes the connection's own receive.
    active.send(vec![1]).unwrap().wait().unwrap();
    let transfer = active.send(vec![1; 100]).unwrap();
    failed_so(&transfer.wait().unwrap_err(), WcStatus::RemInvReqErr);
    failed_so(&receive.wait().unwrap_err(), WcStatus::LocLenErr);
    let error = passive.ended().unwrap();
    assert_eq!(error.cause, Cause::WorkFailed(WcStatus::LocLenErr));
    assert_eq!(error.context.receive_size, None, "{error}");
}

#[test]
fn a_message_longer_than_its_receive_fails_on_both_sides() {
    let (active, passive) = pair();
    let transfer = active.send(active.buffer(4097).unwrap()).unwrap();
    failed_so(&transfer.wait().unwrap_err(), WcStatus::RemInvReqErr);
    let error = passive.receive_within(PATIENCE).unwrap_err();
    assert_eq!(error.cause, Cause::WorkFailed(WcStatus::LocLenErr));
    let peer = passive.peer_addr().unwrap().to_string();
    says(
        &error,
        Step::Receive,
        &[
            "a message is longer than its receive buffer",
            &peer,
            "receive_size 4096",
        ],
    );
}

#[test]
fn a_sender_without_rnr_retries_fails_and_gets_its_buffer_back() {
    // A side tells its peer how often to retry.
    let none = options().receive_depth(0).rnr_retry_count(2);
    let (active, _passive) = pair_with(&options(), &none);
    let sent = active.send(active.buffer_from(b"hello").unwrap()).unwrap();
    let failed = match sent.wait() {
        Err(failed) => failed,
        Ok(_) => panic!("no receive was posted"),
    };
    failed_so(&failed, WcStatus::RnrRetryExcErr);
    assert_eq!(&failed.buffer.unwrap()[..], b"hello");
}

#[test]
fn more_posted_work_than_the_depth_is_refused_and_the_buffer_comes_back() {
    let shallow = options().send_depth(2);
    let none = options().receive_depth(0);
    let (active, _passive) = pair_with(&shallow, &none);
    let post = || active.send(active.buffer(1).unwrap());
    let _posted = [post().unwrap(), post().unwrap()];
    let failed = post().unwrap_err();
    assert!(
        matches!(failed.error.cause, Cause::LimitReached { limit: 2, .. }),
        "{failed}"
    );
    says(
        &failed.error,
        Step::PostSend,
        &["the limit of 2 posted sends is reached"],
    );
    assert!(failed.buffer.is_some());
}

#[test]
fn nothing_is_received_sent_or_posted_after_the_end() {
    let (active, passive) = pair();
    drop(passive);
    active.wait_disconnected(PATIENCE).unwrap();
    let error = active.receive().unwrap_err();
    assert_eq!(error.cause, Cause::Disconnected);
    says(&error, Step::Receive, &["the peer closed the connection"]);
    assert_eq!(active.try_receive().unwrap_err().cause, Cause::Disconnected);
    let ended = |posted: Result<portolan::Transfer, Failed>| {
        posted.and_then(portolan::Transfer::wait).unwrap_err()
    };
    for failed in [
        ended(active.send(active.buffer(1).unwrap())),
        ended(active.post_receive(active.buffer(1).unwrap())),
    ] {
        assert_eq!(failed.error.cause, Cause::Disconnected);
        assert!(failed.buffer.is_some());
    }
}

#[test]
fn after_its_own_disconnect_a_side_gets_that_error_and_not_a_flush() {
    let (active, _passive) = pair();
    let receive = active.post_receive(active.buffer(1).unwrap()).unwrap();
    active.disconnect().unwrap();
    assert_eq!(receive.wait().unwrap_err().error.cause, Cause::Closed);
    assert_eq!(active.receive().unwrap_err().cause, Cause::Closed);
    active
        .disconnect()
        .expect("a second disconnect is no error");
}

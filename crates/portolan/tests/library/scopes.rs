//! Which peers can access memory and for how long, and read-only memory.

use std::time::{Duration, Instant};

use portolan::provider::verbs::WcStatus;
use portolan::{Access, Cause, Connection, Domain, Error, Options, RemoteMemory};

use crate::harness::*;

fn in_domain_of_its_own() -> Options {
    options().domain(Some(Domain::new()))
}

fn refused(active: &Connection, memory: RemoteMemory) {
    let failed = active.read(vec![0; 8], memory).unwrap().wait();
    let cause = failed.unwrap_err().error.cause;
    assert_eq!(cause, Cause::WorkFailed(WcStatus::RemAccessErr));
}

#[test]
fn memory_of_a_connections_own_domain_is_reached_by_its_peer_and_by_no_other() {
    let (active, passive) = pair_with(&options(), &in_domain_of_its_own());
    let memory = passive.share(8, Access::REMOTE_READ).unwrap();
    memory.store(0, b"for you!");
    let remote = passive.offer(&memory).unwrap();
    let done = active.read(vec![0; 8], remote).unwrap().wait().unwrap();
    assert_eq!(&done.buffer[..], b"for you!");
    for other in [options(), in_domain_of_its_own()] {
        let (active, _passive) = pair_with(&options(), &other);
        refused(&active, remote);
    }
}

#[test]
fn a_new_domain_has_no_memory_before_a_connection_is_made_with_it() {
    let domain = Domain::new();
    let says = |error: &Error| {
        assert!(matches!(error.cause, Cause::InvalidState { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains("a domain with a device, found a new one"),
            "{error}"
        );
    };
    says(&domain.share(8, Access::REMOTE_READ).unwrap_err());
    let (error, vector) = domain
        .share_memory(vec![1, 2], Access::REMOTE_READ)
        .unwrap_err();
    says(&error);
    assert_eq!(vector, [1, 2]);
    let passive = options().domain(Some(domain.clone()));
    let (active, passive) = pair_with(&options(), &passive);
    let memory = domain.share_memory(vector, Access::REMOTE_READ);
    let memory = memory.map_err(|(error, _)| error).unwrap();
    let remote = passive.offer(&memory).unwrap();
    let done = active.read(vec![0; 2], remote).unwrap().wait().unwrap();
    assert_eq!(done.buffer[..], [1, 2]);
}

#[test]
fn memory_that_has_expired_is_out_of_reach_and_still_the_programs() {
    let (active, passive) = pair();
    let memory = passive
        .share_memory(b"tell all".to_vec(), Access::REMOTE_READ)
        .map_err(|(error, _)| error)
        .unwrap();
    let later = Instant::now() + PATIENCE * 100;
    memory.expire_at(later).unwrap();
    let read = |from| active.read(vec![0; 8], from).unwrap().wait();
    assert_eq!(&read(memory.remote()).unwrap().buffer[..], b"tell all");
    // Set an earlier expiry time.
    memory.expire_at(Instant::now()).unwrap();
    eventually("an end", || memory.has_expired());
    refused(&active, memory.remote());
    let error = memory.expire_at(later).unwrap_err();
    assert!(
        error.to_string().contains("found memory that has expired"),
        "{error}"
    );
    let mut found = [0; 8];
    memory.load(0, &mut found);
    assert_eq!(&found, b"tell all");
    let vector: Vec<u8> = memory.revoke().unwrap().into_memory().unwrap();
    assert_eq!(vector, b"tell all");
}

#[test]
fn a_time_that_is_put_off_does_not_end_memory_and_several_end_each_at_its_own() {
    let (active, passive) = pair();
    let share = || passive.share(8, Access::REMOTE_READ).unwrap();
    let (put_off, first, second) = (share(), share(), share());
    let soon = Instant::now() + Duration::from_millis(50);
    let later = soon + PATIENCE * 100;
    put_off.expire_at(soon).unwrap();
    put_off.expire_at(later).unwrap();
    second.expire_at(soon + Duration::from_millis(50)).unwrap();
    first.expire_at(soon).unwrap();
    drop(share().expire_at(soon));
    // `second` expires after the time that was first set for `put_off`.
    eventually("an end", || second.has_expired());
    assert!(first.has_expired() && !put_off.has_expired());
    active
        .read(vec![0; 8], put_off.remote())
        .unwrap()
        .wait()
        .unwrap();
    refused(&active, first.remote());
}

#[test]
fn memory_that_has_expired_is_offered_on_no_further_device() {
    let provider = own_provider();
    let domain = Domain::new();
    let passive = options().domain(Some(domain.clone()));
    let (_active, _passive) = pair_with(&options(), &passive);
    let memory = domain.share(8, Access::REMOTE_READ).unwrap();
    memory.expire_at(Instant::now()).unwrap();
    eventually("an end", || memory.has_expired());
    let listener = listener_on(provider.clone(), "127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let (_active, passive) = pair_at(connector_on(provider), &listener, address, &passive);
    let error = passive.offer(&memory).unwrap_err();
    assert!(
        error.to_string().contains("found memory that has expired"),
        "{error}"
    );
}

#[cfg(feature = "bytes")]
#[test]
fn bytes_that_others_read_are_sent_and_shared_for_reading_without_copying() {
    use portolan::Buffer;

    let (active, passive) = pair();
    let bytes = bytes::Bytes::from(pattern(3000, 4));
    let (one, other) = (bytes.slice(..1000), bytes.slice(1000..));
    let done = active.send(vec![Buffer::from(one), Buffer::from(other)]);
    let message = passive.receive_within(PATIENCE).unwrap();
    assert_same(&message, &bytes);
    let done = done.unwrap().wait().unwrap();
    let one: bytes::Bytes = done.buffer.into_memory().unwrap();
    assert_eq!((one.as_ptr(), one.len()), (bytes.as_ptr(), 1000));

    let chart = bytes::Bytes::from_static(b"written into the program");
    let memory = passive.share_memory(chart.clone(), Access::REMOTE_READ);
    let memory = memory.map_err(|(error, _)| error).unwrap();
    let mut found = [0; 24];
    memory.load(0, &mut found);
    assert_eq!(found[..], chart[..]);
    let read = active.read(vec![0; 24], memory.remote()).unwrap().wait();
    assert_eq!(read.unwrap().buffer[..], chart[..]);
    // The description contains the rights, so the write is refused locally and the connection survives.
    assert!(active.write(vec![0; 24], memory.remote()).is_err());
    let back: bytes::Bytes = memory.revoke().unwrap().into_memory().unwrap();
    assert_eq!(back.as_ptr(), chart.as_ptr());
}

#[cfg(feature = "bytes")]
#[test]
fn bytes_that_others_read_are_no_destination_and_are_copied_before_they_are_written() {
    use portolan::Buffer;

    let (active, passive) = pair();
    let bytes = bytes::Bytes::from(vec![7; 8]);
    let buffer = || Buffer::from(bytes.clone());
    let memory = passive
        .share(8, Access::REMOTE_READ | Access::REMOTE_ATOMIC)
        .unwrap();
    let remote = memory.remote();
    let mut batch = active.batch();
    batch.read(buffer(), remote).unwrap_err();
    for posted in [
        active.read(buffer(), remote),
        active.read(vec![active.buffer(4).unwrap(), buffer()], remote),
        active.fetch_add(buffer(), remote, 1),
        active.post_receive(buffer()),
    ] {
        let failed = posted.unwrap_err();
        let text = failed.error.to_string();
        assert!(
            text.contains("destination: expected memory that may be written"),
            "{text}"
        );
        assert!(failed.buffer.is_some());
    }
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::MW_BIND] {
        let shared = passive.share_memory(bytes.clone(), access | Access::REMOTE_READ);
        let (error, back) = shared.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("memory that is only read: expected REMOTE_READ"),
            "{text}"
        );
        assert_eq!(back.as_ptr(), bytes.as_ptr());
    }
    let mut written = buffer();
    assert!(!written.is_writable());
    written[0] = 1;
    assert_eq!((written[0], written[1], bytes[0]), (1, 7, 7));
    let read = active.read(written, remote).unwrap().wait().unwrap();
    assert_eq!(read.buffer[..], [0; 8]);
}

#[cfg(feature = "bytes")]
#[test]
#[should_panic(expected = "this memory is only read")]
fn a_store_into_memory_that_is_only_read_panics() {
    let (_active, passive) = pair();
    let bytes = bytes::Bytes::from_static(b"12345678");
    let memory = passive.share_memory(bytes, Access::REMOTE_READ);
    memory.map_err(|(error, _)| error).unwrap().store(0, b"x");
}

#[cfg(feature = "memmap2")]
#[test]
fn a_mapped_file_is_sent_without_copying() {
    let (active, passive) = pair();
    let map = memmap2::MmapMut::map_anon(4096).unwrap();
    let map = map.make_read_only().unwrap();
    let done = active.send(map).unwrap().wait().unwrap();
    assert_same(&passive.receive_within(PATIENCE).unwrap(), &[0; 4096]);
    assert!(done.buffer.into_memory::<memmap2::Mmap>().is_ok());
}

//! Writes with immediate data whose bytes the host places itself: their records have the effect of their packets.

use std::time::Duration;

use portolan_provider::verbs::{
    Access, QpState, SendData, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};
use portolan_roce::engine::{Compact, CompactWrite};
use portolan_wire::bth::Opcode;
use portolan_wire::timer::cm_timeout_us;
use portolan_wire::{Psn, Qpn};

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;
const SOURCE: u64 = 0;
const TARGET: u64 = 0x8_0000;

fn write(target: portolan_provider::verbs::RemoteAddr) -> SendOp {
    SendOp::RdmaWriteWithImm(target, 0x0102_0304)
}

/// Posts a write whose bytes are only at the peer.
fn post_taken(end: &mut Host, target: portolan_provider::verbs::RemoteAddr, len: u32) {
    let wr = SendWr {
        wr_id: 4,
        op: write(target),
        data: SendData::Sges(&[]),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    end.qp.post_taken(&wr, target.addr, len).unwrap();
}

/// A pair whose right end has receives.
fn pair(receives: u64) -> Pair {
    let mut pair = Pair::new(Options::default());
    for wr_id in 0..receives {
        post_recv(pair.right(), wr_id, &[]);
    }
    pair.left().fill(SOURCE, 8192, 5);
    pair
}

fn post_only(host: &mut Host, wr_id: u64, op: SendOp, length: u32) {
    let sges = [piece(host, SOURCE, length)];
    let wr = SendWr {
        wr_id,
        op,
        data: SendData::Sges(&sges[..usize::from(length > 0)]),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    host.qp.post_send(&wr).unwrap();
}

/// Copies the bytes of the next write, as the host does. Returns whether the engine permits it.
fn place(pair: &mut Pair) -> bool {
    let left = pair.left();
    let Some((direct, ahead)) = left.qp.poll_placeable(&left.memory) else {
        return false;
    };
    let (at, len) = (direct.addr, direct.len as usize);
    if !ahead.leave_free(at, direct.len) {
        return false;
    }
    left.qp.note_placed(at);
    let bytes = pair.left().bytes(SOURCE, len).to_vec();
    let right = pair.right();
    let start = (at - remote(right, 0).addr) as usize;
    right.ram[start..start + len].copy_from_slice(&bytes);
    true
}

/// The next record, as it is in memory.
fn record(pair: &mut Pair) -> Option<CompactWrite> {
    let now = pair.now;
    let left = pair.left();
    let (dest_qp, write) = left.qp.poll_write(now, &left.memory)?;
    assert_eq!(dest_qp, Host::qpn(1));
    let compact = Compact {
        write: Some(write),
        ..Compact::to(Qpn::new(9))
    };
    assert_eq!(Compact::parse(&compact.emit()), Some(compact));
    Some(write)
}

fn take(pair: &mut Pair, write: &CompactWrite) {
    let now = pair.now;
    let right = pair.right();
    right.qp.take_write(now, &right.memory, write);
    right.drain();
}

/// Passes the answers of the right end to the left one.
fn answer(pair: &mut Pair) {
    let now = pair.now;
    while let Some(bytes) = pair.right().next_packet(now) {
        pair.left().receive(now, &bytes);
    }
    pair.left().drain();
}

#[test]
fn a_write_that_the_host_copies_in_turns_waits_for_the_last_one() {
    let mut pair = pair(1);
    let target = remote(pair.right(), TARGET);
    post_only(pair.left(), 1, write(target), 5000);
    assert!(pair.left().qp.is_write_next());
    pair.left().qp.hold_requests();
    assert!(!pair.left().qp.is_write_next());
    pair.run();
    assert_eq!(sends(pair.left()), []);
    assert!(pair.left().qp.release_requests());
    assert!(place(&mut pair));
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
}

#[test]
fn a_record_uses_the_psns_of_its_packets_and_several_may_be_under_way() {
    for psn in [100, 0xff_fffe] {
        let mut pair = Pair::new(Options {
            psn,
            ..Options::default()
        });
        pair.left().fill(SOURCE, 8192, 5);
        for wr_id in 0..4 {
            post_recv(pair.right(), wr_id, &[]);
        }
        let mut expected = Psn::new(psn);
        for (wr_id, len) in [(0, 5000), (1, 64), (2, 0)] {
            let target = remote(pair.right(), TARGET + wr_id * 8192);
            post_only(pair.left(), wr_id, write(target), len);
            assert_eq!(place(&mut pair), len > 0);
            let record = record(&mut pair).expect("a record");
            assert_eq!((record.psn, record.len), (expected, len));
            expected = expected.add(len.div_ceil(1024).max(1));
            take(&mut pair, &record);
        }
        answer(&mut pair);
        assert_eq!(sends(pair.left()), [(0, OK), (1, OK), (2, OK)]);
        let bytes = pair.left().bytes(SOURCE, 5000).to_vec();
        let right = pair.right();
        assert!(right.bytes(TARGET, 5000) == bytes);
        for ((wc, _), len) in right.receives.iter().zip([5000, 64, 0]) {
            assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RecvRdmaWithImm, len));
            assert_eq!((wc.status, wc.imm_data), (OK, Some(0x0102_0304)));
        }
        // Packets go on from there.
        let target = remote(pair.right(), TARGET);
        post_only(pair.left(), 3, write(target), 2000);
        pair.run();
        let first = pair.sent_by(0)[0];
        assert_eq!((first.opcode, first.psn), (Opcode::RcWriteFirst, expected));
        assert_eq!(sends(pair.left())[3], (3, OK));
        assert_eq!(receives(pair.right()).len(), 4);
    }
}

#[test]
fn nothing_is_placed_while_packets_with_data_are_under_way() {
    let mut pair = pair(3);
    let target = remote(pair.right(), TARGET);
    post_only(pair.left(), 0, SendOp::RdmaWrite(target), 64);
    let bytes = pair.hosts[0].next_packet(pair.now).unwrap();
    post_only(pair.left(), 1, write(target), 64);
    assert!(!place(&mut pair) && record(&mut pair).is_none());
    let now = pair.now;
    pair.right().receive(now, &bytes);
    answer(&mut pair);
    assert!(place(&mut pair));
    let record = record(&mut pair).expect("a record");
    take(&mut pair, &record);
    answer(&mut pair);
    assert_eq!(sends(pair.left()), [(0, OK), (1, OK)]);
}

#[test]
fn a_write_behind_the_packets_of_another_waits_for_their_acknowledgement_if_it_may_be_placed_then()
{
    for holds in [false, true] {
        let mut pair = pair(2);
        let target = remote(pair.right(), TARGET);
        post_only(pair.left(), 0, write(target), 64);
        let bytes = pair.hosts[0].next_packet(pair.now).unwrap();
        post_only(pair.left(), 1, write(target), 100);
        assert_eq!(pair.left().qp.waiting_write(), Some((target, 100)));
        pair.left().qp.hold_writes(holds);
        let (now, next) = (pair.now, pair.hosts[0].next_packet(pair.now));
        assert_eq!(next.is_none(), holds);
        pair.right().receive(now, &bytes);
        answer(&mut pair);
        assert_eq!(pair.left().qp.waiting_write(), None);
        assert_eq!(place(&mut pair), holds);
        if let Some(next) = next {
            pair.right().receive(now, &next);
        } else {
            let record = record(&mut pair).expect("a record");
            take(&mut pair, &record);
        }
        answer(&mut pair);
        assert_eq!(sends(pair.left()), [(0, OK), (1, OK)]);
    }
}

#[test]
fn without_a_receive_the_record_comes_again_or_its_packets_do() {
    for by_packets in [false, true] {
        let mut pair = pair(0);
        let target = remote(pair.right(), TARGET);
        post_only(pair.left(), 1, write(target), 3000);
        assert!(place(&mut pair));
        let first = record(&mut pair).expect("a record");
        take(&mut pair, &first);
        answer(&mut pair);
        assert!(pair.right().receives.is_empty() && pair.left().sends.is_empty());
        assert!(pair.left().qp.not_ready_since().is_some());
        assert_eq!(record(&mut pair), None, "it waits");
        post_recv(pair.right(), 7, &[]);
        if !by_packets {
            pair.now += Duration::from_millis(100);
            assert_eq!(record(&mut pair), Some(first));
            take(&mut pair, &first);
            answer(&mut pair);
        }
        pair.run();
        assert_eq!(sends(pair.left()), [(1, OK)]);
        assert_eq!(receives(pair.right()), [(7, OK)]);
        assert_eq!(pair.right().receives[0].0.byte_len, 3000);
        assert_eq!(pair.sent_by(0).len(), if by_packets { 3 } else { 0 });
    }
}

#[test]
fn a_write_over_one_that_was_not_executed_is_a_packet_and_the_next_may_be_placed_after_it() {
    let mut pair = pair(1);
    let target = remote(pair.right(), TARGET);
    let beside = remote(pair.right(), TARGET + 64);
    for (wr_id, to, places) in [(1, target, true), (2, beside, true), (3, target, false)] {
        post_only(pair.left(), wr_id, write(to), 64);
        assert_eq!(place(&mut pair), places);
        if let Some(record) = record(&mut pair) {
            take(&mut pair, &record);
        }
    }
    assert_eq!(receives(pair.right()), [(0, OK)]);
    for wr_id in [8, 9] {
        post_recv(pair.right(), wr_id, &[]);
    }
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
    post_recv(pair.right(), 10, &[]);
    post_only(pair.left(), 4, write(target), 64);
    assert!(place(&mut pair));
}

#[test]
fn bytes_that_are_only_at_the_peer_are_never_sent_and_a_lost_record_is_repeated() {
    let mut pair = pair(2);
    let target = remote(pair.right(), TARGET);
    let left = pair.left();
    assert!(left.qp.may_take(&left.memory).is_some());
    post_taken(left, target, 5000);
    assert!(
        left.qp.may_take(&left.memory).is_none(),
        "one is not sent yet"
    );
    let lost = record(&mut pair).expect("a record");
    assert_eq!(pair.hosts[0].next_packet(pair.now), None);
    pair.now += Duration::from_secs(1);
    let now = pair.now;
    pair.left().qp.handle_timeout(now);
    assert_eq!(pair.hosts[0].next_packet(now), None);
    let again = CompactWrite {
        ack_request: true,
        ..lost
    };
    assert_eq!(record(&mut pair), Some(again));
    take(&mut pair, &lost);
    assert!(!lost.ack_request, "it may wait");
    assert_eq!(pair.hosts[1].next_packet(pair.now), None);
    // A duplicate is only acknowledged again.
    take(&mut pair, &lost);
    answer(&mut pair);
    assert_eq!(sends(pair.left()), [(4, OK)]);
    assert_eq!(pair.right().receives.len(), 1);
    assert_eq!(pair.right().qp.counters().duplicates, 1);
}

#[test]
fn a_request_that_is_only_at_the_peer_fails_if_its_record_cannot_be_sent() {
    let mut pair = pair(1);
    let target = remote(pair.right(), TARGET);
    post_taken(pair.left(), target, 50);
    pair.run();
    assert_eq!(sends(pair.left()), [(4, WcStatus::RetryExcErr)]);
    assert!(pair.right().receives.is_empty());
}

#[test]
fn a_request_that_is_only_at_the_peer_has_the_whole_time_for_its_record_after_a_pause() {
    let mut pair = pair(2);
    let target = remote(pair.right(), TARGET);
    post_only(pair.left(), 1, write(target), 64);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    let attr = connect_attr(0, &Options::default());
    let all_tries =
        Duration::from_micros(cm_timeout_us(attr.timeout)) * (u32::from(attr.retry_cnt) + 1);
    let ms = Duration::from_millis(1);
    pair.now += all_tries - ms;
    post_taken(pair.left(), target, 50);
    assert_eq!(pair.hosts[0].next_packet(pair.now), None);
    pair.now += 2 * ms;
    let now = pair.now;
    pair.left().qp.handle_timeout(now);
    pair.left().drain();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    let record = record(&mut pair).expect("a record");
    take(&mut pair, &record);
    // That record requested no acknowledgement, so it is repeated.
    pair.now += all_tries / 2;
    let now = pair.now;
    pair.left().qp.handle_timeout(now);
    let again = self::record(&mut pair).expect("a record");
    take(&mut pair, &again);
    answer(&mut pair);
    assert_eq!(sends(pair.left()), [(1, OK), (4, OK)]);
}

#[test]
fn packets_in_the_place_of_a_record_are_followed_by_packets() {
    let mut pair = pair(2);
    for wr_id in [1, 2] {
        let target = remote(pair.right(), TARGET + wr_id * 64);
        post_only(pair.left(), wr_id, write(target), 64);
        assert!(place(&mut pair));
        record(&mut pair).expect("a record, which is lost");
    }
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK)]);
    let opcodes: Vec<_> = pair.sent_by(0).iter().map(|sent| sent.opcode).collect();
    assert_eq!(opcodes, [Opcode::RcWriteOnlyImm; 2]);
}

#[test]
fn a_forged_record_is_refused_as_its_packets_would_be() {
    let forged = |psn, len| CompactWrite {
        psn: Psn::new(psn),
        immediate: [0; 4],
        solicited: false,
        ack_request: true,
        len,
    };
    // A gap, and what was executed long ago.
    for psn in [101, 99, 0x80_0000, 100 + 0x7f_ffff] {
        let mut pair = self::pair(1);
        take(&mut pair, &forged(psn, 64));
        assert!(pair.right().receives.is_empty(), "{psn}");
        assert_eq!(pair.states(), [QpState::Rts; 2]);
    }
    // In the middle of a message.
    let mut pair = self::pair(1);
    let target = remote(pair.right(), TARGET);
    post_only(pair.left(), 1, SendOp::RdmaWrite(target), 3000);
    let (first, now) = (pair.hosts[0].next_packet(pair.now).unwrap(), pair.now);
    pair.right().receive(now, &first);
    take(&mut pair, &forged(101, 64));
    assert_eq!(pair.states()[1], QpState::Err);
    assert!(
        receives(pair.right())
            .iter()
            .all(|(_, status)| *status != OK)
    );
    // Without the right to write.
    for (len, state) in [(64, QpState::Err), (0, QpState::Rts)] {
        let mut pair = Pair::new(Options {
            access: Access::REMOTE_READ,
            ..Options::default()
        });
        post_recv(pair.right(), 1, &[]);
        take(&mut pair, &forged(100, len));
        assert_eq!(pair.states()[1], state);
    }
    // The longest one.
    let mut pair = self::pair(1);
    take(&mut pair, &forged(100, Compact::WRITE_MAX));
    assert_eq!(pair.right().receives[0].0.byte_len, Compact::WRITE_MAX);
}

#[test]
fn a_write_of_1_gib_and_more_has_a_record() {
    for len in [(1 << 30) - 1, 1 << 30, (1 << 30) + 4096, (1 << 31) - 4096] {
        let mut pair = pair(1);
        let target = remote(pair.right(), TARGET);
        post_taken(pair.left(), target, len);
        let write = record(&mut pair).unwrap();
        take(&mut pair, &write);
        assert_eq!(pair.right().receives[0].0.byte_len, len);
        pair.run();
        assert_eq!(sends(pair.left()), [(4, OK)]);
    }
}

#[test]
fn a_record_establishes_a_connection_whose_confirmation_is_late() {
    let mut right = Host::new(1, &Options::default());
    let attr = connect_attr(1, &Options::default());
    for state in [QpState::Init, QpState::Rtr] {
        right.modify(&portolan_provider::verbs::QpAttr { state, ..attr });
    }
    post_recv(&mut right, 1, &[]);
    let write = CompactWrite {
        psn: Psn::new(100),
        immediate: [1; 4],
        solicited: false,
        ack_request: true,
        len: 10,
    };
    right.qp.take_write(Duration::ZERO, &right.memory, &write);
    assert!(matches!(
        right.qp.poll_async_event(),
        Some(portolan_provider::verbs::AsyncEvent::CommEst(_))
    ));
    right.drain();
    assert_eq!(receives(&right), [(1, OK)]);
}

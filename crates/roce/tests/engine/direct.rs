//! Requests that the host carries out by itself: which it may, and that packets go on as if there had been nothing.

use portolan_provider::verbs::{
    Access, QpAttr, QpAttrMask, QpState, QpType, SendData, SendFlags, SendOp, SendWr, WcOpcode,
    WcStatus,
};
use portolan_roce::engine::{AtomicKind, DirectOperation, MemoryTable, Payload, PdId};
use portolan_wire::bth::Opcode;

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;
const SOURCE: u64 = 0;
const TARGET: u64 = 0x8_0000;

/// What the oldest request of the left host does, if it may be carried out by the host.
fn offered(pair: &mut Pair) -> Option<DirectOperation> {
    let host = pair.left();
    host.qp
        .poll_direct(&host.memory)
        .map(|direct| direct.operation)
}

/// Posts without asking for packets.
fn post_only(host: &mut Host, wr_id: u64, op: SendOp, length: u32) {
    let sges = [piece(host, SOURCE, length)];
    let wr = SendWr {
        wr_id,
        op,
        data: SendData::Sges(&sges),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    host.qp.post_send(&wr).unwrap();
}

fn complete(pair: &mut Pair) {
    pair.left().qp.complete_direct();
    pair.left().drain();
}

#[test]
fn a_request_that_the_host_executes_takes_no_packet_and_no_psn() {
    for psn in [100, 1, 0xff_ffff] {
        let mut pair = Pair::new(Options {
            psn,
            ..Options::default()
        });
        let target = remote(pair.right(), TARGET);
        for round in 0..3 {
            post_only(pair.left(), round * 10 + 1, SendOp::RdmaWrite(target), 5000);
            assert_eq!(offered(&mut pair), Some(DirectOperation::Write));
            complete(&mut pair);
            post_only(pair.left(), round * 10 + 2, SendOp::RdmaRead(target), 3000);
            assert_eq!(offered(&mut pair), Some(DirectOperation::Read));
            complete(&mut pair);
            let op = SendOp::AtomicFetchAdd {
                remote: target,
                add: 3,
            };
            post_only(pair.left(), round * 10 + 3, op, 8);
            let kind = AtomicKind::FetchAdd { add: 3 };
            assert_eq!(offered(&mut pair), Some(DirectOperation::Atomic(kind)));
            complete(&mut pair);
            pair.run();
            assert_eq!(pair.sent_by(0).len(), 2 * round as usize);
            // A message of two packets by the network, in between.
            post_only(pair.left(), round * 10 + 4, SendOp::RdmaWrite(target), 2000);
            pair.run();
            let sent = pair.sent_by(0);
            let last = sent.last().unwrap();
            let expected = (psn + 2 * round as u32 + 1) & 0xff_ffff;
            assert_eq!(
                (last.opcode, last.psn.value()),
                (Opcode::RcWriteLast, expected)
            );
        }
        let expected = (0..3).flat_map(|round| (1..5).map(move |n| (round * 10 + n, OK)));
        assert_eq!(sends(pair.left()), expected.collect::<Vec<_>>());
        let opcodes: Vec<_> = pair.left().sends.iter().map(|wc| wc.opcode).collect();
        use WcOpcode::{FetchAdd, RdmaRead, RdmaWrite};
        assert_eq!(opcodes[..4], [RdmaWrite, RdmaRead, FetchAdd, RdmaWrite]);
        let bytes: Vec<_> = pair.left().sends.iter().map(|wc| wc.byte_len).collect();
        assert_eq!(bytes[..4], [0, 3000, 8, 0]);
        assert_eq!(pair.left().qp.counters().retransmits, 0);
        assert_eq!(pair.right().qp.counters().drops_total(), 0);
    }
}

#[test]
fn a_send_queue_that_was_drained_goes_on_with_the_psn_that_the_peer_expects() {
    let mut pair = Pair::new(Options::default());
    let target = remote(pair.right(), TARGET);
    for wr_id in [1, 2] {
        post_only(pair.left(), wr_id, SendOp::RdmaWrite(target), 5000);
        assert_eq!(offered(&mut pair), Some(DirectOperation::Write));
        complete(&mut pair);
        // A change of attributes while it is drained is a change from SQD to SQD.
        for state in [QpState::Sqd, QpState::Sqd, QpState::Rts] {
            let attr = QpAttr {
                state,
                ..pair.left().qp.query().0
            };
            let changed = pair.left().qp.modify(&attr, QpAttrMask::STATE);
            changed.expect("a legal transition");
        }
    }
    let into = piece(pair.right(), TARGET, 100);
    post_recv(pair.right(), 1, &[into]);
    post_only(pair.left(), 3, SendOp::Send, 64);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(receives(pair.right()), [(1, OK)]);
    assert_eq!(pair.left().qp.counters().retransmits, 0);
}

#[test]
fn nothing_is_offered_before_what_was_posted_earlier_is_acknowledged() {
    let mut pair = Pair::new(Options::default());
    let target = remote(pair.right(), TARGET);
    let into = piece(pair.right(), TARGET, 100);
    post_recv(pair.right(), 1, &[into]);
    post_only(pair.left(), 1, SendOp::Send, 64);
    post_only(pair.left(), 2, SendOp::RdmaWrite(target), 64);
    post_only(pair.left(), 3, SendOp::RdmaWrite(target), 64);
    assert_eq!(offered(&mut pair), None, "a send is first");
    let bytes = pair.hosts[0].next_packet(pair.now).unwrap();
    assert_eq!(offered(&mut pair), None, "the send is under way");
    let now = pair.now;
    pair.right().receive(now, &bytes);
    let answer = pair.hosts[1].next_packet(now).unwrap();
    pair.left().receive(now, &answer);
    assert_eq!(sends(pair.left()), [(1, OK)]);
    assert_eq!(offered(&mut pair), Some(DirectOperation::Write));
    complete(&mut pair);
    // One that was begun by packets goes on by packets.
    let begun = pair.hosts[0].next_packet(now).unwrap();
    assert_eq!(offered(&mut pair), None);
    pair.right().receive(now, &begun);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn a_lost_packet_is_sent_again_before_anything_is_offered() {
    let mut pair = Pair::new(Options::default());
    let target = remote(pair.right(), TARGET);
    post_only(pair.left(), 1, SendOp::RdmaWrite(target), 64);
    let _lost = pair.hosts[0].next_packet(pair.now).unwrap();
    post_only(pair.left(), 2, SendOp::RdmaWrite(target), 64);
    assert_eq!(offered(&mut pair), None);
    let due = pair.left().qp.poll_timeout().unwrap();
    pair.now = due;
    pair.left().qp.handle_timeout(due);
    assert_eq!(offered(&mut pair), None);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK)]);
}

#[test]
fn a_request_that_needs_or_notifies_the_peer_is_not_offered() {
    let mut pair = Pair::new(Options::default());
    let target = remote(pair.right(), TARGET);
    for (op, length) in [
        (SendOp::Send, 8),
        (SendOp::RdmaWriteWithImm(target, 1), 8),
        // It is how a program asks whether the peer lives.
        (SendOp::RdmaWrite(target), 0),
        (SendOp::RdmaRead(target), 0),
    ] {
        let mut pair = Pair::new(Options::default());
        post_only(pair.left(), 1, op, length);
        assert_eq!(offered(&mut pair), None, "{op:?}");
    }
    post_only(pair.left(), 1, SendOp::RdmaWrite(target), 8);
    let nothing = MemoryTable::new(1);
    assert!(pair.left().qp.poll_direct(&nothing).is_none());
    pair.left().qp.fail();
    assert_eq!(offered(&mut pair), None);
    let mut pair = Pair::new(Options {
        qp_type: QpType::Uc,
        ..Options::default()
    });
    post_only(pair.left(), 1, SendOp::RdmaWrite(target), 8);
    assert_eq!(offered(&mut pair), None);
}

#[test]
fn local_memory_is_checked_as_for_packets_and_shown_piece_by_piece() {
    let mut pair = Pair::new(Options::default());
    let target = remote(pair.right(), TARGET);
    let pd = pair.left().pd();
    pair.left().register(77, 0, 100, Access::empty(), pd);
    pair.left()
        .register(78, 0, 100, Access::LOCAL_WRITE, PdId(99));
    let base = pair.left().base;
    let sge = |lkey, length| portolan_provider::verbs::Sge {
        addr: base,
        length,
        lkey,
    };
    for (op, sges, is_offered) in [
        (SendOp::RdmaWrite(target), vec![sge(77, 100)], true),
        (
            SendOp::RdmaWrite(target),
            vec![sge(77, 60), sge(77, 40)],
            true,
        ),
        (SendOp::RdmaWrite(target), vec![sge(77, 101)], false),
        (SendOp::RdmaWrite(target), vec![sge(78, 100)], false),
        (SendOp::RdmaWrite(target), vec![sge(1, 100)], false),
        (SendOp::RdmaRead(target), vec![sge(77, 100)], false),
        (SendOp::RdmaRead(target), vec![sge(KEY, 100)], true),
    ] {
        let mut pair = Pair::new(Options::default());
        let pd = pair.left().pd();
        pair.left().register(77, 0, 100, Access::empty(), pd);
        pair.left()
            .register(78, 0, 100, Access::LOCAL_WRITE, PdId(99));
        let wr = SendWr {
            wr_id: 1,
            op,
            data: SendData::Sges(&sges),
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        };
        let host = pair.left();
        host.qp.post_send(&wr).unwrap();
        let direct = host.qp.poll_direct(&host.memory);
        assert_eq!(direct.is_some(), is_offered, "{op:?} {sges:?}");
        if let Some(direct) = direct {
            let Payload::Segments(segments) = direct.local else {
                panic!("not inline")
            };
            let lens: Vec<u32> = segments.iter().map(|segment| segment.len).collect();
            let expected: Vec<u32> = sges.iter().map(|sge| sge.length).collect();
            assert_eq!((lens, direct.len), (expected, 100));
            assert_eq!((direct.addr, direct.rkey), (target.addr, target.rkey));
        }
    }
}

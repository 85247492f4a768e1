//! Requests that the host carries out by itself: which it may, and that packets go on as if there had been nothing.

use portolan_provider::verbs::{
    Access, QpAttr, QpAttrMask, QpCap, QpState, QpType, SendData, SendFlags, SendOp, SendWr, Sge,
    WcOpcode, WcStatus,
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
    host.qp.post_send(&signaled(wr_id, op, &sges)).unwrap();
}

fn signaled(wr_id: u64, op: SendOp, sges: &[Sge]) -> SendWr<'_> {
    SendWr {
        wr_id,
        op,
        data: SendData::Sges(sges),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    }
}

/// Posts a request that the host executes: at once, if it may and `at_once`. Returns what it does.
fn execute(
    pair: &mut Pair,
    at_once: bool,
    (wr_id, op, length): (u64, SendOp, u32),
) -> DirectOperation {
    let host = pair.left();
    let sges = [piece(host, SOURCE, length)];
    let wr = signaled(wr_id, op, &sges);
    let planned = host.qp.plan_direct(&host.memory, &wr);
    if let Some(planned) = planned.filter(|_| at_once) {
        host.qp.post_direct(&wr, &planned);
        host.drain();
        return planned.operation;
    }
    host.qp.post_send(&wr).unwrap();
    let operation = offered(pair).expect("it may be executed");
    complete(pair);
    operation
}

fn complete(pair: &mut Pair) {
    pair.left().qp.complete_direct();
    pair.left().drain();
}

#[test]
fn a_request_that_the_host_executes_takes_no_packet_and_no_psn() {
    let psns = [100, 1, 0xff_ffff].into_iter();
    for (psn, at_once) in psns.flat_map(|psn| [(psn, false), (psn, true)]) {
        let mut pair = Pair::new(Options {
            psn,
            ..Options::default()
        });
        let target = remote(pair.right(), TARGET);
        for round in 0..3 {
            let write = (round * 10 + 1, SendOp::RdmaWrite(target), 5000);
            let operation = execute(&mut pair, at_once, write);
            assert_eq!(operation, DirectOperation::Write);
            let read = (round * 10 + 2, SendOp::RdmaRead(target), 3000);
            let operation = execute(&mut pair, at_once, read);
            assert_eq!(operation, DirectOperation::Read);
            let op = SendOp::AtomicFetchAdd {
                remote: target,
                add: 3,
            };
            let operation = execute(&mut pair, at_once, (round * 10 + 3, op, 8));
            let kind = AtomicKind::FetchAdd { add: 3 };
            assert_eq!(operation, DirectOperation::Atomic(kind));
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
    let sge = |lkey, length| Sge {
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
        let wr = signaled(1, op, &sges);
        let host = pair.left();
        let planned = host.qp.plan_direct(&host.memory, &wr);
        let may_be_at_once = is_offered && sges.len() == 1;
        assert_eq!(planned.is_some(), may_be_at_once, "{op:?} {sges:?}");
        if let Some(planned) = planned {
            assert_eq!(planned.local.len, 100);
            let remote = (planned.addr, planned.rkey);
            assert_eq!(remote, (target.addr, target.rkey));
        }
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

/// Whether a request may be executed at once.
fn may_be_executed(host: &Host, op: SendOp, data: SendData<'_>) -> bool {
    let wr = SendWr {
        data,
        ..signaled(1, op, &[])
    };
    host.qp.plan_direct(&host.memory, &wr).is_some()
}

#[test]
fn a_request_is_executed_at_once_only_if_the_queue_pair_has_nothing_else_to_send() {
    let options = Options::default();
    let mut pair = Pair::new(options.clone());
    let target = remote(pair.right(), TARGET);
    let write = SendOp::RdmaWrite(target);
    let sges = [piece(pair.left(), SOURCE, 8)];
    let one = SendData::Sges(&sges);
    assert!(may_be_executed(pair.left(), write, one));
    assert!(may_be_executed(pair.left(), SendOp::RdmaRead(target), one));
    let nothing = [piece(pair.left(), SOURCE, 0)];
    for (op, data) in [
        (SendOp::Send, one),
        (SendOp::RdmaWriteWithImm(target, 1), one),
        (
            SendOp::AtomicFetchAdd {
                remote: target,
                add: 1,
            },
            one,
        ),
        (write, SendData::Inline(b"inline")),
        (write, SendData::Sges(&[])),
        (write, SendData::Sges(&nothing)),
    ] {
        assert!(!may_be_executed(pair.left(), op, data), "{op:?} {data:?}");
    }
    // Something is queued; then it is in flight; then it is acknowledged.
    post_only(pair.left(), 1, write, 8);
    assert!(!may_be_executed(pair.left(), write, one));
    let bytes = pair.hosts[0].next_packet(pair.now).unwrap();
    assert!(!may_be_executed(pair.left(), write, one));
    let now = pair.now;
    pair.right().receive(now, &bytes);
    let answer = pair.hosts[1].next_packet(now).unwrap();
    pair.left().receive(now, &answer);
    assert!(may_be_executed(pair.left(), write, one));
    let drained = QpAttr {
        state: QpState::Sqd,
        ..pair.left().qp.query().0
    };
    let changed = pair.left().qp.modify(&drained, QpAttrMask::STATE);
    changed.expect("a legal transition");
    assert!(!may_be_executed(pair.left(), write, one));
    pair.left().qp.fail();
    assert!(!may_be_executed(pair.left(), write, one));
    let cap = |max_send_wr, max_send_sge| QpCap {
        max_send_wr,
        max_send_sge,
        ..options.cap
    };
    for (cap, qp_type) in [
        (cap(0, 1), QpType::Rc),
        (cap(1, 0), QpType::Rc),
        (cap(1, 1), QpType::Uc),
    ] {
        let mut pair = Pair::new(Options {
            cap,
            qp_type,
            ..options.clone()
        });
        let sges = [piece(pair.left(), SOURCE, 8)];
        let one = SendData::Sges(&sges);
        assert!(
            !may_be_executed(pair.left(), write, one),
            "{cap:?} {qp_type:?}"
        );
    }
}

#[test]
fn a_read_is_not_executed_at_once_if_the_queue_pair_may_not_post_it() {
    let mut pair = Pair::new(Options {
        rd_atomic: 0,
        ..Options::default()
    });
    let target = remote(pair.right(), TARGET);
    let sges = [piece(pair.left(), SOURCE, 8)];
    let one = SendData::Sges(&sges);
    let (read, write) = (SendOp::RdmaRead(target), SendOp::RdmaWrite(target));
    assert!(!may_be_executed(pair.left(), read, one));
    assert!(pair.left().qp.post_send(&signaled(1, read, &sges)).is_err());
    assert!(may_be_executed(pair.left(), write, one));
}

#[test]
fn nothing_is_executed_at_once_while_the_peer_has_asked_to_wait() {
    let mut pair = Pair::new(Options::default());
    let write = SendOp::RdmaWrite(remote(pair.right(), TARGET));
    post_only(pair.left(), 1, SendOp::Send, 8);
    let now = pair.now;
    let first = pair.hosts[0].next_packet(now).unwrap();
    let due = pair.left().qp.poll_timeout().unwrap();
    pair.left().qp.handle_timeout(due);
    let again = pair.hosts[0].next_packet(due).unwrap();
    pair.right().receive(due, &first);
    let not_ready = pair.hosts[1].next_packet(due).unwrap();
    let into = piece(pair.right(), TARGET, 100);
    post_recv(pair.right(), 1, &[into]);
    pair.right().receive(due, &again);
    let acknowledgement = pair.hosts[1].next_packet(due).unwrap();
    pair.left().receive(due, &not_ready);
    pair.left().receive(due, &acknowledgement);
    assert_eq!(sends(pair.left()), [(1, OK)]);
    let sges = [piece(pair.left(), SOURCE, 8)];
    let one = SendData::Sges(&sges);
    assert!(!may_be_executed(pair.left(), write, one));
    post_only(pair.left(), 2, write, 8);
    assert_eq!(offered(&mut pair), Some(DirectOperation::Write));
    complete(&mut pair);
    assert!(may_be_executed(pair.left(), write, one));
}

#[test]
fn a_request_executed_at_once_completes_only_if_it_is_signaled() {
    let mut pair = Pair::new(Options::default());
    let target = remote(pair.right(), TARGET);
    let host = pair.left();
    let sges = [piece(host, SOURCE, 8)];
    for (wr_id, flags) in [(1, SendFlags::empty()), (2, SendFlags::SIGNALED)] {
        let wr = SendWr {
            flags,
            ..signaled(wr_id, SendOp::RdmaWrite(target), &sges)
        };
        let planned = host.qp.plan_direct(&host.memory, &wr).unwrap();
        host.qp.post_direct(&wr, &planned);
        host.drain();
    }
    assert_eq!(sends(host), [(2, OK)]);
}

//! A host that calls `poll_send_only` and `poll_acknowledgement` first sends the same packets as any other host.

use std::time::Duration;

use portolan_provider::verbs::{
    Access, AsyncEvent, QpAttr, QpAttrMask, QpState, SendData, SendFlags, SendOp, SendWr, WcStatus,
};
use portolan_roce::engine::{CompactAck, PdId};
use portolan_wire::bth::Opcode;

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;
const SOURCE: u64 = 0;
const TARGET: u64 = 0x8_0000;
const NOW: Duration = Duration::ZERO;

/// Posts a request without polling for packets.
fn post_only(host: &mut Host, wr_id: u64, op: SendOp, length: u32, flags: SendFlags) {
    let sges = [piece(host, SOURCE, length)];
    let wr = SendWr {
        wr_id,
        op,
        data: SendData::Sges(&sges),
        flags,
        ud: None,
        srq: None,
    };
    host.qp.post_send(&wr).unwrap();
}

/// The opcode of the packet that `poll_send_only` of the left host returns.
fn offered(pair: &mut Pair) -> Option<Opcode> {
    let now = pair.now;
    let host = pair.left();
    let send = host.qp.poll_send_only(now, &host.memory)?;
    Some(send.bth.opcode)
}

#[test]
fn a_whole_send_is_the_packet_that_would_have_been_sent_otherwise() {
    let packets = [false, true].map(|sends_first| {
        let mut pair = Pair::new(Options {
            psn: 0xff_fffe,
            sends_first,
            ..Options::default()
        });
        let left = pair.left();
        left.fill(SOURCE, 2000, 3);
        for (wr_id, length) in (0..).zip([0, 1, 2, 3, 64, 1023, 1024]) {
            post_only(left, wr_id, SendOp::Send, length, SendFlags::empty());
        }
        let imm = SendOp::SendWithImm(0x1234_5678);
        post_only(left, 7, imm, 9, SendFlags::SOLICITED);
        post_only(left, 8, imm, 0, SendFlags::SIGNALED | SendFlags::FENCE);
        let inline = SendWr {
            wr_id: 9,
            op: SendOp::Send,
            data: SendData::Inline(b"inline"),
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        };
        left.qp.post_send(&inline).unwrap();
        // These do not qualify: two packets, another opcode, and a send behind them.
        post_only(left, 10, SendOp::Send, 1025, SendFlags::SIGNALED);
        post_only(left, 11, SendOp::SendWithInv(1), 5, SendFlags::SIGNALED);
        post_only(left, 12, SendOp::Send, 8, SendFlags::empty());
        let packets: Vec<_> = std::iter::from_fn(|| left.next_packet(NOW)).collect();
        assert!(left.qp.is_transmit_idle());
        (packets, *left.qp.counters(), left.qp.poll_timeout())
    });
    assert_eq!(packets[0].0.len(), 14);
    assert_eq!(packets[0], packets[1]);
}

#[test]
fn sends_arrive_complete_and_are_acknowledged_in_order() {
    let mut pair = Pair::new(Options {
        sends_first: true,
        ..Options::default()
    });
    pair.left().fill(SOURCE, 64, 9);
    for wr_id in 0..40 {
        let target = piece(pair.right(), TARGET, 64);
        post_recv(pair.right(), wr_id, &[target]);
        post_only(pair.left(), wr_id, SendOp::Send, 64, SendFlags::SIGNALED);
    }
    pair.run();
    let expected: Vec<_> = (0..40).map(|wr_id| (wr_id, OK)).collect();
    assert_eq!(sends(pair.left()), expected);
    assert_eq!(pair.right().receives.len(), 40);
    assert_eq!(pair.right().bytes(TARGET, 64), pattern(64, 9));
    assert_eq!(pair.left().qp.counters().retransmits, 0);
    assert!(pair.left().qp.is_transmit_idle());
}

#[test]
fn only_a_whole_send_whose_turn_it_is_is_offered() {
    let target = |pair: &mut Pair| remote(pair.right(), TARGET);
    type Prepare = fn(&mut Pair);
    let none: Prepare = |_| {};
    let solicited = SendFlags::SOLICITED;
    for (what, op, length, prepare) in [
        (
            "a write",
            SendOp::RdmaWrite(target(&mut Pair::new(Options::default()))),
            64,
            none,
        ),
        (
            "a read",
            SendOp::RdmaRead(target(&mut Pair::new(Options::default()))),
            64,
            none,
        ),
        ("an invalidation", SendOp::SendWithInv(1), 64, none),
        ("two packets", SendOp::Send, 1025, none),
        ("a send behind a write", SendOp::Send, 64, |pair| {
            let target = remote(pair.right(), TARGET);
            post_only(
                pair.left(),
                0,
                SendOp::RdmaWrite(target),
                64,
                SendFlags::empty(),
            );
        }),
        ("a send behind local work", SendOp::Send, 64, |pair| {
            post_only(pair.left(), 0, SendOp::LocalInv(1), 0, SendFlags::empty());
        }),
        ("a drained queue", SendOp::Send, 64, |pair| {
            let attr = QpAttr {
                state: QpState::Sqd,
                ..QpAttr::default()
            };
            pair.left().qp.modify(&attr, QpAttrMask::STATE).unwrap();
        }),
        ("a full window", SendOp::Send, 64, |pair| {
            for _ in 0..63 {
                post_only(pair.left(), 0, SendOp::Send, 1024, SendFlags::empty());
            }
            while offered(pair).is_some() {}
        }),
    ] {
        let mut pair = Pair::new(Options {
            flow: portolan_roce::engine::FlowConfig {
                window_initial_bytes: 32 << 10,
                ..Default::default()
            },
            ..Options::default()
        });
        prepare(&mut pair);
        post_only(pair.left(), 1, op, length, solicited);
        assert_eq!(offered(&mut pair), None, "{what}");
    }
}

#[test]
fn a_send_from_memory_that_may_not_be_used_fails_as_ever() {
    let mut pair = Pair::new(Options {
        sends_first: true,
        ..Options::default()
    });
    let pd = PdId(pair.left().pd().0 + 1);
    pair.left().register(77, 0, 4096, Access::empty(), pd);
    let mut sge = piece(pair.left(), SOURCE, 64);
    sge.lkey = 77;
    post(pair.left(), 1, SendOp::Send, &[sge]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, WcStatus::LocProtErr)]);
}

#[test]
fn a_fenced_send_waits_for_the_read_before_it() {
    let mut pair = Pair::new(Options::default());
    let target = remote(pair.right(), TARGET);
    post_only(
        pair.left(),
        1,
        SendOp::RdmaRead(target),
        64,
        SendFlags::SIGNALED,
    );
    assert!(pair.left().next_packet(NOW).is_some());
    post_only(pair.left(), 2, SendOp::Send, 64, SendFlags::FENCE);
    assert_eq!(offered(&mut pair), None);
    assert!(!pair.left().qp.is_transmit_idle());
}

#[test]
fn a_retransmission_is_not_offered() {
    let mut pair = Pair::new(Options::default());
    post_only(pair.left(), 1, SendOp::Send, 64, SendFlags::SIGNALED);
    assert_eq!(offered(&mut pair), Some(Opcode::RcSendOnly));
    assert_eq!(offered(&mut pair), None);
    // The packet is lost, and the timeout rewinds the requester.
    pair.now = pair.left().qp.poll_timeout().expect("a timer");
    let now = pair.now;
    pair.left().qp.handle_timeout(now);
    assert!(!pair.left().qp.is_transmit_idle());
    assert_eq!(offered(&mut pair), None);
    let packet = pair.left().next_packet(now).expect("sent again");
    assert_eq!(parse(&packet).bth().opcode, Opcode::RcSendOnly);
}

#[test]
fn a_peer_without_a_receive_has_all_sent_again_after_its_time() {
    let mut pair = Pair::new(Options {
        sends_first: true,
        ..Options::default()
    });
    for wr_id in [1, 2, 3] {
        post_only(pair.left(), wr_id, SendOp::Send, 64, SendFlags::SIGNALED);
    }
    pair.settle(Duration::from_micros(100));
    assert_eq!(offered(&mut pair), None, "it waits");
    assert!(!pair.left().qp.is_transmit_idle());
    for wr_id in [1, 2, 3] {
        let target = piece(pair.right(), TARGET, 64);
        post_recv(pair.right(), wr_id, &[target]);
    }
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(pair.right().qp.counters().rnr_naks_sent, 1);
}

/// The record of a write may carry it, and a write has no packets that would come again.
#[test]
fn an_acknowledgement_drains_a_send_queue_without_a_packet() {
    let mut pair = Pair::new(Options::default());
    let target = piece(pair.right(), TARGET, 64);
    post_recv(pair.right(), 1, &[target]);
    post_only(pair.left(), 1, SendOp::Send, 64, SendFlags::SIGNALED);
    let send = pair.left().next_packet(NOW).unwrap();
    pair.right().receive(NOW, &send);
    let (bth, aeth) = pair.right().qp.poll_acknowledgement().expect("one");
    let attr = QpAttr {
        state: QpState::Sqd,
        ..QpAttr::default()
    };
    let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
    let left = pair.left();
    left.qp.modify(&attr, mask).unwrap();
    left.drain();
    assert_eq!(left.events, []);
    let acknowledgement = CompactAck {
        psn: bth.psn,
        msn: aeth.msn,
    };
    let taken = left
        .qp
        .take_acknowledgement(NOW, &left.memory, &acknowledgement);
    left.drain();
    assert!(taken);
    assert_eq!(sends(left), [(1, WcStatus::Success)]);
    assert_eq!(left.events, [AsyncEvent::SqDrained(left.qp.qpn())]);
}

#[test]
fn only_a_positive_acknowledgement_that_is_the_only_response_is_offered() {
    // A single positive acknowledgement is offered.
    let mut pair = Pair::new(Options::default());
    let target = piece(pair.right(), TARGET, 64);
    post_recv(pair.right(), 1, &[target]);
    post_only(pair.left(), 1, SendOp::Send, 64, SendFlags::SIGNALED);
    let send = pair.left().next_packet(NOW).unwrap();
    pair.right().receive(NOW, &send);
    let (bth, _) = pair.right().qp.poll_acknowledgement().expect("one");
    assert_eq!((bth.opcode, bth.psn.value()), (Opcode::RcAck, 100));
    assert!(pair.right().qp.poll_acknowledgement().is_none());
    assert!(pair.right().qp.is_transmit_idle());
    // An RNR NAK is not offered.
    post_only(pair.left(), 2, SendOp::Send, 64, SendFlags::SIGNALED);
    let send = pair.left().next_packet(NOW).unwrap();
    pair.right().receive(NOW, &send);
    assert!(pair.right().qp.poll_acknowledgement().is_none());
    assert!(pair.right().next_packet(NOW).is_some(), "the refusal");
    // While a read response is pending, neither acknowledgements nor sends are offered.
    let mut pair = Pair::new(Options::default());
    let target = remote(pair.right(), TARGET);
    post_only(
        pair.left(),
        1,
        SendOp::RdmaWrite(target),
        64,
        SendFlags::SIGNALED,
    );
    post_only(
        pair.left(),
        2,
        SendOp::RdmaRead(target),
        64,
        SendFlags::SIGNALED,
    );
    let requests: Vec<_> = std::iter::from_fn(|| pair.left().next_packet(NOW)).collect();
    for request in requests {
        pair.right().receive(NOW, &request);
    }
    assert!(pair.right().qp.poll_acknowledgement().is_none());
    post_only(pair.right(), 1, SendOp::Send, 64, SendFlags::SIGNALED);
    let right = pair.right();
    assert!(right.qp.poll_send_only(NOW, &right.memory).is_none());
}

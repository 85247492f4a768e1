//! A stream that is to go another way begins nothing until all that it has sent is acknowledged.

use portolan_provider::verbs::{SendData, SendFlags, SendOp, SendWr, WcStatus};
use portolan_wire::bth::Opcode;

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;
const SOURCE: u64 = 0;
const TARGET: u64 = 0x8_0000;

fn post_unsignaled(host: &mut Host, wr_id: u64, op: SendOp, length: u32) {
    let sges = [piece(host, SOURCE, length)];
    let wr = SendWr {
        wr_id,
        op,
        data: SendData::Sges(&sges),
        flags: SendFlags::empty(),
        ud: None,
        srq: None,
    };
    host.qp.post_send(&wr).unwrap();
}

/// Passes the answers of the right end to the left one.
fn answer(pair: &mut Pair) {
    let now = pair.now;
    while let Some(bytes) = pair.right().next_packet(now) {
        pair.left().receive(now, &bytes);
    }
}

#[test]
fn what_is_begun_is_completed_and_the_peer_is_asked_to_acknowledge_it() {
    let mut pair = Pair::new(Options::default());
    let target = remote(pair.right(), TARGET);
    let now = pair.now;
    assert!(pair.left().qp.can_change_way());
    // The first request has three packets. None asks for an acknowledgement, because two more requests follow.
    post_unsignaled(pair.left(), 1, SendOp::RdmaWrite(target), 3000);
    for wr_id in [2, 3] {
        let sges = [piece(pair.left(), SOURCE, 64)];
        post(pair.left(), wr_id, SendOp::RdmaWrite(target), &sges);
    }
    let first = pair.left().next_packet(now).unwrap();
    assert!(!pair.left().qp.can_change_way());
    pair.left().qp.wait_to_change_way(true);
    let mut packets = vec![first];
    packets.extend(std::iter::from_fn(|| pair.left().next_packet(now)));
    let opcodes = packets.iter().map(|bytes| parse(bytes).bth().opcode);
    let opcodes: Vec<_> = opcodes.collect();
    use Opcode::{RcWriteFirst, RcWriteLast, RcWriteMiddle};
    assert_eq!(opcodes[..3], [RcWriteFirst, RcWriteMiddle, RcWriteLast]);
    assert!(opcodes[3..].iter().all(|opcode| *opcode == RcWriteLast));
    let last = parse(packets.last().unwrap());
    assert!(last.bth().ack_request, "nothing else brings an answer");
    for bytes in &packets {
        pair.right().receive(now, bytes);
    }
    answer(&mut pair);
    assert!(pair.left().qp.can_change_way());
    assert!(
        pair.left().next_packet(now).is_none(),
        "not before it has changed"
    );
    pair.left().qp.wait_to_change_way(false);
    pair.run();
    assert_eq!(sends(pair.left()), [(2, OK), (3, OK)]);
}

#[test]
fn a_queue_pair_without_a_timer_begins_requests_all_the_same() {
    let mut pair = Pair::new(Options {
        timeout: 0,
        ..Options::default()
    });
    let target = remote(pair.right(), TARGET);
    let sges = [piece(pair.left(), SOURCE, 64)];
    let now = pair.now;
    for wr_id in [1, 2] {
        post(pair.left(), wr_id, SendOp::RdmaWrite(target), &sges);
        // A later packet shows the peer that this one is lost.
        pair.left().qp.wait_to_change_way(true);
        assert!(pair.left().next_packet(now).is_some());
    }
}

#[test]
fn lost_packets_are_sent_again_meanwhile() {
    let mut pair = Pair::new(Options::default());
    let target = remote(pair.right(), TARGET);
    let sges = [piece(pair.left(), SOURCE, 64)];
    post(pair.left(), 1, SendOp::RdmaWrite(target), &sges);
    let _lost = pair.hosts[0].next_packet(pair.now).unwrap();
    post(pair.left(), 2, SendOp::RdmaWrite(target), &sges);
    pair.left().qp.wait_to_change_way(true);
    assert!(pair.hosts[0].next_packet(pair.now).is_none());
    let due = pair.left().qp.poll_timeout().unwrap();
    pair.now = due;
    pair.left().qp.handle_timeout(due);
    let again = pair.left().next_packet(due).unwrap();
    assert!(pair.left().next_packet(due).is_none());
    pair.right().receive(due, &again);
    answer(&mut pair);
    assert_eq!(sends(pair.left()), [(1, OK)]);
    assert!(pair.left().qp.can_change_way());
    assert!(pair.left().next_packet(due).is_none());
}

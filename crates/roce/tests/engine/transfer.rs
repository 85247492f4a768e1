//! The data moved by operations, and their completions.

use portolan_provider::verbs::{Mtu, SendData, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus};
use portolan_roce::engine::FlowConfig;
use portolan_wire::bth::Opcode;
use proptest::prelude::*;

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;

/// Offsets of the sent and received data.
const SOURCE: u64 = 0;
const TARGET: u64 = 0x8_0000;

#[test]
fn a_send_fills_the_oldest_receive_and_both_sides_complete() {
    let mut pair = Pair::new(Options::default());
    let target = piece(pair.right(), TARGET, 100);
    post_recv(pair.right(), 1, &[target]);
    post_recv(pair.right(), 2, &[target]);
    pair.left().fill(SOURCE, 64, 5);
    let source = piece(pair.left(), SOURCE, 64);
    post(pair.left(), 9, SendOp::Send, &[source]);
    pair.run();
    assert_eq!(sends(pair.left()), [(9, OK)]);
    assert_eq!(receives(pair.right()), [(1, OK)]);
    let (wc, solicited) = pair.right().receives[0];
    assert_eq!(
        (wc.opcode, wc.byte_len, wc.imm_data),
        (WcOpcode::Recv, 64, None)
    );
    assert!(!solicited);
    assert_eq!(
        pair.hosts[1].bytes(TARGET, 64),
        pair.hosts[0].bytes(SOURCE, 64)
    );
    assert_eq!(pair.hosts[1].bytes(TARGET + 64, 36), [0; 36]);
}

#[test]
fn a_message_is_split_at_the_path_mtu() {
    let mut pair = Pair::new(Options {
        mtu: Mtu::Mtu256,
        ..Options::default()
    });
    let target = remote(pair.right(), TARGET);
    let source = piece(pair.left(), SOURCE, 700);
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[source]);
    pair.run();
    let sent: Vec<_> = pair
        .sent_by(0)
        .iter()
        .map(|packet| (packet.opcode, packet.psn.value(), packet.payload_len))
        .collect();
    assert_eq!(
        sent,
        [
            (Opcode::RcWriteFirst, 100, 256),
            (Opcode::RcWriteMiddle, 101, 256),
            (Opcode::RcWriteLast, 102, 188),
        ]
    );
    let reth = pair.sent_by(0)[0]
        .headers
        .reth
        .expect("a write starts with its RETH");
    assert_eq!((reth.va, reth.dma_len), (target.addr, 700));
}

#[test]
fn immediate_data_arrive_as_they_were_given() {
    let mut pair = Pair::new(Options::default());
    let target = piece(pair.right(), TARGET, 3000);
    for wr_id in [1, 2, 3] {
        post_recv(pair.right(), wr_id, &[target]);
    }
    let (source, place) = (
        piece(pair.left(), SOURCE, 2500),
        remote(pair.right(), TARGET),
    );
    post(pair.left(), 1, SendOp::SendWithImm(0x1122_3344), &[source]);
    post(
        pair.left(),
        2,
        SendOp::RdmaWriteWithImm(place, 0xAABB_CCDD),
        &[source],
    );
    post(pair.left(), 3, SendOp::RdmaWriteWithImm(place, 7), &[]);
    pair.run();
    let seen: Vec<_> = pair
        .right()
        .receives
        .iter()
        .map(|(wc, _)| (wc.wr_id, wc.opcode, wc.byte_len, wc.imm_data))
        .collect();
    assert_eq!(
        seen,
        [
            (1, WcOpcode::Recv, 2500, Some(0x1122_3344)),
            (2, WcOpcode::RecvRdmaWithImm, 2500, Some(0xAABB_CCDD)),
            (3, WcOpcode::RecvRdmaWithImm, 0, Some(7)),
        ]
    );
}

#[test]
fn immediate_data_are_on_the_wire_in_the_order_of_memory() {
    let mut pair = Pair::new(Options::default());
    post_recv(pair.right(), 1, &[]);
    post(
        pair.left(),
        1,
        SendOp::SendWithImm(u32::from_ne_bytes([1, 2, 3, 4])),
        &[],
    );
    pair.run();
    assert_eq!(
        pair.sent_by(0)[0].headers.immdt.map(|immdt| immdt.0),
        Some([1, 2, 3, 4])
    );
}

#[test]
fn a_plain_write_needs_no_receive_and_causes_no_completion_at_the_peer() {
    let mut pair = Pair::new(Options::default());
    pair.left().fill(SOURCE, 5000, 3);
    let (source, target) = (
        piece(pair.left(), SOURCE, 5000),
        remote(pair.right(), TARGET),
    );
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[source]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    assert_eq!(pair.left().sends[0].opcode, WcOpcode::RdmaWrite);
    assert!(pair.right().receives.is_empty());
    assert_eq!(
        pair.hosts[1].bytes(TARGET, 5000),
        pair.hosts[0].bytes(SOURCE, 5000)
    );
}

#[test]
fn a_read_returns_the_peers_bytes_and_their_number() {
    let mut pair = Pair::new(Options::default());
    pair.right().fill(SOURCE, 5000, 4);
    let (target, source) = (
        piece(pair.left(), TARGET, 5000),
        remote(pair.right(), SOURCE),
    );
    post(pair.left(), 1, SendOp::RdmaRead(source), &[target]);
    pair.run();
    let wc = pair.left().sends[0];
    assert_eq!(
        (wc.status, wc.opcode, wc.byte_len),
        (OK, WcOpcode::RdmaRead, 5000)
    );
    assert_eq!(
        pair.hosts[0].bytes(TARGET, 5000),
        pair.hosts[1].bytes(SOURCE, 5000)
    );
    let opcodes: Vec<_> = pair.sent_by(1).iter().map(|packet| packet.opcode).collect();
    use Opcode::*;
    assert_eq!(
        opcodes,
        [
            RcReadResponseFirst,
            RcReadResponseMiddle,
            RcReadResponseMiddle,
            RcReadResponseMiddle,
            RcReadResponseLast
        ]
    );
}

#[test]
fn inline_data_are_copied_at_posting() {
    let mut pair = Pair::new(Options::default());
    let target = piece(pair.right(), TARGET, 256);
    post_recv(pair.right(), 1, &[target]);
    let mut bytes = *b"written before the post";
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        data: SendData::Inline(&bytes),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    pair.left().qp.post_send(&wr).expect("short enough");
    bytes.fill(0);
    pair.run();
    assert_eq!(pair.right().bytes(TARGET, 23), b"written before the post");
    assert_eq!(sends(pair.left()), [(1, OK)]);
}

#[test]
fn the_solicited_bit_is_only_on_the_last_packet_and_reaches_the_receiver() {
    let mut pair = Pair::new(Options::default());
    let (target, source) = (
        piece(pair.right(), TARGET, 3000),
        piece(pair.left(), SOURCE, 3000),
    );
    post_recv(pair.right(), 1, &[target]);
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    post_with(pair.left(), 1, SendOp::Send, &[source], flags);
    pair.run();
    let bits: Vec<_> = pair
        .sent_by(0)
        .iter()
        .map(|p| p.headers.bth.solicited)
        .collect();
    assert_eq!(bits, [false, false, true]);
    assert!(pair.right().receives[0].1);
}

#[test]
fn only_signaled_sends_complete_unless_all_are_signaled() {
    for (sq_sig_all, expected) in [(false, vec![2]), (true, vec![1, 2, 3])] {
        let mut pair = Pair::new(Options {
            sq_sig_all,
            ..Options::default()
        });
        let (source, target) = (piece(pair.left(), SOURCE, 8), remote(pair.right(), TARGET));
        for (wr_id, flags) in [
            (1, SendFlags::empty()),
            (2, SendFlags::SIGNALED),
            (3, SendFlags::empty()),
        ] {
            post_with(
                pair.left(),
                wr_id,
                SendOp::RdmaWrite(target),
                &[source],
                flags,
            );
        }
        pair.run();
        let seen: Vec<_> = pair.left().sends.iter().map(|wc| wc.wr_id).collect();
        assert_eq!(seen, expected);
    }
}

#[test]
fn unsignaled_sends_leave_the_queue_without_a_completion() {
    let mut pair = Pair::new(Options::default());
    let (source, target) = (piece(pair.left(), SOURCE, 8), remote(pair.right(), TARGET));
    for wr_id in 0..1000 {
        let flags = SendFlags::empty();
        post_with(
            pair.left(),
            wr_id,
            SendOp::RdmaWrite(target),
            &[source],
            flags,
        );
        pair.run();
    }
    assert!(pair.left().sends.is_empty());
    assert_eq!(pair.right().placements, 1000);
}

#[test]
fn empty_writes_and_reads_need_no_valid_key() {
    let mut pair = Pair::new(Options::default());
    let nowhere = portolan_provider::verbs::RemoteAddr {
        addr: 1,
        rkey: 0xDEAD,
    };
    post(pair.left(), 1, SendOp::RdmaWrite(nowhere), &[]);
    post(pair.left(), 2, SendOp::RdmaRead(nowhere), &[]);
    post(
        pair.left(),
        3,
        SendOp::RdmaRead(nowhere),
        &[Sge {
            addr: 5,
            length: 0,
            lkey: 6,
        }],
    );
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn a_read_is_requested_in_consecutive_parts() {
    let flow = FlowConfig {
        read_request_bytes_max: 16 << 10,
        ..FlowConfig::default()
    };
    let mut pair = Pair::new(Options {
        flow,
        rd_atomic: 2,
        ..Options::default()
    });
    let len = 100_000;
    pair.right().fill(SOURCE, len as usize, 8);
    let (target, source) = (
        piece(pair.left(), TARGET, len),
        remote(pair.right(), SOURCE),
    );
    post(pair.left(), 1, SendOp::RdmaRead(source), &[target]);
    pair.run();
    let requests: Vec<_> = pair
        .sent_by(0)
        .iter()
        .map(|packet| (packet.psn.value(), packet.headers.reth.expect("a RETH")))
        .collect();
    let (mut psn, mut va) = (100, source.addr);
    for (at, reth) in &requests {
        assert_eq!((*at, reth.va), (psn, va));
        assert!(reth.dma_len <= 16 << 10);
        psn += reth.dma_len.div_ceil(1024);
        va += u64::from(reth.dma_len);
    }
    assert_eq!(va, source.addr + u64::from(len));
    assert_eq!(sends(pair.left()), [(1, OK)]);
    assert_eq!(
        pair.hosts[0].bytes(TARGET, 100_000),
        pair.hosts[1].bytes(SOURCE, 100_000)
    );
}

#[test]
fn no_more_reads_are_in_flight_than_allowed() {
    let mut pair = Pair::new(Options {
        rd_atomic: 2,
        ..Options::default()
    });
    let (target, source) = (piece(pair.left(), TARGET, 8), remote(pair.right(), SOURCE));
    for wr_id in 0..5 {
        post(pair.left(), wr_id, SendOp::RdmaRead(source), &[target]);
    }
    pair.transmit();
    assert_eq!(pair.sent_by(0).len(), 2);
    pair.run();
    assert_eq!(pair.left().sends.len(), 5);
}

#[test]
fn a_fenced_send_waits_for_the_reads_before_it() {
    for (flags, sent_at_once) in [(SendFlags::FENCE, 1), (SendFlags::empty(), 2)] {
        let mut pair = Pair::new(Options::default());
        let (target, source) = (piece(pair.left(), TARGET, 8), remote(pair.right(), SOURCE));
        post(pair.left(), 1, SendOp::RdmaRead(source), &[target]);
        let place = remote(pair.right(), TARGET);
        let flags = flags | SendFlags::SIGNALED;
        post_with(pair.left(), 2, SendOp::RdmaWrite(place), &[target], flags);
        pair.transmit();
        assert_eq!(pair.sent_by(0).len(), sent_at_once);
        pair.run();
        assert_eq!(sends(pair.left()), [(1, OK), (2, OK)]);
    }
}

#[test]
fn sequence_numbers_wrap() {
    let mut pair = Pair::new(Options {
        psn: 0xFF_FFFD,
        ..Options::default()
    });
    pair.left().fill(SOURCE, 5000, 1);
    pair.right().fill(SOURCE, 5000, 2);
    let (source, place) = (
        piece(pair.left(), SOURCE, 5000),
        remote(pair.right(), TARGET),
    );
    let (target, from) = (
        piece(pair.left(), TARGET, 5000),
        remote(pair.right(), SOURCE),
    );
    post(pair.left(), 1, SendOp::RdmaWrite(place), &[source]);
    post(pair.left(), 2, SendOp::RdmaRead(from), &[target]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK)]);
    assert_eq!(
        pair.hosts[1].bytes(TARGET, 5000),
        pair.hosts[0].bytes(SOURCE, 5000)
    );
    assert_eq!(
        pair.hosts[0].bytes(TARGET, 5000),
        pair.hosts[1].bytes(SOURCE, 5000)
    );
    assert_eq!(pair.sent_by(0)[3].psn.value(), 0);
}

#[test]
fn requests_are_sent_between_the_data_of_a_long_read() {
    let mut pair = Pair::new(Options::default());
    let (target, source) = (
        piece(pair.left(), TARGET, 60_000),
        remote(pair.right(), SOURCE),
    );
    post(pair.left(), 1, SendOp::RdmaRead(source), &[target]);
    pair.transmit();
    let (bytes, place) = (
        piece(pair.right(), SOURCE, 10_000),
        remote(pair.left(), SOURCE),
    );
    post(pair.right(), 2, SendOp::RdmaWrite(place), &[bytes]);
    pair.run();
    let sent = pair.sent_by(1);
    let last_write = sent
        .iter()
        .position(|packet| packet.opcode == Opcode::RcWriteLast);
    let last_data = sent
        .iter()
        .position(|packet| packet.opcode == Opcode::RcReadResponseLast);
    assert!(last_write.expect("a write") < last_data.expect("a read response"));
}

/// Splits `len` bytes at `offset` into pieces of these lengths; the last piece takes the rest.
fn pieces(host: &Host, offset: u64, len: u32, cuts: &[u32]) -> Vec<Sge> {
    let (mut at, mut left) = (offset, len);
    let mut sges = Vec::new();
    for cut in cuts {
        let length = left.min(*cut);
        sges.push(piece(host, at, length));
        at += u64::from(length);
        left -= length;
    }
    sges.push(piece(host, at, left));
    sges
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_operation_moves_any_length_between_any_pieces(
        len in prop_oneof![0u32..20, 250u32..260, 1000u32..1050, 0u32..9000],
        operation in 0..3,
        mtu in prop_oneof![Just(Mtu::Mtu256), Just(Mtu::Mtu1024), Just(Mtu::Mtu4096)],
        local_cuts in proptest::collection::vec(0u32..1500, 0..7),
        remote_cuts in proptest::collection::vec(0u32..1500, 0..7),
    ) {
        let mut pair = Pair::new(Options { mtu, ..Options::default() });
        pair.left().fill(SOURCE, len as usize, 1);
        pair.right().fill(SOURCE, len as usize, 2);
        let (from, to) = match operation {
            2 => (1, 0),
            _ => (0, 1),
        };
        match operation {
            0 => {
                let target = pieces(pair.right(), TARGET, len, &remote_cuts);
                post_recv(pair.right(), 1, &target);
                let source = pieces(pair.left(), SOURCE, len, &local_cuts);
                post(pair.left(), 1, SendOp::Send, &source);
            }
            1 => {
                let target = remote(pair.right(), TARGET);
                let source = pieces(pair.left(), SOURCE, len, &local_cuts);
                post(pair.left(), 1, SendOp::RdmaWrite(target), &source);
            }
            _ => {
                let source = remote(pair.right(), SOURCE);
                let target = pieces(pair.left(), TARGET, len, &local_cuts);
                post(pair.left(), 1, SendOp::RdmaRead(source), &target);
            }
        }
        pair.run();
        prop_assert_eq!(sends(pair.left()), [(1, OK)]);
        let len = len as usize;
        prop_assert_eq!(pair.hosts[to].bytes(TARGET, len), pair.hosts[from].bytes(SOURCE, len));
        prop_assert_eq!(pair.hosts[to].bytes(TARGET + len as u64, 64), [0; 64]);
    }
}

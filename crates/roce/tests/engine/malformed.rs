//! Invalid requests, and bytes that are not requests.

use std::time::Duration;

use portolan_provider::verbs::{AsyncEvent, QpState, SendOp, WcStatus};
use portolan_wire::Psn;
use portolan_wire::bth::Opcode::{self, *};
use portolan_wire::eth::{
    AethRepr, AtomicEthRepr, FethRepr, IethRepr, ImmDtRepr, NakCode, RethRepr, Syndrome,
};
use portolan_wire::rocev2::Headers;
use proptest::prelude::*;

use crate::harness::*;

const MTU: usize = 1024;

/// A request with every header that its opcode requires, for the right host's whole memory.
fn request(opcode: Opcode, psn: u32, dma_len: u32) -> Headers {
    let base = Host::new(1, &Options::default()).base;
    let mut headers = Headers::new(opcode, Host::qpn(1), Psn::new(psn));
    headers.reth = opcode.has_reth().then_some(RethRepr {
        va: base,
        rkey: KEY,
        dma_len,
    });
    headers.immdt = opcode.has_immdt().then_some(ImmDtRepr([0; 4]));
    headers.ieth = opcode.has_ieth().then_some(IethRepr { rkey: KEY });
    headers.feth = opcode.has_feth().then_some(FethRepr {
        placement: 1,
        selectivity: 0,
    });
    headers.atomic_eth = opcode.has_atomic_eth().then_some(AtomicEthRepr {
        va: base,
        rkey: KEY,
        swap_or_add: 1,
        compare: 0,
    });
    headers
}

#[test]
fn requests_in_a_wrong_sequence_are_invalid() {
    // Opcode, payload bytes and RETH length of each packet. The last packet is refused.
    let cases: &[&[(Opcode, usize, u32)]] = &[
        // A message without a beginning.
        &[(RcSendMiddle, MTU, 0)],
        &[(RcSendLast, 10, 0)],
        &[(RcSendLastImm, 10, 0)],
        &[(RcWriteMiddle, MTU, 0)],
        &[(RcWriteLast, 10, 0)],
        &[(RcWriteLastImm, 10, 0)],
        // A message without an end.
        &[(RcSendFirst, MTU, 0), (RcSendFirst, MTU, 0)],
        &[(RcSendFirst, MTU, 0), (RcSendOnly, 10, 0)],
        &[(RcSendFirst, MTU, 0), (RcReadRequest, 0, 10)],
        &[(RcWriteFirst, MTU, 3000), (RcWriteOnly, 10, 10)],
        &[(RcWriteFirst, MTU, 3000), (RcSendOnly, 10, 0)],
        // A message that turns into another.
        &[(RcSendFirst, MTU, 0), (RcWriteMiddle, MTU, 0)],
        &[(RcWriteFirst, MTU, 3000), (RcSendLast, 10, 0)],
        // Payloads that are not full, too long or empty.
        &[(RcSendFirst, MTU - 4, 0)],
        &[(RcSendFirst, 0, 0)],
        &[(RcSendFirst, MTU + 4, 0)],
        &[(RcSendOnly, MTU + 4, 0)],
        &[(RcSendFirst, MTU, 0), (RcSendMiddle, MTU - 4, 0)],
        &[(RcSendFirst, MTU, 0), (RcSendLast, 0, 0)],
        &[(RcSendFirst, MTU, 0), (RcSendLast, MTU + 4, 0)],
        // Payloads that do not match the RETH.
        &[(RcWriteOnly, 10, 11)],
        &[(RcWriteOnly, 10, 9)],
        &[(RcWriteOnly, 0, 4)],
        &[(RcWriteFirst, MTU, 1024)],
        &[(RcWriteFirst, MTU, 100)],
        &[(RcWriteFirst, MTU, 2048), (RcWriteMiddle, MTU, 0)],
        &[(RcWriteFirst, MTU, 2048), (RcWriteLast, 100, 0)],
        &[(RcWriteFirst, MTU, 1100), (RcWriteLast, 100, 0)],
        // Longer than a message may be.
        &[(RcWriteFirst, MTU, (1 << 31) + 1)],
        &[(RcReadRequest, 0, u32::MAX)],
        // Unsupported operations.
        &[(RcFlush, 0, 8)],
        &[(RcAtomicWrite, 8, 8)],
    ];
    for case in cases {
        let mut pair = Pair::new(Options::default());
        let target = piece(pair.right(), 0x8000, 10_000);
        post_recv(pair.right(), 1, &[target]);
        for (index, (opcode, payload_len, dma_len)) in (0..).zip(*case) {
            assert_eq!(pair.right().qp.state(), QpState::Rts, "{case:?}");
            let headers = request(*opcode, 100 + index, *dma_len);
            pair.right()
                .receive_headers(&headers, &vec![0; *payload_len]);
        }
        pair.transmit();
        let answer = *pair
            .sent_by(1)
            .last()
            .unwrap_or_else(|| panic!("an answer to {case:?}"));
        let syndrome = answer.headers.aeth.expect("an AETH").syndrome;
        assert_eq!(syndrome, Syndrome::Nak(NakCode::InvalidRequest), "{case:?}");
        assert_eq!(answer.psn.value(), 99 + case.len() as u32, "{case:?}");
        assert_eq!(pair.right().qp.state(), QpState::Err, "{case:?}");
        assert_eq!(
            receives(pair.right()),
            [(1, WcStatus::WrFlushErr)],
            "{case:?}"
        );
        let qpn = pair.right().qp.qpn();
        assert_eq!(pair.right().events, [AsyncEvent::QpReqErr(qpn)], "{case:?}");
    }
}

#[test]
fn more_reads_than_agreed_are_invalid() {
    let mut pair = Pair::new(Options {
        rd_atomic: 2,
        ..Options::default()
    });
    for index in 0..3 {
        pair.right()
            .receive_headers(&request(RcReadRequest, 100 + index, 8), &[]);
    }
    assert_eq!(pair.right().qp.state(), QpState::Err);
    let mut pair = Pair::new(Options {
        rd_atomic: 0,
        ..Options::default()
    });
    pair.right()
        .receive_headers(&request(RcReadRequest, 100, 8), &[]);
    assert_eq!(pair.right().qp.state(), QpState::Err);
}

#[test]
fn a_repeated_read_may_only_request_data_read_before() {
    for (psn, va, dma_len, answered) in [
        (100, 0, 4096, true),
        (101, 1024, 3072, true),
        (101, 1024, 1024, true),
        (101, 1024, 3073, false),
        (100, 1, 4096, false),
        (100, 0, 8192, false),
        (99, 0, 4096, false),
    ] {
        let mut pair = Pair::new(Options::default());
        pair.right()
            .receive_headers(&request(RcReadRequest, 100, 4096), &[]);
        pair.transmit();
        let before = pair.sent_by(1).len();
        assert_eq!(before, 4);
        let mut again = request(RcReadRequest, psn, dma_len);
        if let Some(reth) = &mut again.reth {
            reth.va += va;
        }
        pair.right().receive_headers(&again, &[]);
        pair.transmit();
        let packets = pair.sent_by(1).len() - before;
        let expected = if answered {
            dma_len.div_ceil(1024) as usize
        } else {
            0
        };
        assert_eq!(packets, expected, "{psn} {va} {dma_len}");
    }
}

#[test]
fn a_flood_of_repeated_reads_is_bounded() {
    let mut pair = Pair::new(Options {
        rd_atomic: 4,
        ..Options::default()
    });
    pair.right()
        .receive_headers(&request(RcReadRequest, 100, 1 << 20), &[]);
    pair.transmit();
    for index in 0..1000u32 {
        let mut again = request(RcReadRequest, 100 + index, 1024);
        if let Some(reth) = &mut again.reth {
            reth.va += u64::from(index) * 1024;
        }
        pair.right().receive_headers(&again, &[]);
    }
    let before = pair.sent_by(1).len();
    pair.transmit();
    assert_eq!(pair.sent_by(1).len() - before, 4);
}

#[test]
fn a_repeated_read_is_answered_before_the_reads_after_it() {
    let mut pair = Pair::new(Options::default());
    pair.right()
        .receive_headers(&request(RcReadRequest, 100, 2048), &[]);
    pair.right()
        .receive_headers(&request(RcReadRequest, 102, 2048), &[]);
    for _ in 0..2 {
        pair.hosts[1]
            .next_packet(Duration::ZERO)
            .expect("read data");
    }
    pair.right()
        .receive_headers(&request(RcReadRequest, 100, 2048), &[]);
    pair.transmit();
    let answered: Vec<_> = pair
        .sent_by(1)
        .iter()
        .map(|packet| packet.psn.value())
        .collect();
    assert_eq!(answered, [100, 101, 102, 103]);
}

#[test]
fn a_stray_copy_of_an_old_read_takes_no_room_from_new_ones() {
    let mut pair = Pair::new(Options {
        rd_atomic: 2,
        ..Options::default()
    });
    for psn in [100, 101] {
        pair.right()
            .receive_headers(&request(RcReadRequest, psn, 8), &[]);
    }
    pair.transmit();
    // The requester has both answers and sends two more requests, between which a late copy arrives.
    for psn in [102, 101, 103] {
        pair.right()
            .receive_headers(&request(RcReadRequest, psn, 8), &[]);
    }
    assert_eq!(pair.right().qp.state(), QpState::Rts);
    pair.transmit();
    let answered: Vec<_> = pair
        .sent_by(1)
        .iter()
        .map(|packet| packet.psn.value())
        .collect();
    assert_eq!(answered, [100, 101, 102, 103]);
}

#[test]
fn answers_to_a_read_must_match_the_request() {
    let response = |opcode: Opcode, psn| {
        let mut headers = Headers::new(opcode, Host::qpn(0), Psn::new(psn));
        let syndrome = Syndrome::Ack { credits: 31 };
        headers.aeth = opcode.has_aeth().then_some(AethRepr { syndrome, msn: 1 });
        headers
    };
    for (opcode, payload_len) in [
        (RcReadResponseFirst, 1020),
        (RcReadResponseFirst, 1028),
        (RcReadResponseFirst, 0),
        (RcReadResponseOnly, 1024),
        (RcReadResponseLast, 1024),
    ] {
        let mut pair = Pair::new(Options::default());
        let (target, source) = (piece(pair.left(), 0, 3000), remote(pair.right(), 0));
        post(pair.left(), 1, SendOp::RdmaRead(source), &[target]);
        pair.transmit();
        pair.left()
            .receive_headers(&response(opcode, 100), &vec![1; payload_len]);
        assert_eq!(
            sends(pair.left()),
            [(1, WcStatus::BadRespErr)],
            "{opcode} {payload_len}"
        );
        assert_eq!(pair.left().placements, 0);
    }
    // Read data in answer to a write.
    let mut pair = Pair::new(Options::default());
    let (source, target) = (piece(pair.left(), 0, 100), remote(pair.right(), 0));
    post(pair.left(), 1, SendOp::RdmaWrite(target), &[source]);
    pair.transmit();
    pair.left()
        .receive_headers(&response(RcReadResponseOnly, 100), &[1; 100]);
    assert_eq!(sends(pair.left()), [(1, WcStatus::BadRespErr)]);
}

/// Any RC opcode, a PSN near the expected one, lengths near those in use.
fn any_packet() -> impl Strategy<Value = (u8, u32, bool, Option<RethRepr>, u8, usize)> {
    let base = Host::new(1, &Options::default()).base;
    let va = prop_oneof![Just(base), any::<u64>(), base..base + 4096];
    let dma_len = prop_oneof![0u32..5000, any::<u32>()];
    let reth = (va, prop_oneof![Just(KEY), any::<u32>()], dma_len)
        .prop_map(|(va, rkey, dma_len)| Some(RethRepr { va, rkey, dma_len }));
    let psn = prop_oneof![95u32..110, any::<u32>()];
    let payload_len = prop_oneof![Just(0), Just(1024), 0usize..1100];
    (
        0u8..0x1E,
        psn,
        any::<bool>(),
        reth,
        any::<u8>(),
        payload_len,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_sequence_of_packets_panics_or_leaves_the_rules(
        packets in proptest::collection::vec(any_packet(), 1..40),
        reads in 0u64..3,
    ) {
        let mut pair = Pair::new(Options::default());
        let place = remote(pair.left(), 0);
        for wr_id in 0..4 {
            let target = piece(&pair.hosts[1], 0x8000, 1500);
            post_recv(pair.right(), wr_id, &[target]);
            let op = if wr_id < reads {
                SendOp::RdmaRead(place)
            } else {
                SendOp::RdmaWrite(place)
            };
            let local = piece(&pair.hosts[1], 0, 2500);
            post(pair.right(), wr_id, op, &[local]);
        }
        for (opcode, psn, ack_request, reth, syndrome, payload_len) in packets {
            let Ok(opcode) = Opcode::from_value(opcode) else { continue };
            let mut headers = request(opcode, psn, 0);
            headers.bth.ack_request = ack_request;
            headers.reth = headers.reth.and(reth);
            headers.aeth = opcode
                .has_aeth()
                .then_some(AethRepr { syndrome: Syndrome::from_value(syndrome), msn: 0 });
            headers.atomic_ack_eth = opcode
                .has_atomic_ack_eth()
                .then_some(portolan_wire::eth::AtomicAckEthRepr { original: 1 });
            let len = if opcode == RcAtomicWrite { 8 } else { payload_len };
            let len = if opcode.has_payload() { len } else { 0 };
            pair.right().receive_headers(&headers, &vec![7; len]);
            for _ in 0..10_000 {
                if pair.hosts[1].next_packet(Duration::ZERO).is_none() {
                    break;
                }
            }
        }
        // Whatever was sent, every request completes once and in order.
        pair.right().qp.fail();
        pair.right().drain();
        for names in [sends(pair.right()), receives(pair.right())] {
            let names: Vec<_> = names.iter().map(|(wr_id, _)| *wr_id).collect();
            prop_assert_eq!(names, [0, 1, 2, 3]);
        }
    }
}

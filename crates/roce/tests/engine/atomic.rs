//! Atomics: their effect, the required rights, and that each is executed once, whatever is lost.

use std::time::Duration;

use portolan_provider::verbs::{
    Access, AsyncEvent, QpState, RemoteAddr, SendData, SendFlags, SendOp, SendWr, WcOpcode,
    WcStatus,
};
use portolan_roce::engine::{DropReason, PdId};
use portolan_wire::Psn;
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{AethRepr, AtomicAckEthRepr, AtomicEthRepr, NakCode, Syndrome};
use portolan_wire::rocev2::Headers;

use crate::harness::*;

const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushErr;
/// Offset of the word in the right host's memory.
const WORD: u64 = 0x8_0000;
/// Offset of the results in the left host's memory.
const ANSWERS: u64 = 0x4000;

fn set(host: &mut Host, offset: u64, value: u64) {
    host.ram[offset as usize..][..8].copy_from_slice(&value.to_ne_bytes());
}

fn word(host: &Host, offset: u64) -> u64 {
    u64::from_ne_bytes(host.bytes(offset, 8).try_into().expect("eight bytes"))
}

fn fetch_add(pair: &Pair, offset: u64, add: u64) -> SendOp {
    let remote = remote(&pair.hosts[1], offset);
    SendOp::AtomicFetchAdd { remote, add }
}

fn compare_swap(pair: &Pair, offset: u64, compare: u64, swap: u64) -> SendOp {
    SendOp::AtomicCmpSwap {
        remote: remote(&pair.hosts[1], offset),
        compare,
        swap,
    }
}

/// Posts an atomic whose result goes to the slot with its number.
fn post_atomic(pair: &mut Pair, wr_id: u64, op: SendOp) {
    let answer = piece(pair.left(), ANSWERS + 8 * wr_id, 8);
    post(pair.left(), wr_id, op, &[answer]);
}

fn answer(pair: &Pair, wr_id: u64) -> u64 {
    word(&pair.hosts[0], ANSWERS + 8 * wr_id)
}

#[test]
fn each_operation_changes_the_word_and_returns_the_old_value() {
    let mut pair = Pair::new(Options::default());
    set(pair.right(), WORD, 100);
    let ops = [
        fetch_add(&pair, WORD, 5),
        compare_swap(&pair, WORD, 105, 7),
        compare_swap(&pair, WORD, 105, 9),
        fetch_add(&pair, WORD, u64::MAX),
    ];
    for (wr_id, op) in (0..).zip(ops) {
        post_atomic(&mut pair, wr_id, op);
    }
    pair.run();
    assert_eq!(sends(pair.left()), [(0, OK), (1, OK), (2, OK), (3, OK)]);
    let answers: Vec<_> = (0..4).map(|wr_id| answer(&pair, wr_id)).collect();
    assert_eq!(answers, [100, 105, 7, 7]);
    assert_eq!(word(pair.right(), WORD), 6, "addition wraps");
    let told: Vec<_> = pair
        .left()
        .sends
        .iter()
        .map(|wc| (wc.opcode, wc.byte_len))
        .collect();
    use WcOpcode::{CompSwap, FetchAdd};
    assert_eq!(
        told,
        [(FetchAdd, 8), (CompSwap, 8), (CompSwap, 8), (FetchAdd, 8)]
    );
    assert!(pair.right().receives.is_empty());
}

#[test]
fn the_wire_carries_operands_and_result_in_network_order_and_the_memory_its_own() {
    let mut pair = Pair::new(Options::default());
    set(pair.right(), WORD, 0x0102_0304_0506_0708);
    let op = compare_swap(&pair, WORD, 0x0102_0304_0506_0708, 0x1112_1314_1516_1718);
    post_atomic(&mut pair, 0, op);
    pair.run();
    let request = pair.sent_by(0)[0];
    assert_eq!(request.opcode, Opcode::RcCompareSwap);
    assert!(request.headers.bth.ack_request);
    let eth = request.headers.atomic_eth.expect("an AtomicETH");
    assert_eq!(
        (eth.va, eth.rkey, eth.compare, eth.swap_or_add),
        (
            pair.hosts[1].base + WORD,
            KEY,
            0x0102_0304_0506_0708,
            0x1112_1314_1516_1718
        )
    );
    let mut bytes = [0; 64];
    let len = request.headers.emit(&mut bytes).expect("room");
    assert_eq!(
        bytes[len - 8..len],
        [1, 2, 3, 4, 5, 6, 7, 8],
        "the compare operand is the last field"
    );
    let answered = pair.sent_by(1)[0];
    assert_eq!(answered.opcode, Opcode::RcAtomicAck);
    assert_eq!(answered.psn, request.psn);
    let original = answered.headers.atomic_ack_eth.expect("its ETH").original;
    assert_eq!(original, 0x0102_0304_0506_0708);
}

#[test]
fn an_answer_may_be_scattered_over_several_pieces() {
    let mut pair = Pair::new(Options::default());
    set(pair.right(), WORD, 0xA1A2_A3A4_A5A6_A7A8);
    let op = fetch_add(&pair, WORD, 1);
    let pieces = [(0, 3), (100, 0), (200, 5)].map(|(at, len)| piece(pair.left(), at, len));
    post(pair.left(), 1, op, &pieces);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, OK)]);
    let expected = 0xA1A2_A3A4_A5A6_A7A8u64.to_ne_bytes();
    assert_eq!(pair.left().bytes(0, 3), &expected[..3]);
    assert_eq!(pair.left().bytes(200, 5), &expected[3..]);
}

#[test]
fn a_post_is_refused_without_eight_bytes_for_the_answer_or_agreed_atomics() {
    let mut pair = Pair::new(Options::default());
    let op = fetch_add(&pair, WORD, 1);
    let host = pair.left();
    let pieces = [piece(host, 0, 7), piece(host, 0, 9), piece(host, 0, 16)];
    let datas = pieces
        .iter()
        .map(|piece| SendData::Sges(std::slice::from_ref(piece)))
        .chain([SendData::Sges(&[]), SendData::Inline(&[0; 8])]);
    let wr = |data| SendWr {
        wr_id: 1,
        op,
        data,
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    for data in datas {
        let refused = host.qp.post_send(&wr(data));
        assert!(refused.is_err(), "{data:?}");
    }
    let mut pair = Pair::new(Options {
        rd_atomic: 0,
        ..Options::default()
    });
    let eight = [piece(pair.left(), 0, 8)];
    let refused = pair.left().qp.post_send(&wr(SendData::Sges(&eight)));
    assert!(refused.is_err(), "max_rd_atomic is 0");
}

#[test]
fn rights_key_range_domain_and_alignment_of_the_word_are_checked() {
    const OTHER_KEY: u32 = 0x2000_0002;
    let rights = all_rights();
    let no_atomics = rights - Access::REMOTE_ATOMIC;
    let access = (WcStatus::RemAccessErr, true);
    let invalid = (WcStatus::RemInvReqErr, false);
    // Rights of the queue pair and of the region, offset of its domain, the key, the address offset, and the
    // expected status.
    for (what, of_qp, of_region, domain, rkey, offset, (status, is_access)) in [
        ("unknown key", rights, rights, 0, 99, 0, access),
        (
            "region without right",
            rights,
            no_atomics,
            0,
            OTHER_KEY,
            0,
            access,
        ),
        ("other domain", rights, rights, 1, OTHER_KEY, 0, access),
        (
            "beyond the region",
            rights,
            rights,
            0,
            OTHER_KEY,
            4096,
            access,
        ),
        (
            "before the region",
            rights,
            rights,
            0,
            OTHER_KEY,
            -8,
            access,
        ),
        (
            "queue pair without right",
            no_atomics,
            rights,
            0,
            OTHER_KEY,
            0,
            invalid,
        ),
        ("not aligned", rights, rights, 0, OTHER_KEY, 4, invalid),
        (
            "not aligned at all",
            rights,
            rights,
            0,
            OTHER_KEY,
            1,
            invalid,
        ),
    ] {
        let mut pair = Pair::new(Options {
            access: of_qp,
            ..Options::default()
        });
        let pd = PdId(pair.right().pd().0 + domain);
        pair.right().register(OTHER_KEY, WORD, 4096, of_region, pd);
        let addr = (pair.right().base + WORD).wrapping_add_signed(offset);
        let remote = RemoteAddr { addr, rkey };
        post_atomic(&mut pair, 0, SendOp::AtomicFetchAdd { remote, add: 1 });
        post(pair.left(), 1, SendOp::Send, &[]);
        pair.run();
        assert_eq!(sends(pair.left()), [(0, status), (1, FLUSHED)], "{what}");
        assert_eq!(pair.right().atomics, 0, "{what}");
        let qpn = pair.right().qp.qpn();
        let event = match is_access {
            true => AsyncEvent::QpAccessErr(qpn),
            false => AsyncEvent::QpReqErr(qpn),
        };
        assert_eq!(pair.right().events, [event], "{what}");
    }
}

#[test]
fn memory_registered_under_an_address_of_other_alignment_is_refused() {
    const OTHER_KEY: u32 = 0x2000_0002;
    let mut pair = Pair::new(Options::default());
    let (pd, addr) = (pair.right().pd(), pair.right().base + WORD + 4);
    let region = portolan_roce::engine::Region {
        pd,
        iova: 0x1000,
        addr,
        length: 4096,
        access: all_rights(),
    };
    pair.right().memory.insert(OTHER_KEY, region).expect("room");
    let remote = RemoteAddr {
        addr: 0x1000,
        rkey: OTHER_KEY,
    };
    post_atomic(&mut pair, 0, SendOp::AtomicFetchAdd { remote, add: 1 });
    pair.run();
    assert_eq!(sends(pair.left()), [(0, WcStatus::RemInvReqErr)]);
    assert_eq!(pair.right().atomics, 0);
}

#[test]
fn an_atomic_without_writable_result_memory_fails_before_it_is_sent() {
    let mut pair = Pair::new(Options::default());
    let op = fetch_add(&pair, WORD, 1);
    let mut place = piece(pair.left(), 0, 8);
    place.lkey = 5;
    post(pair.left(), 1, op, &[place]);
    pair.run();
    assert_eq!(sends(pair.left()), [(1, WcStatus::LocProtErr)]);
    assert_eq!(pair.right().atomics, 0);
}

/// Adds, swaps, reads and sends, with a known final sum in the word.
fn mixture(pair: &mut Pair) {
    set(pair.right(), WORD, 1000);
    set(pair.right(), WORD + 8, 1);
    pair.right().fill(0, 5000, 3);
    post_recv(pair.right(), 1, &[]);
    let place = remote(pair.right(), 0);
    let target = piece(pair.left(), 0x1_0000, 5000);
    for (wr_id, op) in [
        fetch_add(pair, WORD, 1),
        compare_swap(pair, WORD + 8, 1, 2),
        fetch_add(pair, WORD, 10),
    ]
    .into_iter()
    .enumerate()
    {
        post_atomic(pair, wr_id as u64, op);
    }
    post(pair.left(), 3, SendOp::RdmaRead(place), &[target]);
    let op = compare_swap(pair, WORD + 8, 2, 3);
    post_atomic(pair, 4, op);
    post(pair.left(), 5, SendOp::Send, &[]);
    for wr_id in 6..12 {
        let op = fetch_add(pair, WORD, 100);
        post_atomic(pair, wr_id, op);
    }
}

fn assert_mixture_was_done_once(pair: &mut Pair, what: &str) {
    let all: Vec<_> = (0..12).map(|wr_id| (wr_id, OK)).collect();
    assert_eq!(sends(pair.left()), all, "{what}");
    assert_eq!(receives(pair.right()), [(1, OK)], "{what}");
    assert_eq!(pair.right().atomics, 10, "{what}");
    assert_eq!(word(pair.right(), WORD), 1611, "{what}");
    assert_eq!(word(pair.right(), WORD + 8), 3, "{what}");
    let answers: Vec<_> = (0..12).map(|wr_id| answer(pair, wr_id)).collect();
    assert_eq!(
        answers,
        [1000, 1, 1001, 0, 2, 0, 1011, 1111, 1211, 1311, 1411, 1511],
        "{what}"
    );
    let (read, source) = (
        pair.hosts[0].bytes(0x1_0000, 5000),
        pair.hosts[1].bytes(0, 5000),
    );
    assert_eq!(read, source, "{what}");
    assert_eq!(pair.states(), [QpState::Rts; 2], "{what}");
}

#[test]
fn each_is_executed_exactly_once_whichever_packet_is_lost_repeated_or_late() {
    let mut pair = Pair::new(Options::default());
    mixture(&mut pair);
    pair.run();
    assert_mixture_was_done_once(&mut pair, "nothing lost");
    let packets = pair.network.log.len();
    let late = Duration::from_micros(300);
    for action in [Action::Drop, Action::Repeat, Action::Delay(late)] {
        for victim in 1..=packets {
            let mut pair = Pair::new(Options::default());
            mixture(&mut pair);
            let mut index = 0;
            pair.network.script = Some(Box::new(move |_| {
                index += 1;
                if index == victim {
                    action
                } else {
                    Action::Pass
                }
            }));
            pair.run();
            assert_mixture_was_done_once(&mut pair, &format!("{action:?} of packet {victim}"));
        }
    }
}

#[test]
fn each_is_executed_exactly_once_over_many_seeds_of_loss_repetition_and_reordering() {
    for seed in 0..300 {
        let mut pair = Pair::new(Options {
            seed,
            rd_atomic: 1 + (seed % 4) as u8,
            psn: 0xFF_FFF8 + (seed % 8) as u32,
            ..Options::default()
        });
        pair.network.faults = Faults {
            lost_permille: 150,
            repeated_permille: 150,
            delayed_permille: 150,
        };
        mixture(&mut pair);
        pair.run();
        assert_mixture_was_done_once(&mut pair, &format!("seed {seed}"));
    }
}

#[test]
fn no_more_atomics_are_in_flight_than_agreed() {
    let mut pair = Pair::new(Options {
        rd_atomic: 2,
        ..Options::default()
    });
    for wr_id in 0..5 {
        let op = fetch_add(&pair, WORD, 1);
        post_atomic(&mut pair, wr_id, op);
    }
    pair.transmit();
    assert_eq!(pair.sent_by(0).len(), 2);
    pair.run();
    assert_eq!(word(pair.right(), WORD), 5);
}

/// Linux RXE_MAX_QP_RD_ATOM and RXE_MAX_QP_INIT_RD_ATOM. Programs that exchange their devices' limits, as
/// perftest does, set their own queue pair to the other's limit.
const RXE_RD_ATOMIC_MAX: u8 = 128;

#[test]
fn as_many_may_be_agreed_as_linux_rdma_rxe_offers() {
    let mut pair = Pair::new(Options {
        rd_atomic: RXE_RD_ATOMIC_MAX,
        ..Options::default()
    });
    for wr_id in 0..5 {
        let op = fetch_add(&pair, WORD, 1);
        post_atomic(&mut pair, wr_id, op);
    }
    pair.run();
    assert_eq!(word(pair.right(), WORD), 5);
}

#[test]
fn a_fenced_request_waits_for_the_atomics_before_it() {
    let mut pair = Pair::new(Options::default());
    let op = fetch_add(&pair, WORD, 1);
    post_atomic(&mut pair, 0, op);
    let (source, target) = (
        piece(pair.left(), ANSWERS, 8),
        remote(pair.right(), WORD + 64),
    );
    set(pair.right(), WORD, 77);
    // It sends the atomic's result.
    post_with(
        pair.left(),
        1,
        SendOp::RdmaWrite(target),
        &[source],
        SendFlags::SIGNALED | SendFlags::FENCE,
    );
    pair.transmit();
    assert_eq!(pair.sent_by(0).len(), 1);
    pair.run();
    assert_eq!(sends(pair.left()), [(0, OK), (1, OK)]);
    assert_eq!(word(pair.right(), WORD + 64), 77);
}

#[test]
fn an_atomic_sees_earlier_writes() {
    let mut pair = Pair::new(Options::default());
    set(pair.left(), 0, 41);
    let (source, target) = (piece(pair.left(), 0, 8), remote(pair.right(), WORD));
    post(pair.left(), 0, SendOp::RdmaWrite(target), &[source]);
    let op = fetch_add(&pair, WORD, 1);
    post_atomic(&mut pair, 1, op);
    pair.run();
    assert_eq!(answer(&pair, 1), 41);
    assert_eq!(word(pair.right(), WORD), 42);
}

/// A request that the left host could send first.
fn request(pair: &Pair, psn: u32, add: u64) -> Headers {
    let mut headers = Headers::new(Opcode::RcFetchAdd, Host::qpn(1), Psn::new(psn));
    headers.atomic_eth = Some(AtomicEthRepr {
        va: pair.hosts[1].base + WORD,
        rkey: KEY,
        swap_or_add: add,
        compare: 0,
    });
    headers
}

#[test]
fn a_copy_of_a_request_with_other_contents_is_dropped() {
    let mut pair = Pair::new(Options::default());
    let (first, other) = (request(&pair, 100, 5), request(&pair, 100, 6));
    pair.right().receive_headers(&first, &[]);
    pair.transmit();
    pair.right().receive_headers(&other, &[]);
    pair.transmit();
    assert_eq!(pair.sent_by(1).len(), 1, "the copy is not answered");
    assert_eq!(pair.right().qp.counters().drops(DropReason::StaleAtomic), 1);
    pair.right().receive_headers(&first, &[]);
    pair.transmit();
    let originals: Vec<_> = pair
        .sent_by(1)
        .iter()
        .map(|sent| sent.headers.atomic_ack_eth.map(|eth| eth.original))
        .collect();
    assert_eq!(
        originals,
        [Some(0), Some(0)],
        "the same answer is sent again"
    );
    assert_eq!(pair.right().atomics, 1);
}

#[test]
fn a_result_is_kept_for_exactly_as_many_requests_as_agreed() {
    let mut pair = Pair::new(Options {
        rd_atomic: 2,
        ..Options::default()
    });
    for psn in 100..103 {
        let request = request(&pair, psn, 1);
        pair.right().receive_headers(&request, &[]);
        pair.transmit();
    }
    for (psn, answers) in [(100, 3), (101, 4), (102, 5)] {
        let request = request(&pair, psn, 1);
        pair.right().receive_headers(&request, &[]);
        pair.transmit();
        assert_eq!(pair.sent_by(1).len(), answers, "PSN {psn}");
    }
    assert_eq!(pair.right().atomics, 3);
}

#[test]
fn more_atomics_than_agreed_are_an_invalid_request() {
    let mut pair = Pair::new(Options {
        rd_atomic: 2,
        ..Options::default()
    });
    // None is answered meanwhile.
    for psn in 100..103 {
        let request = request(&pair, psn, 1);
        pair.right().receive_headers(&request, &[]);
    }
    assert_eq!(pair.right().qp.state(), QpState::Err);
    assert_eq!(pair.right().atomics, 2);
}

#[test]
fn answers_that_do_not_match_a_request_are_bad_responses() {
    let answer = |psn: u32, syndrome| {
        let mut headers = Headers::new(Opcode::RcAtomicAck, Host::qpn(0), Psn::new(psn));
        headers.aeth = Some(AethRepr { syndrome, msn: 1 });
        headers.atomic_ack_eth = Some(AtomicAckEthRepr { original: 9 });
        headers
    };
    let ack = Syndrome::Ack { credits: 31 };
    // What was requested (an atomic or a write), and the answer.
    for (what, is_atomic, syndrome) in [
        (
            "a refusal as an answer",
            true,
            Syndrome::Nak(NakCode::RemoteAccessError),
        ),
        ("an answer to a write", false, ack),
    ] {
        let mut pair = Pair::new(Options::default());
        let op = match is_atomic {
            true => fetch_add(&pair, WORD, 1),
            false => SendOp::RdmaWrite(remote(pair.right(), WORD)),
        };
        post_atomic(&mut pair, 0, op);
        pair.transmit();
        pair.left().receive_headers(&answer(100, syndrome), &[]);
        assert_eq!(sends(pair.left()), [(0, WcStatus::BadRespErr)], "{what}");
        assert_eq!(pair.left().placements, 0, "{what}");
    }
}

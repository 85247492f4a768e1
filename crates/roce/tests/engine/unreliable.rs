//! UC queue pairs: messages arrive complete or not at all, without answers.

use std::time::Duration;

use portolan_provider::error::errno;
use portolan_provider::verbs::{
    Access, AsyncEvent, QpAttr, QpState, QpType, SendData, SendFlags, SendOp, SendWr, WcOpcode,
    WcStatus,
};
use portolan_roce::engine::DropReason;
use portolan_wire::Psn;
use portolan_wire::bth::Opcode;

use crate::harness::{
    Action, Faults, Host, Options, Pair, connect_attr, parse, pattern, piece, post, post_recv,
    receives, remote, sends,
};

fn options() -> Options {
    Options {
        qp_type: QpType::Uc,
        ..Options::default()
    }
}

/// Loses the left host's packet with this PSN.
fn lose(pair: &mut Pair, psn: u32) {
    pair.network.script = Some(Box::new(move |sent| {
        match sent.from == 0 && sent.psn == Psn::new(psn) {
            true => Action::Drop,
            false => Action::Pass,
        }
    }));
}

#[test]
fn sends_and_writes_of_several_packets_arrive_without_a_single_answer() {
    let mut pair = Pair::new(options());
    pair.left().fill(0, 5000, 1);
    let (from, into) = (piece(pair.left(), 0, 5000), piece(pair.right(), 0, 8000));
    post_recv(pair.right(), 10, &[into]);
    post_recv(pair.right(), 11, &[into]);
    post(pair.left(), 1, SendOp::SendWithImm(7), &[from]);
    let there = remote(pair.right(), 10_000);
    post(pair.left(), 2, SendOp::RdmaWrite(there), &[from]);
    let there = remote(pair.right(), 20_000);
    post(pair.left(), 3, SendOp::RdmaWriteWithImm(there, 8), &[from]);
    pair.run();
    assert_eq!(
        sends(pair.left()),
        [1, 2, 3].map(|id| (id, WcStatus::Success))
    );
    let wcs: Vec<_> = pair
        .right()
        .receives
        .iter()
        .map(|(wc, _)| (wc.wr_id, wc.opcode, wc.byte_len, wc.imm_data))
        .collect();
    let expected = [
        (10, WcOpcode::Recv, 5000, Some(7)),
        (11, WcOpcode::RecvRdmaWithImm, 5000, Some(8)),
    ];
    assert_eq!(wcs, expected);
    for offset in [0, 10_000, 20_000] {
        assert_eq!(pair.right().bytes(offset, 5000), pattern(5000, 1));
    }
    assert!(pair.sent_by(1).is_empty(), "an answer was sent");
    assert!(
        pair.sent_by(0)
            .iter()
            .all(|sent| !sent.headers.bth.ack_request)
    );
    assert_eq!(pair.left().qp.poll_timeout(), None);
}

#[test]
fn packets_have_the_transports_opcodes_in_order() {
    let mut pair = Pair::new(options());
    let from = piece(pair.left(), 0, 2500);
    let there = remote(pair.right(), 0);
    post(pair.left(), 1, SendOp::Send, &[from]);
    post(pair.left(), 2, SendOp::RdmaWriteWithImm(there, 1), &[from]);
    pair.run();
    use Opcode::*;
    let opcodes: Vec<Opcode> = pair.sent_by(0).iter().map(|sent| sent.opcode).collect();
    let expected = [
        UcSendFirst,
        UcSendMiddle,
        UcSendLast,
        UcWriteFirst,
        UcWriteMiddle,
        UcWriteLastImm,
    ];
    assert_eq!(opcodes, expected);
    let psns: Vec<u32> = pair
        .sent_by(0)
        .iter()
        .map(|sent| sent.psn.value())
        .collect();
    assert_eq!(psns, [100, 101, 102, 103, 104, 105]);
}

#[test]
fn a_message_that_lost_a_packet_is_dropped_and_its_receive_takes_the_next() {
    // Each packet of a message of three in turn.
    for lost in 100..103 {
        let mut pair = Pair::new(options());
        lose(&mut pair, lost);
        pair.left().fill(0, 2500, 1);
        pair.left().fill(3000, 2500, 2);
        let into = piece(pair.right(), 0, 3000);
        post_recv(pair.right(), 10, &[into]);
        let (first, second) = (piece(pair.left(), 0, 2500), piece(pair.left(), 3000, 2500));
        post(pair.left(), 1, SendOp::Send, &[first]);
        post(pair.left(), 2, SendOp::Send, &[second]);
        pair.run();
        assert_eq!(sends(pair.left()), [1, 2].map(|id| (id, WcStatus::Success)));
        assert_eq!(
            receives(pair.right()),
            [(10, WcStatus::Success)],
            "lost {lost}"
        );
        assert_eq!(pair.right().bytes(0, 2500), pattern(2500, 2));
    }
}

#[test]
fn a_write_that_lost_its_last_packet_causes_no_completion() {
    let mut pair = Pair::new(options());
    lose(&mut pair, 101);
    let into = piece(pair.right(), 0, 8);
    post_recv(pair.right(), 10, &[into]);
    let (from, there) = (piece(pair.left(), 0, 2048), remote(pair.right(), 5000));
    post(pair.left(), 1, SendOp::RdmaWriteWithImm(there, 1), &[from]);
    post(pair.left(), 2, SendOp::RdmaWriteWithImm(there, 2), &[from]);
    pair.run();
    let wcs = &pair.right().receives;
    assert_eq!(wcs.len(), 1);
    assert_eq!(wcs[0].0.imm_data, Some(2));
}

#[test]
fn under_loss_and_reordering_messages_arrive_complete_and_in_order() {
    const MESSAGES: u64 = 40;
    const BYTES: u32 = 3000;
    let mut arrived_in_all = 0;
    for seed in 0..40 {
        let mut pair = Pair::new(Options { seed, ..options() });
        pair.network.faults = Faults {
            lost_permille: 60,
            repeated_permille: 0,
            delayed_permille: 10,
        };
        for message in 0..MESSAGES {
            let at = message * 4000;
            let into = piece(pair.right(), at, BYTES);
            post_recv(pair.right(), message, &[into]);
            pair.left().fill(at, BYTES as usize, message);
            let from = piece(pair.left(), at, BYTES);
            post(
                pair.left(),
                message,
                SendOp::SendWithImm(message as u32),
                &[from],
            );
        }
        pair.run();
        let received = receives(pair.right());
        let numbers: Vec<u32> = pair
            .right()
            .receives
            .iter()
            .filter_map(|(wc, _)| wc.imm_data)
            .collect();
        assert_eq!(numbers.len(), received.len());
        assert!(
            numbers.is_sorted_by(|a, b| a < b),
            "seed {seed}: {numbers:?}"
        );
        for (index, number) in numbers.iter().enumerate() {
            let bytes = pair.right().bytes(index as u64 * 4000, BYTES as usize);
            assert_eq!(
                bytes,
                pattern(BYTES as usize, (*number).into()),
                "seed {seed}"
            );
        }
        assert_eq!(pair.states(), [QpState::Rts; 2]);
        arrived_in_all += numbers.len();
    }
    assert!(
        arrived_in_all > 40 * 20,
        "only {arrived_in_all} messages arrived"
    );
}

#[test]
fn without_a_receive_a_message_is_dropped_and_counted() {
    let mut pair = Pair::new(options());
    let (from, there) = (piece(pair.left(), 0, 100), remote(pair.right(), 5000));
    post(pair.left(), 1, SendOp::Send, &[from]);
    post(pair.left(), 2, SendOp::RdmaWriteWithImm(there, 2), &[from]);
    pair.run();
    assert_eq!(pair.right().qp.counters().drops(DropReason::NoReceive), 2);
    assert_eq!(pair.states(), [QpState::Rts; 2]);
}

#[test]
fn a_message_longer_than_its_receive_fails_only_that_receive() {
    let mut pair = Pair::new(options());
    let (short, enough) = (
        piece(pair.right(), 0, 1500),
        piece(pair.right(), 2000, 3000),
    );
    post_recv(pair.right(), 1, &[short]);
    post_recv(pair.right(), 2, &[enough]);
    let from = piece(pair.left(), 0, 3000);
    post(pair.left(), 1, SendOp::Send, &[from]);
    post(pair.left(), 2, SendOp::Send, &[from]);
    pair.run();
    let ended = [(1, WcStatus::LocLenErr), (2, WcStatus::Success)];
    assert_eq!(receives(pair.right()), ended);
    assert_eq!(pair.states(), [QpState::Rts; 2]);
}

#[test]
fn a_write_without_permission_is_dropped_and_counted() {
    let forbidding = Options {
        access: Access::LOCAL_WRITE,
        ..options()
    };
    for (options, key) in [(forbidding, None), (options(), Some(0xdead))] {
        let mut pair = Pair::new(options);
        pair.left().fill(0, 3000, 1);
        let (from, mut there) = (piece(pair.left(), 0, 3000), remote(pair.right(), 0));
        there.rkey = key.unwrap_or(there.rkey);
        post(pair.left(), 1, SendOp::RdmaWrite(there), &[from]);
        pair.run();
        assert_eq!(pair.right().qp.counters().drops(DropReason::Access), 1);
        assert_eq!(pair.right().placements, 0);
        assert_eq!(pair.states(), [QpState::Rts; 2]);
    }
}

#[test]
fn a_write_may_not_exceed_the_length_in_its_first_packet() {
    let mut pair = Pair::new(options());
    let (from, there) = (piece(pair.left(), 0, 2048), remote(pair.right(), 0));
    post(pair.left(), 1, SendOp::RdmaWrite(there), &[from]);
    let first = pair.left().next_packet(Duration::ZERO).unwrap();
    pair.right().receive(Duration::ZERO, &first);
    let mut headers = parse(&first).headers();
    headers.bth.opcode = Opcode::UcWriteMiddle;
    headers.reth = None;
    // Two more full packets; the message has room for only one, which must end it.
    for ahead in 1..3 {
        headers.bth.psn = Psn::new(100 + ahead);
        pair.right().receive_headers(&headers, &[0xff; 1024]);
    }
    assert_eq!(pair.right().placements, 1);
    assert_eq!(pair.right().qp.counters().drops(DropReason::Malformed), 1);
    assert_eq!(
        pair.right().qp.counters().drops(DropReason::OutOfSequence),
        1
    );
}

#[test]
fn reads_and_atomics_are_refused() {
    let mut pair = Pair::new(options());
    let (sges, there) = ([piece(pair.left(), 0, 8)], remote(pair.right(), 0));
    let atomic = SendOp::AtomicFetchAdd {
        remote: there,
        add: 1,
    };
    for op in [SendOp::RdmaRead(there), atomic, SendOp::SendWithInv(1)] {
        let wr = SendWr {
            wr_id: 1,
            op,
            data: SendData::Sges(&sges),
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        };
        let error = pair.left().qp.post_send(&wr).unwrap_err();
        assert_eq!(error.errno(), errno::EINVAL);
        assert!(error.to_string().contains("UC"), "{error}");
    }
}

#[test]
fn the_first_packet_of_the_peer_in_rtr_reports_an_established_connection() {
    let mut pair = Pair::new(options());
    let mut early = Host::new(1, &options());
    for state in [QpState::Init, QpState::Rtr] {
        early.modify(&QpAttr {
            state,
            ..connect_attr(1, &options())
        });
    }
    let sge = piece(&early, 0, 100);
    post_recv(&mut early, 1, &[sge]);
    let from = piece(pair.left(), 0, 8);
    post(pair.left(), 1, SendOp::Send, &[from]);
    let bytes = pair.left().next_packet(Duration::ZERO).unwrap();
    early.receive(Duration::ZERO, &bytes);
    assert_eq!(early.events, [AsyncEvent::CommEst(Host::qpn(1))]);
    assert_eq!(receives(&early), [(1, WcStatus::Success)]);
}

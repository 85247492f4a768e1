//! UD queue pairs: each datagram has its own destination, and arrives or is lost individually.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use portolan_provider::error::errno;
use portolan_provider::verbs::{
    Mtu, QpAttr, QpAttrMask, QpState, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge,
    WcOpcode, WcStatus,
};
use portolan_provider::{Error, Result};
use portolan_roce::engine::{Destination, DropReason, Path, QpConfig, QueuePair};
use portolan_wire::bth::Opcode;
use portolan_wire::{QKey, Qpn};

use crate::golden::capture;
use crate::harness::{
    Host, NETWORK_HEADER, Options, Pair, QKEY, all_rights, connect_attr, parse, pattern, piece,
    post_recv, receives, sends,
};

const GRH: usize = NETWORK_HEADER.len();

pub(crate) fn options() -> Options {
    Options {
        qp_type: QpType::Ud,
        ..Options::default()
    }
}

/// The address vector of a host, identified by its last byte.
fn path(last: u8) -> Path {
    Path {
        local: Ipv4Addr::new(10, 0, 0, 1).into(),
        remote: SocketAddr::from(([10, 0, 0, last], 4791)),
        interface: 0,
        traffic_class: 0,
        hop_limit: 64,
    }
}

/// The right host of a pair.
pub(crate) fn right() -> Destination {
    Destination {
        path: path(2),
        qpn: Host::qpn(1),
        qkey: QKEY,
    }
}

fn datagram<'a>(wr_id: u64, op: SendOp, data: SendData<'a>) -> SendWr<'a> {
    SendWr {
        wr_id,
        op,
        data,
        flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
        ud: None,
        srq: None,
    }
}

fn try_send(host: &mut Host, wr_id: u64, op: SendOp, sge: Sge, to: Destination) -> Result<()> {
    let sges = [sge];
    let posted = host
        .qp
        .post_datagram(&datagram(wr_id, op, SendData::Sges(&sges)), to);
    host.drain();
    posted
}

pub(crate) fn send(host: &mut Host, wr_id: u64, sge: Sge, to: Destination) {
    try_send(host, wr_id, SendOp::Send, sge, to).expect("the send queue takes it");
}

#[test]
fn a_datagram_fills_a_receive_after_its_network_header_and_names_its_sender() {
    let mut pair = Pair::new(options());
    let data = pattern(1000, 5);
    pair.left().fill(0, 1000, 5);
    let pieces = [piece(pair.right(), 0, 30), piece(pair.right(), 64, 2000)];
    post_recv(pair.right(), 9, &pieces);
    let from = piece(pair.left(), 0, 1000);
    let op = SendOp::SendWithImm(0xaabb_ccdd);
    try_send(pair.left(), 4, op, from, right()).unwrap();
    pair.run();
    assert_eq!(sends(pair.left()), [(4, WcStatus::Success)]);
    let (wc, solicited) = pair.right().receives[0];
    assert!(solicited);
    assert_eq!(
        (wc.wr_id, wc.status, wc.opcode),
        (9, WcStatus::Success, WcOpcode::Recv)
    );
    assert_eq!((wc.byte_len, wc.imm_data), (1040, Some(0xaabb_ccdd)));
    assert_eq!((wc.src_qp, wc.has_grh), (Host::qpn(0), true));
    // The 40 bytes of the header are split over two pieces of memory.
    assert_eq!(pair.right().bytes(0, 30), &NETWORK_HEADER[..30]);
    assert_eq!(pair.right().bytes(64, 10), &NETWORK_HEADER[30..]);
    assert_eq!(pair.right().bytes(74, 1000), data);
}

#[test]
fn each_datagram_takes_its_own_path_to_its_own_queue_pair() {
    let mut host = Host::new(0, &options());
    host.connect(&options());
    let group = Destination {
        path: path(9),
        qpn: Qpn::MULTICAST,
        qkey: QKey(7),
    };
    let from = piece(&host, 0, 5);
    send(&mut host, 1, from, right());
    send(&mut host, 2, from, group);
    let memory = &host.memory;
    let mut seen = Vec::new();
    while let Some(transmit) = host.qp.poll_transmit(Duration::ZERO, memory, 4096) {
        let deth = transmit.headers.deth.unwrap();
        assert_eq!(transmit.headers.bth.pad_count, 3);
        assert_eq!(deth.src_qp, Host::qpn(0));
        let psn = transmit.headers.bth.psn.value();
        seen.push((transmit.path, transmit.headers.bth.dest_qp, deth.qkey, psn));
    }
    let expected = [(right(), 100), (group, 101)];
    assert_eq!(
        seen,
        expected.map(|(to, psn)| (Some(to.path), to.qpn, to.qkey, psn))
    );
}

#[test]
fn inline_datagrams_carry_the_bytes_as_they_were_posted() {
    let mut pair = Pair::new(options());
    for wr_id in 0..3u8 {
        let receive = piece(pair.right(), u64::from(wr_id) * 100, 50);
        post_recv(pair.right(), wr_id.into(), &[receive]);
    }
    for number in 0..3u8 {
        let bytes = [number; 10];
        let wr = datagram(number.into(), SendOp::Send, SendData::Inline(&bytes));
        pair.left().qp.post_datagram(&wr, right()).unwrap();
    }
    pair.run();
    for number in 0..3u8 {
        assert_eq!(
            pair.right().bytes(u64::from(number) * 100 + 40, 10),
            [number; 10]
        );
    }
    let done = [0, 1, 2].map(|wr_id| (wr_id, WcStatus::Success));
    assert_eq!(sends(pair.left()), done);
    assert_eq!(receives(pair.right()), done);
}

#[test]
fn a_wrong_q_key_is_dropped_and_counted_and_takes_no_receive() {
    let mut pair = Pair::new(options());
    let (from, into) = (piece(pair.left(), 0, 8), piece(pair.right(), 0, 100));
    post_recv(pair.right(), 1, &[into]);
    let wrong = Destination {
        qkey: QKey(QKEY.0 ^ 1),
        ..right()
    };
    send(pair.left(), 1, from, wrong);
    pair.run();
    // Its sender does not notice.
    assert_eq!(sends(pair.left()), [(1, WcStatus::Success)]);
    assert_eq!(receives(pair.right()), []);
    assert_eq!(pair.right().qp.counters().drops(DropReason::QKey), 1);
    send(pair.left(), 2, from, right());
    pair.run();
    assert_eq!(receives(pair.right()), [(1, WcStatus::Success)]);
}

#[test]
fn a_q_key_with_the_highest_bit_set_is_replaced_by_the_senders_own() {
    let mut pair = Pair::new(options());
    let (from, into) = (piece(pair.left(), 0, 8), piece(pair.right(), 0, 100));
    post_recv(pair.right(), 1, &[into]);
    let controlled = Destination {
        qkey: QKey::GSI,
        ..right()
    };
    send(pair.left(), 1, from, controlled);
    pair.run();
    assert_eq!(pair.sent_by(0)[0].headers.deth.unwrap().qkey, QKEY);
    assert_eq!(receives(pair.right()), [(1, WcStatus::Success)]);
}

#[test]
fn a_changed_q_key_applies_to_later_datagrams() {
    let mut pair = Pair::new(options());
    let into = piece(pair.right(), 0, 100);
    post_recv(pair.right(), 1, &[into]);
    let attr = QpAttr {
        qkey: QKey(5),
        ..QpAttr::default()
    };
    pair.right().qp.modify(&attr, QpAttrMask::QKEY).unwrap();
    assert_eq!(pair.right().qp.query().0.qkey, QKey(5));
    let from = piece(pair.left(), 0, 8);
    send(pair.left(), 1, from, right());
    let new = Destination {
        qkey: QKey(5),
        ..right()
    };
    send(pair.left(), 2, from, new);
    pair.run();
    assert_eq!(pair.right().qp.counters().drops(DropReason::QKey), 1);
    assert_eq!(receives(pair.right()).len(), 1);
}

#[test]
fn without_a_receive_datagrams_are_lost_and_later_ones_arrive() {
    let mut pair = Pair::new(options());
    let from = piece(pair.left(), 0, 8);
    send(pair.left(), 1, from, right());
    pair.run();
    let counters = pair.right().qp.counters();
    assert_eq!(counters.drops(DropReason::NoReceive), 1);
    let into = piece(pair.right(), 0, 48);
    post_recv(pair.right(), 7, &[into]);
    send(pair.left(), 2, from, right());
    pair.run();
    assert_eq!(receives(pair.right()), [(7, WcStatus::Success)]);
    assert_eq!(pair.states(), [QpState::Rts; 2]);
}

#[test]
fn a_datagram_too_long_for_its_receive_fails_only_that_receive() {
    let mut pair = Pair::new(options());
    let (short, enough) = (piece(pair.right(), 0, 47), piece(pair.right(), 100, 48));
    post_recv(pair.right(), 1, &[short]);
    post_recv(pair.right(), 2, &[enough]);
    let from = piece(pair.left(), 0, 8);
    send(pair.left(), 1, from, right());
    send(pair.left(), 2, from, right());
    pair.run();
    let ended = [(1, WcStatus::LocLenErr), (2, WcStatus::Success)];
    assert_eq!(receives(pair.right()), ended);
    assert_eq!(
        pair.right().bytes(0, 47),
        [0; 47],
        "the receive must stay unwritten"
    );
    assert_eq!(pair.states(), [QpState::Rts; 2]);
    assert_eq!(pair.right().qp.counters().drops(DropReason::Length), 1);
}

#[test]
fn more_bytes_than_the_ports_mtu_are_refused_and_the_mtu_itself_arrives() {
    let mut pair = Pair::new(options());
    let mtu = Mtu::Mtu4096.bytes() as u32;
    let into = piece(pair.right(), 0, mtu + 40);
    post_recv(pair.right(), 1, &[into]);
    pair.left().fill(0, mtu as usize, 3);
    let (fits, too_long) = (piece(pair.left(), 0, mtu), piece(pair.left(), 0, mtu + 1));
    let error = try_send(pair.left(), 1, SendOp::Send, too_long, right()).unwrap_err();
    assert_eq!(error.errno(), errno::EINVAL);
    assert!(error.to_string().contains("4096"), "{error}");
    send(pair.left(), 2, fits, right());
    pair.run();
    assert_eq!(sends(pair.left()), [(2, WcStatus::Success)]);
    assert_eq!(pair.right().receives[0].0.byte_len, mtu + 40);
    let data = pattern(mtu as usize, 3);
    assert_eq!(pair.right().bytes(GRH as u64, mtu as usize), data);
}

#[test]
fn operations_that_datagrams_lack_are_refused_by_name() {
    let mut pair = Pair::new(options());
    let (from, remote) = (
        piece(pair.left(), 0, 8),
        crate::harness::remote(pair.right(), 0),
    );
    let einval = |error: Error, word: &str| {
        assert_eq!(error.errno(), errno::EINVAL);
        assert!(error.to_string().contains(word), "{error}");
    };
    for op in [SendOp::RdmaWrite(remote), SendOp::RdmaRead(remote)] {
        einval(
            try_send(pair.left(), 1, op, from, right()).unwrap_err(),
            "UD",
        );
    }
    let sges = [from];
    let wr = datagram(1, SendOp::Send, SendData::Sges(&sges));
    einval(pair.left().qp.post_send(&wr).unwrap_err(), "address handle");
    let mut connected = Pair::new(Options::default());
    let error = connected.left().qp.post_datagram(&wr, right()).unwrap_err();
    einval(error, "connected");
    let mut early = Host::new(0, &options());
    early.modify(&QpAttr {
        state: QpState::Init,
        ..connect_attr(0, &options())
    });
    assert!(
        early.qp.post_datagram(&wr, right()).is_err(),
        "sent in INIT"
    );
}

#[test]
fn unreadable_memory_stops_only_the_send_queue_which_can_be_restarted() {
    let mut pair = Pair::new(options());
    let good = piece(pair.left(), 0, 8);
    let bad = Sge { lkey: 77, ..good };
    send(pair.left(), 1, good, right());
    send(pair.left(), 2, bad, right());
    send(pair.left(), 3, good, right());
    pair.run();
    let ended = [
        (1, WcStatus::Success),
        (2, WcStatus::LocProtErr),
        (3, WcStatus::WrFlushErr),
    ];
    assert_eq!(sends(pair.left()), ended);
    assert_eq!(pair.left().qp.state(), QpState::Sqe);
    // Work posted meanwhile is flushed; arriving datagrams are received.
    send(pair.left(), 4, good, right());
    assert_eq!(sends(pair.left())[3], (4, WcStatus::WrFlushErr));
    let into = piece(pair.left(), 100, 100);
    post_recv(pair.left(), 5, &[into]);
    let to_left = Destination {
        qpn: Host::qpn(0),
        ..right()
    };
    let from = piece(pair.right(), 0, 8);
    send(pair.right(), 6, from, to_left);
    pair.run();
    assert_eq!(receives(pair.left()), [(5, WcStatus::Success)]);
    let attr = QpAttr {
        state: QpState::Rts,
        ..QpAttr::default()
    };
    pair.left().qp.modify(&attr, QpAttrMask::STATE).unwrap();
    send(pair.left(), 7, good, right());
    pair.run();
    assert_eq!(sends(pair.left())[4], (7, WcStatus::Success));
    // PSNs of unsent datagrams are reused.
    let psns: Vec<u32> = pair
        .sent_by(0)
        .iter()
        .map(|sent| sent.psn.value())
        .collect();
    assert_eq!(psns, [100, 104]);
}

#[test]
fn unwritable_memory_fails_its_receive_and_the_queue_pair() {
    let mut pair = Pair::new(options());
    let into = piece(pair.right(), 0, 100);
    // The header fits the first piece; the data would go to memory without permission.
    let pieces = [Sge { length: 40, ..into }, Sge { lkey: 77, ..into }];
    post_recv(pair.right(), 1, &pieces);
    post_recv(pair.right(), 2, &[into]);
    let from = piece(pair.left(), 0, 8);
    send(pair.left(), 1, from, right());
    pair.run();
    let ended = [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)];
    assert_eq!(receives(pair.right()), ended);
    assert_eq!(
        pair.right().bytes(0, 100),
        [0; 100],
        "nothing may be placed"
    );
    assert_eq!(pair.right().qp.state(), QpState::Err);
}

#[test]
fn leaving_for_error_or_reset_flushes_or_forgets_both_queues() {
    for (state, expected) in [
        (QpState::Err, Some(WcStatus::WrFlushErr)),
        (QpState::Reset, None),
    ] {
        let mut host = Host::new(0, &options());
        host.connect(&options());
        let sge = piece(&host, 0, 100);
        post_recv(&mut host, 1, &[sge]);
        send(&mut host, 2, sge, right());
        host.modify(&QpAttr {
            state,
            ..connect_attr(0, &options())
        });
        assert_eq!(sends(&host).first().map(|end| end.1), expected);
        assert_eq!(receives(&host).first().map(|end| end.1), expected);
        assert_eq!(host.next_packet(Duration::ZERO), None);
    }
}

#[test]
fn packets_of_other_transports_and_states_are_dropped() {
    let mut pair = Pair::new(options());
    let from = piece(pair.left(), 0, 8);
    send(pair.left(), 1, from, right());
    let bytes = pair.left().next_packet(Duration::ZERO).unwrap();
    let into = piece(pair.right(), 0, 100);
    post_recv(pair.right(), 1, &[into]);
    let mut connected = parse(&bytes).headers();
    connected.bth.opcode = Opcode::UcSendOnly;
    connected.deth = None;
    pair.right().receive_headers(&connected, &[0; 8]);
    assert_eq!(pair.right().qp.counters().drops(DropReason::Transport), 1);
    let mut early = Host::new(1, &options());
    early.modify(&QpAttr {
        state: QpState::Init,
        ..connect_attr(1, &options())
    });
    early.receive(Duration::ZERO, &bytes);
    assert_eq!(early.qp.counters().drops(DropReason::State), 1);
    assert_eq!(receives(pair.right()), []);
}

/// Our queue pair sends and receives each datagram that one kernel sent to another.
#[test]
fn the_datagrams_of_kernels_are_sent_and_received_byte_for_byte() {
    let capture = capture();
    let mut seen = (0, 0);
    for captured in &capture {
        let packet = captured.packet();
        let Some(deth) = packet.deth().filter(|_| packet.mad().is_none()) else {
            continue;
        };
        let len = packet.payload().len() as u32;
        let mut host = Host::new(0, &options());
        let config = QpConfig {
            qpn: deth.src_qp,
            pd: host.pd(),
            init: host.qp.query().1,
            limits: Default::default(),
            flow: Default::default(),
        };
        host.qp = QueuePair::new(config).unwrap();
        let attr = QpAttr {
            qkey: deth.qkey,
            sq_psn: packet.bth().psn,
            access: all_rights(),
            ..QpAttr::default()
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            host.modify(&QpAttr { state, ..attr });
        }
        host.ram[..len as usize].copy_from_slice(packet.payload());
        let op = match packet.immdt() {
            Some(immdt) => SendOp::SendWithImm(u32::from_ne_bytes(immdt.0)),
            None => SendOp::Send,
        };
        let to = Destination {
            path: path(2),
            qpn: packet.bth().dest_qp,
            qkey: deth.qkey,
        };
        let sges = [piece(&host, 0, len)];
        let mut wr = datagram(1, op, SendData::Sges(&sges));
        wr.flags.set(SendFlags::SOLICITED, packet.bth().solicited);
        host.qp.post_datagram(&wr, to).unwrap();
        let sent = host.next_packet(Duration::ZERO).unwrap();
        let mut headers = parse(&sent).headers();
        // rxe clears the migration bit, hardware sets it.
        headers.bth.migreq = packet.bth().migreq;
        assert_eq!(headers, packet.headers());
        assert_eq!(parse(&sent).payload(), packet.payload());

        let into = piece(&host, 1000, len + 40);
        let wr = RecvWr {
            wr_id: 2,
            sges: &[into],
        };
        host.qp.post_recv(&wr).unwrap();
        host.receive(Duration::ZERO, &captured.bytes);
        assert_eq!(receives(&host), [(2, WcStatus::Success)]);
        assert_eq!(host.receives[0].0.src_qp, deth.src_qp);
        assert_eq!(host.bytes(1040, len as usize), packet.payload());
        match packet.bth().dest_qp {
            Qpn::MULTICAST => seen.1 += 1,
            _ => seen.0 += 1,
        }
    }
    assert!(
        seen.0 >= 3 && seen.1 >= 3,
        "datagrams in the capture: {seen:?}"
    );
}

//! Forged packets are dropped, each counted by its reason, without other effects.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use portolan_provider::verbs::{QpState, SendOp};
use portolan_roce::io::Counters;
use portolan_wire::bth::Opcode;
use portolan_wire::eth::RethRepr;
use portolan_wire::icrc::{self, Flow};
use portolan_wire::rocev2::Headers;
use portolan_wire::{Psn, Qpn};

use crate::harness::{ALL_RIGHTS, End, Memory, PATIENCE, Pair, Shape, target, until};

/// A write of eight bytes as the peer would send it.
fn write_packet(pair: &Pair, qpn: Qpn, from: SocketAddr) -> Vec<u8> {
    let mut headers = Headers::new(Opcode::RcWriteOnly, qpn, Psn::new(0xff_fff0));
    headers.reth = Some(RethRepr {
        va: pair.b.memory.addr(),
        rkey: pair.b.mr.rkey(),
        dma_len: 8,
    });
    let mut packet = vec![0x66; headers.len() + 8 + 4];
    headers.emit(&mut packet).unwrap();
    let flow = Flow::between(from, target(&pair.config, pair.b.ip)).unwrap();
    icrc::append(&flow, 0, &mut packet).unwrap();
    packet
}

/// An unconnected socket that forbids fragmentation, as RoCEv2 senders require.
fn sender(ip: &str) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((ip, 0)).unwrap();
    let from = socket.local_addr().unwrap();
    (socket, from)
}

/// Sends a packet until a counter of the receiving stack changes. Returns the change.
fn count_of(pair: &Pair, socket: &UdpSocket, packet: &[u8], counter: fn(&Counters) -> u64) {
    let before = pair.stacks[1].counters();
    socket
        .send_to(packet, target(&pair.config, pair.b.ip))
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = pair.stacks[1].counters();
        if counter(&now) == counter(&before) + 1 {
            break;
        }
        assert!(Instant::now() < deadline, "not counted: {now:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pair.b.memory.read(0, 8), [0; 8], "the write was executed");
}

#[test]
fn a_write_from_another_address_is_dropped_even_if_everything_else_is_right() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (stranger, from) = sender("127.0.0.2");
    let packet = write_packet(&pair, pair.b.qp.qpn(), from);
    count_of(&pair, &stranger, &packet, |counters| {
        counters.dropped_spoofed
    });
    // The connection still works.
    pair.a.memory.write(0, &[9; 8]);
    pair.a
        .post(1, SendOp::RdmaWrite(pair.b.remote(0)), pair.a.sge(0, 8));
    pair.a.expect(1);
    assert_eq!(pair.b.memory.read(0, 8), [9; 8]);
}

#[test]
fn corrupt_short_and_unknown_packets_are_dropped_by_reason() {
    for ip in ["127.0.0.1", "::1"] {
        let pair = Pair::new(ip, Shape::default());
        let (socket, from) = sender(ip);
        let good = write_packet(&pair, pair.b.qp.qpn(), from);
        // Two bit flips a CRC's width apart, which no identification explains.
        let mut corrupt = good.clone();
        corrupt[13] ^= 1;
        corrupt[30] ^= 0x80;
        count_of(&pair, &socket, &corrupt, |counters| counters.dropped_icrc);
        let short = &good[..15];
        count_of(&pair, &socket, short, |counters| counters.dropped_malformed);
        let unknown = Qpn::new(pair.b.qp.qpn().value() ^ 1);
        let unknown = write_packet(&pair, unknown, from);
        count_of(&pair, &socket, &unknown, |counters| {
            counters.dropped_no_queue_pair
        });
        assert_eq!(pair.b.qp.query().unwrap().0.state, QpState::Rts);
    }
}

#[test]
fn random_bytes_never_stop_the_device() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (socket, _) = sender("127.0.0.1");
    let block = pair.b.qp.qpn().value() >> 16;
    for seed in 0..5_000 {
        let mut packet = crate::harness::pattern(seed, (seed % 300) as usize);
        // Reaches the receiver's block, and often its queue pair.
        if let Some(byte) = packet.get_mut(5) {
            *byte = block as u8;
        }
        if let Some(low) = packet.get_mut(6..8).filter(|_| seed % 2 == 0) {
            low.copy_from_slice(&pair.b.qp.qpn().value().to_be_bytes()[2..]);
        }
        socket
            .send_to(&packet, target(&pair.config, pair.b.ip))
            .unwrap();
    }
    pair.b.receive(1, pair.b.sge(0, 64));
    pair.a.post(1, SendOp::Send, pair.a.sge(0, 64));
    pair.b.expect(1);
    let counters = pair.stacks[1].counters();
    assert!(
        counters.dropped_malformed + counters.dropped_icrc > 0,
        "{counters:?}"
    );
}

#[test]
fn responses_to_long_reads_let_a_registration_and_other_queue_pairs_pass() {
    const LEN: u32 = 128 << 20;
    const MTU: u32 = 4096;
    /// As many as the queue pair admits at a time.
    const READS: u32 = 4;
    let shape = Shape {
        memory: LEN as usize,
        ..Shape::default()
    };
    let pair = Pair::new("127.0.0.1", shape);
    let stack = &pair.stacks[1];
    let [left, right] = [(); 2].map(|()| End::new(stack, pair.b.ip, Shape::default()));
    left.connect(right.ip, right.qp.qpn(), Shape::default());
    right.connect(left.ip, left.qp.qpn(), Shape::default());
    let (socket, from) = sender("127.0.0.1");
    let to = target(&pair.config, pair.b.ip);
    let sent = || stack.counters().sent_packets;
    for number in 0..READS {
        let psn = Psn::new(0xff_fff0).add(number * (LEN / MTU));
        let mut headers = Headers::new(Opcode::RcReadRequest, pair.b.qp.qpn(), psn);
        headers.reth = Some(RethRepr {
            va: pair.b.memory.addr(),
            rkey: pair.b.mr.rkey(),
            dma_len: LEN,
        });
        let mut packet = vec![0; headers.len() + 4];
        headers.emit(&mut packet).unwrap();
        icrc::append(&Flow::between(from, to).unwrap(), 0, &mut packet).unwrap();
        socket.send_to(&packet, to).unwrap();
    }
    until("responses are sent", || sent() > 100);
    let memory = Memory::new(4096);
    let _mr = memory.register(&pair.b.pd, ALL_RIGHTS);
    let at_registration = sent();
    left.receive(1, left.sge(0, 8));
    right.post(2, SendOp::Send, right.sge(0, 8));
    left.expect(1);
    right.expect(2);
    let all = u64::from(READS * (LEN / MTU));
    let both = (at_registration, sent());
    assert!(
        both.0 < all / 2 && both.1 < all,
        "{both:?} of {all} came first"
    );
}

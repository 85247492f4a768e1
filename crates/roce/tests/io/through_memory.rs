//! Shared memory links between two stacks on one port, like those between two processes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portolan_port_sharing::Block;
use portolan_provider::verbs::{QpType, SendOp};
use portolan_roce::io::{Direction, Stack, StackConfig, Tap, TappedPacket};
use portolan_wire::bth::Opcode;
use portolan_wire::icrc::{self, Flow, Identification};

use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Signal;

use crate::harness::*;
use crate::process;

const LEN: usize = 10_000;
/// The longest wait for a link.
const LINK_WAIT_MAX: Duration = Duration::from_millis(50);
const PART: usize = 2500;

/// With memory that only packets reach.
const IN_RINGS: Shape = Shape {
    in_file: false,
    ..PATIENT
};

/// Two connected queue pairs on separate stacks.
struct Ends {
    stacks: [Arc<Stack>; 2],
    ends: [End; 2],
    next: u64,
}

impl Ends {
    fn with(memory: [bool; 2], ip: &str) -> Self {
        let mut config = config();
        let stacks = memory.map(|memory| {
            config.local_memory = memory;
            stack(&config)
        });
        Self::on(stacks, ip)
    }

    fn on(stacks: [Arc<Stack>; 2], ip: &str) -> Self {
        let (ip, shape) = (ip.parse().unwrap(), IN_RINGS);
        let ends = [0, 1].map(|number: usize| End::new(&stacks[number], ip, shape));
        ends[0].connect(ip, ends[1].qp.qpn(), shape);
        ends[1].connect(ip, ends[0].qp.qpn(), shape);
        Self {
            stacks,
            ends,
            next: 0,
        }
    }

    /// Writes from one end to the other, and back.
    fn write(&mut self) {
        self.next += 1;
        let [a, b] = &self.ends;
        for (from, to) in [(a, b), (b, a)] {
            from.memory.write(0, &pattern(self.next, LEN));
            // Longer writes, and single ones that the program waits for, would be copied without packets.
            let parts = (0..LEN).step_by(PART);
            for at in parts.clone() {
                let to = SendOp::RdmaWrite(to.remote(LEN + at));
                from.post(self.next, to, from.sge(at, PART));
            }
            for _ in parts {
                from.expect(self.next);
            }
            assert!(to.memory.read(LEN, LEN) == pattern(self.next, LEN));
        }
    }

    /// Number of packets that each end sent through memory.
    fn through_memory(&self) -> [u64; 2] {
        [0, 1].map(|number: usize| self.stacks[number].counters().sent_through_memory)
    }

    /// Writes until both ends send through memory.
    fn write_until_linked(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while self.through_memory().contains(&0) {
            assert!(Instant::now() < deadline, "no link through memory");
            self.write();
        }
    }
}

#[test]
fn two_processes_of_a_host_switch_from_sockets_to_shared_memory() {
    for ip in ["127.0.0.1", "::1"] {
        let mut ends = Ends::with([true, true], ip);
        ends.write_until_linked();
        ends.write();
        let before = [0, 1].map(|number: usize| ends.stacks[number].counters());
        for _ in 0..50 {
            ends.write();
        }
        for (number, before) in before.iter().enumerate() {
            let after = ends.stacks[number].counters();
            assert_eq!(after.send_calls, before.send_calls, "{ip}");
            assert_eq!(after.receive_calls, before.receive_calls, "{ip}");
            let sent = after.sent_packets - before.sent_packets;
            assert_eq!(after.sent_through_memory - before.sent_through_memory, sent);
        }
    }
}

#[test]
fn the_first_message_of_an_unreliable_connection_waits_until_the_link_is_up() {
    let mut config = config();
    config.local_memory = true;
    for _ in 0..10 {
        let stacks = [stack(&config), stack(&config)];
        let (ip, shape) = ("127.0.0.1".parse().unwrap(), Shape::default());
        let ends = [0, 1].map(|number: usize| End::of_type(&stacks[number], ip, shape, QpType::Uc));
        ends[0].connect(ip, ends[1].qp.qpn(), shape);
        ends[1].connect(ip, ends[0].qp.qpn(), shape);
        ends[1].receive(2, ends[1].sge(0, 8));
        let began = Instant::now();
        ends[0].post(1, SendOp::Send, ends[0].sge(0, 8));
        ends[0].expect(1);
        let took = began.elapsed();
        ends[1].expect(2);
        // A busy machine may take longer for the link than a message waits.
        let is_in_memory = stacks[0].counters().sent_through_memory == 1;
        assert!(is_in_memory || took >= LINK_WAIT_MAX, "{took:?}");
    }
}

#[test]
fn the_first_message_of_an_unreliable_connection_does_not_wait_for_a_stopped_peer() {
    let mut config = config();
    config.local_memory = true;
    let stack = stack(&config);
    let (ip, shape) = ("127.0.0.1".parse().unwrap(), process::SHAPE);
    let end = End::of_type(&stack, ip, shape, QpType::Uc);
    let (peer, qpn, _) = process::start_unconnected(&config, &end, shape);
    peer.signal(Signal::STOP);
    // It stops a little later.
    std::thread::sleep(Duration::from_millis(100));
    end.connect(ip, qpn, shape);
    end.cq.arm(false).unwrap();
    let began = Instant::now();
    end.post(1, SendOp::Send, end.sge(0, 8));
    // This thread sleeps and looks at no device.
    assert_eq!(end.wait().wr_id, 1);
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(stack.counters().sent_through_memory, 0);
}

#[test]
fn an_unreliable_connection_uses_the_link_that_came_up_before_its_first_message() {
    let mut config = config();
    config.local_memory = true;
    let stacks = [stack(&config), stack(&config)];
    let (ip, shape) = ("127.0.0.1".parse().unwrap(), Shape::default());
    let ends = [0, 1].map(|number: usize| End::of_type(&stacks[number], ip, shape, QpType::Uc));
    ends[0].connect(ip, ends[1].qp.qpn(), shape);
    ends[1].connect(ip, ends[0].qp.qpn(), shape);
    let mut linked = Ends::on(stacks, "127.0.0.1");
    linked.write_until_linked();
    // The last write's acknowledgement is sent within a millisecond.
    std::thread::sleep(Duration::from_millis(20));
    let before = linked.through_memory();
    for number in 0..10 {
        ends[1].receive(number, ends[1].sge(0, 8));
        ends[0].post(number, SendOp::Send, ends[0].sge(0, 8));
        ends[0].expect(number);
        ends[1].expect(number);
    }
    assert_eq!(linked.through_memory(), [before[0] + 10, before[1]]);
}

#[test]
fn a_process_with_shared_memory_turned_off_is_reached_through_the_socket() {
    for memory in [[true, false], [false, true], [false, false]] {
        let mut ends = Ends::with(memory, "127.0.0.1");
        for _ in 0..20 {
            ends.write();
        }
        assert_eq!(ends.through_memory(), [0, 0], "{memory:?}");
    }
}

#[test]
fn the_link_to_a_process_is_replaced_with_the_process() {
    let mut config = config();
    config.local_memory = true;
    let stays = stack(&config);
    for _ in 0..5 {
        let mut ends = Ends::on([Arc::clone(&stays), stack(&config)], "127.0.0.1");
        let before = stays.counters().sent_through_memory;
        let deadline = Instant::now() + PATIENCE;
        while stays.counters().sent_through_memory == before {
            assert!(Instant::now() < deadline, "no link to the new process");
            ends.write();
        }
    }
}

#[test]
fn more_than_a_ring_holds_can_be_sent_to_a_sleeping_end() {
    const MUCH: usize = 1 << 20;
    let mut config = config();
    config.local_memory = true;
    let stacks = [stack(&config), stack(&config)];
    let ip = "127.0.0.1".parse().unwrap();
    let shape = IN_RINGS;
    let pairs: Vec<[End; 2]> = (0..4)
        .map(|_| {
            let ends = [0, 1].map(|number: usize| End::new(&stacks[number], ip, shape));
            ends[0].connect(ip, ends[1].qp.qpn(), shape);
            ends[1].connect(ip, ends[0].qp.qpn(), shape);
            ends
        })
        .collect();
    for round in 0..3 {
        for [a, b] in &pairs {
            a.memory.write(0, &pattern(round, MUCH));
            b.receive(round, b.sge(0, MUCH));
            a.post(round, SendOp::Send, a.sge(0, MUCH));
        }
        for [a, b] in &pairs {
            a.expect(round);
            b.expect(round);
            assert!(b.memory.read(0, MUCH) == pattern(round, MUCH));
        }
    }
    assert!(stacks[0].counters().sent_through_memory > 1000);
}

/// Counts packets whose ICRC is that of their addresses and identification, and others.
#[derive(Debug, Default)]
struct Checking {
    valid: AtomicU64,
    invalid: AtomicU64,
}

impl Tap for Checking {
    fn packet(&self, packet: &TappedPacket<'_>) {
        let flow = Flow::between(packet.source, packet.destination).unwrap();
        let identification = Identification::Known(packet.identification);
        let count = match icrc::verify(&flow, identification, packet.payload) {
            Ok(_) => &self.valid,
            Err(_) => &self.invalid,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn taps_see_packets_of_memory_with_the_icrc_that_they_would_have() {
    for ip in ["127.0.0.1", "::1"] {
        let mut ends = Ends::with([true, true], ip);
        ends.write_until_linked();
        ends.write();
        let before = ends.through_memory();
        let taps = [Arc::new(Checking::default()), Arc::new(Checking::default())];
        for (stack, tap) in ends.stacks.iter().zip(&taps) {
            stack.set_tap(Some(tap.clone()));
        }
        ends.write();
        for (number, tap) in taps.iter().enumerate() {
            ends.stacks[number].set_tap(None);
            // Packets of 4096 bytes, and at least an acknowledgement.
            assert!(tap.valid.load(Ordering::Relaxed) >= 4, "{ip}");
            assert_eq!(tap.invalid.load(Ordering::Relaxed), 0, "{ip}");
            assert!(ends.through_memory()[number] > before[number]);
        }
    }
}

#[test]
fn the_last_message_of_a_process_that_ends_is_received() {
    for _ in 0..50 {
        let mut ends = Ends::with([true, true], "127.0.0.1");
        until("both use memory", || {
            ends.write();
            ends.through_memory().iter().all(|count| *count > 0)
        });
        let Ends { stacks, ends, .. } = ends;
        let ([a, b], [of_a, of_b]) = (ends, stacks);
        b.receive(7, b.sge(0, 64));
        a.post(8, SendOp::Send, a.sge(0, 64));
        drop((a, of_a));
        b.expect(7);
        drop(of_b);
    }
}

/// Opcode of each packet of one direction, if its ICRC is that of its addresses.
#[derive(Debug, Default)]
struct Opcodes {
    sent: Mutex<Vec<u8>>,
    received: Mutex<Vec<u8>>,
}

impl Tap for Opcodes {
    fn packet(&self, packet: &TappedPacket<'_>) {
        let flow = Flow::between(packet.source, packet.destination).unwrap();
        let identification = Identification::Known(packet.identification);
        icrc::verify(&flow, identification, packet.payload).expect("a valid ICRC");
        let seen = match packet.direction {
            Direction::Sent => &self.sent,
            Direction::Received => &self.received,
        };
        seen.lock().unwrap().push(packet.payload[0]);
    }
}

const SEND_ONLY: u8 = Opcode::RcSendOnly as u8;
const SEND_ONLY_IMM: u8 = Opcode::RcSendOnlyImm as u8;
const ACK: u8 = Opcode::RcAck as u8;

#[test]
fn a_tap_sees_sends_and_acknowledgements_as_packets_whether_the_other_end_has_one_or_not() {
    for (ip, tapped) in [
        ("127.0.0.1", [true, false]),
        ("127.0.0.1", [false, true]),
        ("::1", [false, true]),
        ("::1", [true, true]),
    ] {
        let mut ends = Ends::with([true, true], ip);
        ends.write_until_linked();
        let taps = [Arc::new(Opcodes::default()), Arc::new(Opcodes::default())];
        for number in [0, 1] {
            if tapped[number] {
                ends.stacks[number].set_tap(Some(taps[number].clone()));
            }
        }
        let [a, b] = &ends.ends;
        for (wr_id, op) in [(1, SendOp::Send), (2, SendOp::SendWithImm(7))] {
            a.memory.write(0, &pattern(wr_id, 61));
            b.receive(wr_id, b.sge(100, 64));
            a.post(wr_id, op, a.sge(0, 61));
            let wc = b.expect(wr_id);
            assert_eq!(wc.byte_len, 61);
            assert_eq!(wc.imm_data, (wr_id == 2).then_some(7));
            assert_eq!(b.memory.read(100, 61), pattern(wr_id, 61));
            a.expect(wr_id);
        }
        for number in [0, 1] {
            ends.stacks[number].set_tap(None);
        }
        let is_message = |opcode: &u8| [SEND_ONLY, SEND_ONLY_IMM, ACK].contains(opcode);
        let seen = |opcodes: &Mutex<Vec<u8>>| -> Vec<u8> {
            let opcodes = opcodes.lock().unwrap();
            opcodes.iter().copied().filter(is_message).collect()
        };
        let sends = vec![SEND_ONLY, SEND_ONLY_IMM];
        let acks = |mut seen: Vec<u8>| {
            seen.retain(|opcode| *opcode != ACK);
            seen
        };
        if tapped[0] {
            assert_eq!(acks(seen(&taps[0].sent)), sends, "{ip} {tapped:?}");
            assert!(seen(&taps[0].received).contains(&ACK), "{ip} {tapped:?}");
        }
        if tapped[1] {
            assert_eq!(acks(seen(&taps[1].received)), sends, "{ip} {tapped:?}");
            assert!(seen(&taps[1].sent).contains(&ACK), "{ip} {tapped:?}");
        }
    }
}

#[test]
fn sends_keep_their_order_among_longer_messages_and_writes_and_are_counted_as_packets() {
    const DEPTH: u64 = 12;
    let mut ends = Ends::with([true, true], "127.0.0.1");
    ends.write_until_linked();
    let [a, b] = &ends.ends;
    a.memory.write(0, &pattern(1, LEN));
    let counters = || [0, 1].map(|number: usize| ends.stacks[number].counters());
    let mut before = counters();
    // Acknowledgements may be under way: counted where they were sent, but not where they arrive.
    until("nothing is under way", || {
        std::thread::sleep(Duration::from_millis(20));
        let earlier = std::mem::replace(&mut before, counters());
        before == earlier
    });
    for round in 0..20 {
        let lens: Vec<usize> = (0..DEPTH)
            .map(|wr_id| [64, 0, 4096, 5000, 1][(wr_id + round) as usize % 5])
            .collect();
        for wr_id in 0..DEPTH {
            b.receive(100 + wr_id, b.sge(0, 5000));
        }
        for (wr_id, len) in (0..DEPTH).zip(&lens) {
            let op = match wr_id % 4 {
                1 => SendOp::SendWithImm(wr_id as u32),
                3 => SendOp::RdmaWriteWithImm(b.remote(LEN), wr_id as u32),
                _ => SendOp::Send,
            };
            a.post(wr_id, op, a.sge(0, *len));
        }
        for (wr_id, len) in (0..DEPTH).zip(&lens) {
            let wc = b.expect(100 + wr_id);
            assert_eq!(wc.byte_len as usize, *len);
            let immediate = (wr_id % 2 == 1).then_some(wr_id as u32);
            assert_eq!(wc.imm_data, immediate);
        }
        for wr_id in 0..DEPTH {
            a.expect(wr_id);
        }
        assert_eq!(b.memory.read(0, 5000)[..4096], pattern(1, LEN)[..4096]);
    }
    // Packets and bytes that were sent and received, and whether all packets went through memory.
    let counted = |number: usize| {
        let (before, after) = (&before[number], ends.stacks[number].counters());
        let sent = (
            after.sent_packets - before.sent_packets,
            after.sent_bytes - before.sent_bytes,
        );
        let received = (
            after.received_packets - before.received_packets,
            after.received_bytes - before.received_bytes,
        );
        let sent_through_memory = after.sent_through_memory - before.sent_through_memory;
        let received_through_memory =
            after.received_through_memory - before.received_through_memory;
        let are_all_through_memory =
            (sent_through_memory, received_through_memory) == (sent.0, received.0);
        (sent, received, are_all_through_memory)
    };
    assert!(counted(0).0.0 >= 20 * DEPTH);
    // The last acknowledgement may be on its way.
    until("each counts what the other one has sent", || {
        let (of_a, of_b) = (counted(0), counted(1));
        of_a.0 == of_b.1 && of_b.0 == of_a.1 && of_a.2 && of_b.2
    });
}

#[test]
fn a_send_without_a_receive_waits_for_one_and_a_later_one_does_not_overtake_it() {
    let mut ends = Ends::with([true, true], "127.0.0.1");
    ends.write_until_linked();
    let [a, b] = &ends.ends;
    for wr_id in 0..3 {
        a.memory.write(64 * wr_id as usize, &pattern(wr_id, 64));
        a.post(wr_id, SendOp::Send, a.sge(64 * wr_id as usize, 64));
    }
    assert!(b.try_poll().is_none());
    for wr_id in 0..3 {
        b.receive(10 + wr_id, b.sge(64 * wr_id as usize, 64));
    }
    for wr_id in 0..3 {
        b.expect(10 + wr_id);
        assert_eq!(b.memory.read(64 * wr_id as usize, 64), pattern(wr_id, 64));
        a.expect(wr_id);
    }
}

#[test]
fn sends_in_both_directions_complete_at_both_ends_when_their_programs_only_wait() {
    let mut ends = Ends::with([true, true], "127.0.0.1");
    ends.write_until_linked();
    let [a, b] = &ends.ends;
    for wr_id in 0..50 {
        for end in [a, b] {
            end.receive(1000 + wr_id, end.sge(0, 64));
        }
        for end in [a, b] {
            end.post(wr_id, SendOp::Send, end.sge(64, 64));
        }
        for end in [a, b] {
            let mut done = [end.wait().wr_id, end.wait().wr_id];
            done.sort_unstable();
            assert_eq!(done, [wr_id, 1000 + wr_id]);
        }
    }
}

#[test]
fn a_send_completes_before_the_answer_to_it_arrives() {
    let mut ends = Ends::with([true, true], "127.0.0.1");
    ends.write_until_linked();
    let [a, b] = &ends.ends;
    for round in 0..200 {
        a.receive(1000 + round, a.sge(0, 64));
        b.receive(1000 + round, b.sge(0, 64));
        a.post(round, SendOp::Send, a.sge(64, 64));
        b.expect(1000 + round);
        // The acknowledgement is due with it.
        b.post(round, SendOp::Send, b.sge(64, 64));
        a.expect(round);
        a.expect(1000 + round);
        b.expect(round);
    }
}

#[test]
fn threads_that_send_in_every_way_and_register_memory_do_not_wait_for_each_other_for_ever() {
    const TIMES: u64 = 2000;
    let mut first = Ends::with([true; 2], "127.0.0.1");
    first.write_until_linked();
    let stacks = first.stacks.clone();
    let (done, all_done) = std::sync::mpsc::channel();
    let run = |work: Box<dyn FnOnce() + Send>| {
        let done = done.clone();
        std::thread::spawn(move || {
            work();
            let _ = done.send(());
        });
    };
    let ways = 3;
    for _ in 0..ways {
        // As packets.
        let [from, to] = Ends::on(stacks.clone(), "127.0.0.1").ends;
        run(Box::new(move || {
            for number in 0..TIMES {
                let write = SendOp::RdmaWrite(to.remote(0));
                from.post(number, write, from.sge(0, PART));
                from.expect(number);
            }
        }));
        // As records.
        let [from, to] = Ends::on(stacks.clone(), "127.0.0.1").ends;
        run(Box::new(move || {
            for number in 0..TIMES {
                to.receive(number, to.sge(0, 64));
                from.post(number, SendOp::Send, from.sge(0, 64));
                from.expect(number);
                to.expect(number);
            }
        }));
        let [end, _] = Ends::on(stacks.clone(), "127.0.0.1").ends;
        run(Box::new(move || {
            for _ in 0..TIMES {
                drop(end.memory.register(&end.pd, ALL_RIGHTS));
            }
        }));
    }
    let mut ends = (0..3 * ways).map(|_| all_done.recv_timeout(PATIENCE));
    if !ends.all(|ended| ended.is_ok()) {
        // Closing the stacks would hang, too.
        std::mem::forget((first, stacks));
        panic!("not all threads have ended");
    }
}

/// Calls the process with a block as other processes do, and says nothing.
fn call_silently(config: &StackConfig, block: Block) -> OwnedFd {
    let group = &config.group;
    let name = format!("{}/{}/{block}/links", group.name_prefix, group.port);
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let (family, kind, flags) = (
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
    );
    let socket = socket_with(family, kind, flags, None).unwrap();
    connect(&socket, &address).unwrap();
    socket
}

#[test]
fn callers_that_say_nothing_keep_no_other_process_from_its_link() {
    let mut config = config();
    config.local_memory = true;
    let stacks = [stack(&config), stack(&config)];
    let called = End::new(&stacks[1], "127.0.0.1".parse().unwrap(), IN_RINGS);
    let block = Block::of_qpn(called.qp.qpn().value()).unwrap();
    // As many as there are places for.
    let silent = [(); 256].map(|()| call_silently(&config, block));
    std::thread::sleep(Duration::from_millis(2500));
    let mut ends = Ends::on(stacks, "127.0.0.1");
    until("the link is up", || {
        ends.write();
        ends.stacks[1].counters().received_through_memory > 0
    });
    drop(silent);
}

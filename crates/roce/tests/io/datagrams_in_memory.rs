//! Datagrams between processes of one host, which go through memory.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan_provider::verbs::{QpType, SendOp, WcStatus};
use portolan_roce::io::{Stack, Way};
use portolan_wire::Qpn;
use portolan_wire::timer::cm_timeout_us;
use rustix::process::Signal;

use crate::harness::{End, PATIENCE, config, expect, pattern, stack, until};
use crate::process;
use crate::ud_end::UdEnd;

const LEN: usize = 1000;

fn through_memory(stack: &Stack) -> u64 {
    stack.counters().sent_through_memory
}

/// Sends one datagram to an end that takes it.
fn exchange(from: &UdEnd, to: &UdEnd, seed: u64) {
    from.memory.write(0, &pattern(seed, LEN));
    to.receive(7, 0, LEN + 40);
    from.send(3, 0, LEN, &*from.ah(to.ip), to.qp.qpn());
    expect(from.poll(), 3);
    expect(to.poll(), 7);
    assert!(to.memory.read(40, LEN) == pattern(seed, LEN));
}

#[test]
fn datagrams_go_through_memory_once_the_link_is_up_with_the_header_that_they_had() {
    for ip in ["127.0.0.1", "::1"] {
        let ip: IpAddr = ip.parse().unwrap();
        let config = config();
        let stacks = [stack(&config), stack(&config)];
        let (a, b) = (UdEnd::new(&stacks[0], ip), UdEnd::new(&stacks[1], ip));
        // Within a process there is no link.
        exchange(&UdEnd::new(&stacks[1], ip), &b, 1);
        assert_eq!(through_memory(&stacks[1]), 0);
        let by_socket = b.memory.read(0, 40);
        until("the link is up", || {
            exchange(&a, &b, 2);
            through_memory(&stacks[0]) > 0
        });
        let (before, calls) = (through_memory(&stacks[0]), stacks[0].counters().send_calls);
        for seed in 0..20 {
            exchange(&a, &b, seed);
            let header = b.memory.read(0, 40);
            match ip {
                IpAddr::V4(_) => assert_eq!(header, by_socket),
                // All but the flow label, which the sending kernel chooses.
                IpAddr::V6(_) => assert_eq!(header[4..], by_socket[4..]),
            }
        }
        assert_eq!(through_memory(&stacks[0]), before + 20);
        assert_eq!(stacks[0].counters().send_calls, calls);
    }
}

#[test]
fn the_first_datagram_to_a_process_waits_until_the_link_is_up() {
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let config = config();
    // On a busy machine, the link may take longer than the datagram waits.
    until("the first datagram goes through memory", || {
        let stacks = [stack(&config), stack(&config)];
        let (a, b) = (UdEnd::new(&stacks[0], ip), UdEnd::new(&stacks[1], ip));
        exchange(&a, &b, 1);
        through_memory(&stacks[0]) == 1
    });
}

#[test]
fn a_datagram_that_waits_for_the_link_is_sent_when_its_queue_pair_is_destroyed() {
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let b = UdEnd::new(&stacks[1], ip);
    for seed in 0..2 {
        let a = UdEnd::new(&stacks[0], ip);
        a.memory.write(0, &pattern(seed, LEN));
        b.receive(7, 0, LEN + 40);
        a.send(3, 0, LEN, &*a.ah(ip), b.qp.qpn());
        drop(a);
        expect(b.poll(), 7);
        assert!(b.memory.read(40, LEN) == pattern(seed, LEN));
    }
}

#[test]
fn one_queue_pair_reaches_several_processes_its_own_and_nobody() {
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let config = config();
    let stacks = [(); 3].map(|()| stack(&config));
    let ends: Vec<UdEnd> = stacks.iter().map(|stack| UdEnd::new(stack, ip)).collect();
    let own = UdEnd::new(&stacks[0], ip);
    let nobody = Qpn::new(ends[2].qp.qpn().value() ^ 0x5555);
    let exchange_all = |seed| {
        exchange(&ends[0], &ends[1], seed);
        exchange(&ends[0], &own, seed);
        exchange(&ends[0], &ends[2], seed);
        ends[0].send(4, 0, 8, &*ends[0].ah(ip), nobody);
        expect(ends[0].poll(), 4);
    };
    (0..100).for_each(exchange_all);
    // The links are made meanwhile. On a busy machine that takes longer.
    let deadline = Instant::now() + PATIENCE;
    while through_memory(&stacks[0]) <= 100 {
        assert!(Instant::now() < deadline, "datagrams do not use memory");
        exchange_all(0);
    }
    assert_eq!(stacks[2].counters().dropped_spoofed, 0);
}

/// Twice what a ring holds.
const DATAGRAMS: u64 = 600;

/// An end of a connection with a process, an end for datagrams, and the number of that process's. The link is up.
fn with_process() -> (Arc<Stack>, crate::harness::End, process::Peer, UdEnd, Qpn) {
    let config = config();
    let stack: Arc<Stack> = stack(&config);
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let connected = crate::harness::End::new(&stack, ip, process::SHAPE);
    let (mut peer, _) = process::connect_end(&config, &connected, process::SHAPE);
    peer.tell("datagrams 0");
    let theirs = Qpn::new(peer.answer().parse().unwrap());
    let end = UdEnd::new(&stack, ip);
    until("the link is up", || {
        send(&end, theirs, 8);
        through_memory(&stack) > 0
    });
    (stack, connected, peer, end, theirs)
}

fn send(end: &UdEnd, to: Qpn, len: usize) {
    let ip = "127.0.0.1".parse().unwrap();
    end.send(3, 0, len, &*end.ah(ip), to);
    expect(end.poll(), 3);
}

/// Sends to a process that is stopped, and to another end, which gets each datagram.
fn holds_up_others_only_once(end: &UdEnd, stopped: Qpn, other: &UdEnd) {
    let begun = Instant::now();
    for seed in 0..DATAGRAMS {
        send(end, stopped, LEN);
        exchange(end, other, seed);
    }
    // A wait for each datagram that finds no room or no link would take longer.
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(12), "{took:?}");
}

#[test]
fn datagrams_to_a_stopped_process_fill_its_ring_and_hold_up_others_only_once() {
    let (stack, _connected, peer, end, theirs) = with_process();
    let other = UdEnd::new(&stack, "127.0.0.1".parse().unwrap());
    peer.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(100));
    holds_up_others_only_once(&end, theirs, &other);
    peer.signal(Signal::CONT);
    // The other end's receives are few, so most of what waits there is lost. What follows goes through memory again.
    let before = through_memory(&stack);
    until("the ring has room", || {
        send(&end, theirs, 8);
        through_memory(&stack) > before + DATAGRAMS
    });
}

#[test]
fn datagrams_to_a_process_that_is_stopped_before_the_link_is_up_hold_up_others_only_once() {
    let (_stack, _connected, peer, _end, theirs) = with_process();
    let stack = stack(&config());
    let ip = "127.0.0.1".parse().unwrap();
    let (end, other) = (UdEnd::new(&stack, ip), UdEnd::new(&stack, ip));
    peer.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(100));
    holds_up_others_only_once(&end, theirs, &other);
    assert_eq!(through_memory(&stack), 0);
}

/// More than a ring holds, and what may wait beside it.
const BURST: u64 = 2000;

#[test]
fn datagrams_that_are_faster_than_their_reader_wait_for_it_and_none_is_lost() {
    let (stack, _connected, peer, end, theirs) = with_process();
    let ends = [end, UdEnd::new(&stack, "127.0.0.1".parse().unwrap())];
    // On a busy machine, the reader may be away for longer than a datagram waits.
    until("no datagram is lost", || {
        let before = stack.counters();
        let is_settled = || {
            let (sent, lost) = (through_memory(&stack), stack.counters().send_refused);
            sent - before.sent_through_memory + lost - before.send_refused == 2 * BURST
        };
        peer.signal(Signal::STOP);
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for end in &ends {
                scope.spawn(|| {
                    for _ in 0..BURST {
                        send(end, theirs, LEN);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            // Until both wait, or do not although they should.
            let mut last = u64::MAX;
            while done.load(Ordering::Relaxed) != last {
                last = done.load(Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
            peer.signal(Signal::CONT);
        });
        until("all are sent or lost", is_settled);
        stack.counters().send_refused == before.send_refused
    });
}

#[test]
fn a_request_that_waits_for_room_in_a_ring_fails_when_the_process_that_reads_it_dies() {
    let (_stack, connected, mut peer) = with_full_ring();
    connected.post(9, SendOp::Send, connected.sge(0, 64));
    peer.kill();
    let failed = connected.poll();
    assert_eq!((failed.wr_id, failed.status), (9, WcStatus::RetryExcErr));
}

#[test]
fn a_request_that_waits_for_room_in_a_ring_fails_when_the_process_that_reads_it_stays_stopped() {
    let (_stack, connected, _peer) = with_full_ring();
    let posted = Instant::now();
    connected.post(9, SendOp::Send, connected.sge(0, 64));
    let failed = connected.poll();
    assert_eq!((failed.wr_id, failed.status), (9, WcStatus::RetryExcErr));
    let ack_timeout = Duration::from_micros(cm_timeout_us(process::SHAPE.timeout));
    let all_tries = ack_timeout * (u32::from(process::SHAPE.retry_cnt) + 1);
    assert!(posted.elapsed() >= all_tries, "{:?}", posted.elapsed());
}

#[test]
fn a_message_of_an_unreliable_connection_to_a_process_that_stays_stopped_is_lost_after_a_while() {
    let (stack, connected, _peer) = with_full_ring();
    let end = End::of_type(&stack, connected.ip, process::SHAPE, QpType::Uc);
    let (attr, _) = connected.qp.query().unwrap();
    end.connect(end.ip, attr.dest_qpn, process::SHAPE);
    let posted = Instant::now();
    end.post(9, SendOp::Send, end.sge(0, 64));
    end.expect(9);
    let took = posted.elapsed();
    assert!(took >= Duration::from_secs(1), "{took:?}");
    let way = stack.way_of(end.qp.qpn());
    assert!(matches!(way, Some(Way::Memory | Way::Rings(_))), "{way:?}");
}

/// An end that sends through memory to a process that is stopped, and whose ring is full.
fn with_full_ring() -> (Arc<Stack>, End, process::Peer) {
    let (stack, connected, peer, end, theirs) = with_process();
    let way = stack.way_of(connected.qp.qpn());
    assert!(matches!(way, Some(Way::Memory | Way::Rings(_))), "{way:?}");
    peer.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(100));
    (0..DATAGRAMS).for_each(|_| send(&end, theirs, LEN));
    (stack, connected, peer)
}

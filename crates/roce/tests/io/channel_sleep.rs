//! A thread that sleeps in a call for an event waits for the rings itself.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use portolan_provider::traits::SleepAt;
use portolan_provider::verbs::{QpAttr, QpAttrMask, QpState, SendOp, WcStatus};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketType, getsockname, sendto, socket,
};

use crate::device_wait::{linked, take};
use crate::harness::*;
use crate::ud_end::UdEnd;

/// What the calling thread would sleep at for an event of `end`, while there is none.
fn sleep_at(end: &End) -> BorrowedFd<'_> {
    loop {
        match end.channel.sleep_at().unwrap() {
            SleepAt::Descriptor(fd) | SleepAt::Bell(fd) => return fd,
            SleepAt::Nothing => assert_eq!(end.channel.take_event().unwrap(), None),
            SleepAt::Event(cookie) => panic!("an event, with cookie {cookie}"),
        }
    }
}

/// As [`sleep_at`], at the bell. The progress thread may be about to find that the thread did not come before.
fn sleep_at_bell(end: &End) -> BorrowedFd<'_> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let fd = sleep_at(end);
        if !is_own(end, fd) {
            return fd;
        }
        assert!(Instant::now() < deadline, "it never sleeps at the bell");
    }
}

fn is_own(end: &End, fd: BorrowedFd<'_>) -> bool {
    end.channel.descriptor().unwrap().as_raw_fd() == fd.as_raw_fd()
}

fn is_readable_within(fd: BorrowedFd<'_>, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).unwrap();
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)) == Ok(1)
}

/// Sleeps until there is an event, as a call for an event does.
fn wait_for_event(end: &End) {
    loop {
        if let Some(cookie) = end.channel.take_event().unwrap() {
            return assert_eq!(cookie, 77);
        }
        match end.channel.sleep_at().unwrap() {
            SleepAt::Descriptor(fd) | SleepAt::Bell(fd) => {
                assert!(is_readable_within(fd, PATIENCE), "the thread was not woken");
            }
            SleepAt::Nothing => {}
            SleepAt::Event(cookie) => return assert_eq!(cookie, 77),
        }
    }
}

/// Posts a receive of `pair.b`, and arms its queue for its next completion.
fn prepare(pair: &Pair, number: u64) {
    // A completion that no event has told of would cause one at once.
    assert!(take(&pair.b).is_none());
    pair.b.receive(number, pair.b.sge(64, 64));
    pair.b.cq.arm(false).unwrap();
}

fn send(pair: &Pair, number: u64) {
    pair.a.post(number, SendOp::Send, pair.a.sge(0, 64));
}

#[test]
fn a_thread_asleep_in_a_call_is_woken_for_each_message() {
    let pair = linked();
    for number in 0..500 {
        prepare(&pair, number);
        std::thread::scope(|scope| {
            scope.spawn(|| wait_for_event(&pair.b));
            send(&pair, number);
        });
        expect(take(&pair.b).unwrap(), number);
        pair.a.expect(number);
    }
}

#[test]
fn a_call_for_an_event_polls_before_it_sleeps_and_takes_what_arrives_without_a_wake_up() {
    if std::thread::available_parallelism().unwrap().get() == 1 {
        // Then no call polls: the sender needs the processor.
        return;
    }
    let pair = linked();
    let deadline = Instant::now() + PATIENCE;
    for number in 0.. {
        prepare(&pair, number);
        let both_are_ready = Barrier::new(2);
        let at_once = std::thread::scope(|scope| {
            scope.spawn(|| {
                both_are_ready.wait();
                send(&pair, number);
            });
            both_are_ready.wait();
            match pair.b.channel.sleep_at().unwrap() {
                SleepAt::Event(cookie) => Some(cookie),
                _ => None,
            }
        });
        if at_once.is_none() {
            // The sender was late.
            wait_for_event(&pair.b);
        }
        expect(take(&pair.b).unwrap(), number);
        pair.a.expect(number);
        if let Some(cookie) = at_once {
            return assert_eq!(cookie, 77);
        }
        assert!(Instant::now() < deadline, "it never polls");
    }
}

#[test]
fn the_other_process_wakes_the_thread_at_the_bell_before_the_message_is_read() {
    let pair = linked();
    let mut by_the_thread = 0;
    for number in 0..50 {
        prepare(&pair, number);
        let fd = sleep_at_bell(&pair.b);
        send(&pair, number);
        assert!(is_readable_within(fd, PATIENCE));
        let before = take(&pair.b);
        by_the_thread += u32::from(before.is_none());
        wait_for_event(&pair.b);
        expect(before.unwrap_or_else(|| pair.b.poll()), number);
        assert!(take(&pair.b).is_none());
        pair.a.expect(number);
    }
    assert!(by_the_thread > 0, "the progress thread took all messages");
}

#[test]
fn an_event_that_another_thread_causes_rings_the_bell() {
    let pair = linked();
    prepare(&pair, 0);
    let bell = sleep_at_bell(&pair.b);
    let to_error = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    // No other process rings for that.
    pair.b.qp.modify(&to_error, QpAttrMask::STATE).unwrap();
    assert!(is_readable_within(bell, PATIENCE), "the bell");
    assert_eq!(pair.b.channel.take_event().unwrap(), Some(77));
    assert_eq!(take(&pair.b).unwrap().status, WcStatus::WrFlushErr);
}

#[test]
fn a_thread_that_comes_late_finds_the_event_that_the_progress_thread_has_queued() {
    let pair = linked();
    for number in 0..20 {
        prepare(&pair, number);
        let fd = sleep_at_bell(&pair.b);
        send(&pair, number);
        until("the progress thread takes the message", || {
            take(&pair.b).is_some_and(|received| expect(received, number).wr_id == number)
        });
        // It takes the other process's ring back after it has queued the event, and rings itself.
        std::thread::sleep(Duration::from_millis(20));
        assert!(is_readable_within(fd, PATIENCE), "the bell");
        assert_eq!(pair.b.channel.take_event().unwrap(), Some(77));
        pair.a.expect(number);
    }
}

#[test]
fn a_program_that_waits_for_the_descriptor_after_a_call_has_slept_is_woken() {
    let pair = linked();
    for number in 0..50 {
        prepare(&pair, number);
        if number % 10 == 0 {
            // A call that a signal has interrupted.
            sleep_at(&pair.b);
        }
        send(&pair, number);
        let own = pair.b.channel.descriptor().unwrap();
        assert!(is_readable_within(own, PATIENCE), "the descriptor");
        wait_for_event(&pair.b);
        pair.b.expect(number);
        pair.a.expect(number);
    }
}

#[test]
fn a_second_thread_sleeps_at_the_descriptor_and_so_does_the_only_one_if_packets_come_by_sockets() {
    let pair = linked();
    prepare(&pair, 0);
    sleep_at_bell(&pair.b);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| is_own(&pair.b, sleep_at(&pair.b)));
        assert!(second.join().unwrap());
    });
    assert_eq!(pair.b.channel.take_event().unwrap(), None);
    let _datagrams = UdEnd::new(&pair.stacks[1], "127.0.0.1".parse().unwrap());
    assert!(is_own(&pair.b, sleep_at(&pair.b)));
    send(&pair, 0);
    wait_for_event(&pair.b);
    pair.b.expect(0);
    pair.a.expect(0);
}

#[test]
fn an_empty_datagram_wakes_the_thread_in_vain() {
    let pair = linked();
    prepare(&pair, 0);
    let bell = sleep_at_bell(&pair.b);
    let name = SocketAddrUnix::try_from(getsockname(bell).unwrap()).unwrap();
    let stranger = socket(AddressFamily::UNIX, SocketType::DGRAM, None).unwrap();
    sendto(&stranger, &[], SendFlags::empty(), &name).unwrap();
    assert!(is_readable_within(bell, PATIENCE));
    assert_eq!(pair.b.channel.take_event().unwrap(), None);
    send(&pair, 0);
    wait_for_event(&pair.b);
    pair.b.expect(0);
    pair.a.expect(0);
}

#[test]
fn a_thread_that_sleeps_while_another_one_arms_and_polls_is_woken() {
    let pair = linked();
    let (ask, asked) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for () in asked {
                wait_for_event(&pair.b);
                tell.send(()).unwrap();
            }
        });
        for number in 0..500 {
            prepare(&pair, number);
            ask.send(()).unwrap();
            assert!(pair.b.try_poll().is_none());
            send(&pair, number);
            pair.b.expect(number);
            pair.a.expect(number);
            told.recv_timeout(PATIENCE).expect("the thread is woken");
            assert!(pair.b.try_poll().is_none());
        }
        drop(ask);
    });
}

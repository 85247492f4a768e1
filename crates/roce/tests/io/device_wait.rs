//! A thread of the program that waits for the rings itself.

use std::time::{Duration, Instant};

use portolan_provider::traits::DeviceWait;
use portolan_provider::verbs::{SendOp, WorkCompletion};
use portolan_roce::io::StackConfig;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::harness::*;

/// A pair that sends through memory, both ways.
pub fn linked() -> Pair {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let deadline = Instant::now() + PATIENCE;
    let is_linked = |stack: usize| pair.stacks[stack].counters().sent_through_memory > 0;
    while !(is_linked(0) && is_linked(1)) {
        assert!(Instant::now() < deadline, "no link through memory");
        for (from, to) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
            to.receive(1, to.sge(64, 64));
            from.post(1, SendOp::Send, from.sge(0, 64));
            from.expect(1);
            to.expect(1);
        }
    }
    pair
}

/// Takes a completion without driving the device.
pub fn take(end: &End) -> Option<WorkCompletion> {
    let mut out = [WorkCompletion::EMPTY];
    (end.cq.take(&mut out).unwrap() == 1).then(|| out[0])
}

fn rest(wait: &dyn DeviceWait) {
    while !wait.rest() {
        wait.drive();
    }
}

#[test]
fn a_thread_that_waits_for_the_device_is_woken_by_the_other_process_and_finds_its_messages() {
    let pair = linked();
    let wait = pair.b.cq.wait_for_device().unwrap();
    assert!(pair.b.cq.wait_for_device().is_none(), "one waits already");
    for number in 0..500 {
        pair.b.receive(number, pair.b.sge(64, 64));
        rest(&*wait);
        pair.a.post(number, SendOp::Send, pair.a.sge(0, 64));
        let received = loop {
            if let Some(received) = take(&pair.b) {
                break received;
            }
            let fd = wait.as_fd();
            let patience = Timespec::try_from(PATIENCE).unwrap();
            let polled = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience));
            assert_eq!(polled, Ok(1), "nobody wakes the thread");
            wait.drive();
            if let Some(received) = take(&pair.b) {
                break received;
            }
            rest(&*wait);
        };
        expect(received, number);
        pair.a.expect(number);
    }
    drop(wait);
    assert!(pair.b.cq.wait_for_device().is_some());
}

#[test]
fn a_thread_that_sleeps_late_is_woken_for_what_the_progress_thread_has_taken_over() {
    let pair = linked();
    let wait = pair.b.cq.wait_for_device().unwrap();
    for number in 0..10 {
        pair.b.receive(number, pair.b.sge(64, 64));
        rest(&*wait);
        pair.a.post(number, SendOp::Send, pair.a.sge(0, 64));
        // Only the progress thread acknowledges now.
        pair.a.expect(number);
        std::thread::sleep(Duration::from_millis(20));
        let fd = wait.as_fd();
        let patience = Timespec::try_from(PATIENCE).unwrap();
        let polled = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience));
        assert_eq!(polled, Ok(1), "nobody wakes the thread");
        wait.drive();
        expect(take(&pair.b).unwrap(), number);
    }
}

#[test]
fn a_waiting_thread_sees_without_driving_whether_there_is_something_to_drive_for() {
    let pair = linked();
    let wait = pair.b.cq.wait_for_device().unwrap();
    let mut seen = 0;
    for number in 0..50 {
        pair.b.receive(number, pair.b.sge(64, 64));
        rest(&*wait);
        until("the rings are empty", || !wait.has_more());
        pair.a.post(number, SendOp::Send, pair.a.sge(0, 64));
        until(
            "it sees the message, or the progress thread takes it",
            || {
                let has_more = wait.has_more();
                seen += u32::from(has_more);
                has_more || take(&pair.b).is_some()
            },
        );
        wait.drive();
        pair.a.expect(number);
    }
    assert!(seen > 0);
}

#[test]
fn the_progress_thread_reads_the_rings_for_a_waiting_thread_that_does_not_come() {
    let pair = linked();
    let wait = pair.b.cq.wait_for_device().unwrap();
    for number in 0..50 {
        pair.b.receive(number, pair.b.sge(64, 64));
        if number % 10 == 0 {
            rest(&*wait);
        }
        pair.a.post(number, SendOp::Send, pair.a.sge(0, 64));
        pair.a.expect(number);
        until("the message arrives", || {
            take(&pair.b).is_some_and(|received| expect(received, number).wr_id == number)
        });
    }
}

/// A pair of which only `b` has links through memory, so that its packets come by its sockets.
fn by_sockets() -> Pair {
    let config = config();
    let alone = StackConfig {
        local_memory: false,
        ..config.clone()
    };
    Pair::of([alone, config], "127.0.0.1", Shape::default())
}

/// Waits for a short time until a socket of the device is readable. Returns whether one is.
fn sleep_at_sockets(wait: &dyn DeviceWait) -> bool {
    let sockets: Vec<_> = (0..).map_while(|number| wait.socket(number)).collect();
    let mut fds: Vec<_> = sockets
        .iter()
        .map(|fd| PollFd::new(fd, PollFlags::IN))
        .collect();
    let limit = Timespec::try_from(Duration::from_millis(20)).unwrap();
    poll(&mut fds, Some(&limit)).unwrap() > 0
}

/// Receives a message in a thread that waits for the sockets. Returns how often they woke it.
fn receive_asleep(pair: &Pair, wait: &dyn DeviceWait, number: u64) -> u32 {
    pair.b.receive(number, pair.b.sge(64, 64));
    rest(wait);
    let takes = wait.take_sockets();
    pair.a.post(number, SendOp::Send, pair.a.sge(0, 64));
    let mut woken = 0;
    if takes {
        // The progress thread may read the message if it was awake before.
        woken += u32::from(sleep_at_sockets(wait));
        wait.return_sockets();
    }
    until("the message arrives", || {
        take(&pair.b).is_some_and(|received| expect(received, number).wr_id == number)
    });
    pair.a.expect(number);
    woken
}

#[test]
fn a_thread_that_sleeps_at_the_sockets_itself_finds_its_messages() {
    let pair = by_sockets();
    let wait = pair.b.cq.wait_for_device().unwrap();
    let woken: u32 = (0..500)
        .map(|number| receive_asleep(&pair, &*wait, number))
        .sum();
    assert!(woken > 250, "{woken}");
}

#[test]
fn what_arrives_while_a_thread_that_slept_at_the_sockets_is_away_is_acknowledged() {
    let pair = by_sockets();
    let wait = pair.b.cq.wait_for_device().unwrap();
    for _ in 0..50 {
        // Much traffic between two sleeps: the sockets are left to this thread.
        rest(&*wait);
        let takes = wait.take_sockets();
        for part in 0..32 {
            pair.b.receive(part, pair.b.sge(64, 64));
            pair.a.post(part, SendOp::Send, pair.a.sge(0, 64));
        }
        if takes {
            sleep_at_sockets(&*wait);
            wait.return_sockets();
        }
        // It does not drive the device any more.
        for part in 0..32 {
            pair.a.expect(part);
            until("the message arrives", || {
                take(&pair.b).is_some_and(|received| expect(received, part).wr_id == part)
            });
        }
    }
}

#[test]
fn who_gives_up_during_a_sleep_leaves_the_sockets_to_the_progress_thread() {
    let pair = by_sockets();
    let wait = pair.b.cq.wait_for_device().unwrap();
    until("it takes them", || {
        rest(&*wait);
        wait.take_sockets()
    });
    pair.b.receive(1, pair.b.sge(64, 64));
    pair.a.post(1, SendOp::Send, pair.a.sge(0, 64));
    wait.give_up();
    pair.a.expect(1);
    expect(take(&pair.b).unwrap(), 1);
}

#[test]
fn a_thread_that_does_not_come_back_from_its_sleep_delays_the_others_for_seconds_at_most() {
    let pair = by_sockets();
    let wait = pair.b.cq.wait_for_device().unwrap();
    for number in 0..3 {
        until("it takes the sockets", || {
            rest(&*wait);
            wait.take_sockets()
        });
        // As after longjmp(3) out of a signal handler.
        let begun = Instant::now();
        pair.b.receive(number, pair.b.sge(64, 64));
        pair.a.post(number, SendOp::Send, pair.a.sge(0, 64));
        pair.a.expect(number);
        until("the message arrives", || {
            take(&pair.b).is_some_and(|received| expect(received, number).wr_id == number)
        });
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
    }
}

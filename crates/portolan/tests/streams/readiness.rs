//! Streams in event loops: non-blocking calls, and the descriptor that says when to try again.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::thread;

use portolan::Stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::harness::*;
use crate::pair::*;

/// Waits for the descriptor; fails if nothing happens.
fn wait(stream: &Stream) {
    let patience = Timespec::try_from(PATIENCE).unwrap();
    let fd = stream.as_fd();
    let ready = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)).unwrap();
    assert_eq!(ready, 1, "the stream never becomes ready");
}

fn is_quiet(stream: &Stream) -> bool {
    let fd = stream.as_fd();
    poll(
        &mut [PollFd::new(&fd, PollFlags::IN)],
        Some(&Timespec::default()),
    )
    .unwrap()
        == 0
}

fn would_block<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> bool {
    matches!(outcome, Err(error) if error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn a_nonblocking_echo_in_one_thread_moves_everything() {
    let (active, passive) = streams();
    for stream in [&active, &passive] {
        stream.set_nonblocking(true).unwrap();
    }
    let sent = pattern(2_000_000, 9);
    let echo = thread::spawn(move || {
        let mut bytes = [0; 7000];
        loop {
            match (&passive).read(&mut bytes) {
                Ok(0) => return,
                Ok(length) => {
                    let mut written = 0;
                    while written < length {
                        match (&passive).write(&bytes[written..length]) {
                            Ok(now) => written += now,
                            Err(error) if error.kind() == ErrorKind::WouldBlock => wait(&passive),
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => wait(&passive),
                Err(error) => panic!("{error}"),
            }
        }
    });
    let (mut written, mut back) = (0, Vec::new());
    let mut bytes = vec![0; 9000];
    while back.len() < sent.len() {
        let mut moved = false;
        if written < sent.len() {
            match (&active).write(&sent[written..]) {
                Ok(now) => {
                    written += now;
                    moved = true;
                }
                outcome => assert!(would_block(outcome)),
            }
        }
        match (&active).read(&mut bytes) {
            Ok(length) => {
                back.extend_from_slice(&bytes[..length]);
                moved = true;
            }
            outcome => assert!(would_block(outcome)),
        }
        if !moved {
            wait(&active);
        }
    }
    assert_same(&back, &sent);
    active.shutdown(Shutdown::Write).unwrap();
    echo.join().unwrap();
}

#[test]
fn a_descriptor_is_quiet_after_would_block_and_readable_after_data_the_end_and_room() {
    let (active, mut passive) = streams();
    active.set_nonblocking(true).unwrap();
    let mut byte = [0];
    assert!(would_block((&active).read(&mut byte)));
    eventually("the descriptor is quiet", || {
        assert!(would_block((&active).read(&mut byte)));
        is_quiet(&active)
    });
    passive.write_all(b"x").unwrap();
    // The descriptor may wake for other reasons, too.
    eventually("data", || {
        wait(&active);
        (&active).read(&mut byte).is_ok_and(|length| length == 1)
    });
    while !would_block((&active).write(&[1; 50_000])) {}
    assert!(!active.ready_or_watch(false, true).writable);
    let mut filled = vec![0; 1 << 16];
    passive.read_exact(&mut filled).unwrap();
    // The reader's own call grants the room; it has nothing else to do.
    eventually("room", || {
        wait(&active);
        active.ready_or_watch(false, true).writable
    });
    passive.shutdown(Shutdown::Both).unwrap();
    eventually("the end", || {
        wait(&active);
        active.ready().hung_up
    });
    assert_eq!((&active).read(&mut byte).unwrap(), 0);
}

/// A stream can nearly always be written. That must not keep the descriptor readable for a program that only reads.
#[test]
fn the_descriptor_of_a_reader_becomes_quiet_after_each_message() {
    let (active, mut passive) = streams();
    active.set_nonblocking(true).unwrap();
    let mut byte = [0];
    assert!(would_block((&active).read(&mut byte)));
    for round in 0..20 {
        eventually("the descriptor is quiet", || {
            assert!(would_block((&active).read(&mut byte)), "round {round}");
            is_quiet(&active)
        });
        passive.write_all(b"x").unwrap();
        eventually("data", || {
            wait(&active);
            (&active).read(&mut byte).is_ok_and(|length| length == 1)
        });
    }
}

#[test]
fn an_event_that_one_thread_takes_wakes_the_event_loop_of_another() {
    let (active, mut passive) = streams();
    active.set_nonblocking(true).unwrap();
    let mut byte = [0];
    assert!(would_block((&active).read(&mut byte)));
    passive.write_all(b"x").unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| wait(&active));
        // Takes the data in on the way, and the notification with it.
        eventually("the data is seen", || {
            active.ready_or_watch(true, false).readable
        });
        waiter.join().unwrap();
    });
    assert_eq!((&active).read(&mut byte).unwrap(), 1);
}

#[test]
fn a_nonblocking_listener_reports_when_a_stream_waits() {
    let (listener, address) = stream_listener();
    listener.set_nonblocking(true).unwrap();
    assert!(would_block(listener.accept()));
    thread::scope(|scope| {
        let active = scope.spawn(move || Stream::connect_to(address, &stream_options()).unwrap());
        let patience = Timespec::try_from(PATIENCE).unwrap();
        let fd = listener.as_fd();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)).unwrap();
        let (passive, _) = listener.accept().unwrap();
        let active = active.join().unwrap();
        assert_eq!(active.local_addr().unwrap(), passive.peer_addr().unwrap());
    });
}

#[test]
fn an_event_loop_does_not_take_the_wake_up_of_a_thread_that_waits_by_the_descriptor() {
    let (active, passive) = streams();
    for stream in [&active, &passive] {
        stream.set_nonblocking(true).unwrap();
    }
    let begun = passive.begin_wait([true, false]);
    // The descriptor may first report what came with the connection.
    eventually("nothing more is reported", || {
        assert!(!passive.ready_or_watch(true, false).readable);
        is_quiet(&passive)
    });
    assert_eq!((&active).write(b"ahoy").unwrap(), 4);
    // The loop looks several times before the thread, which waits for the same descriptor, runs.
    let is_readable = || {
        let ready = passive.glance([true, false], false);
        ready.expect("the device calls").readable
    };
    eventually("the data is seen", is_readable);
    assert!(is_readable());
    wait(&passive);
    passive.end_wait([true, false], begun);
    assert!(passive.ready().readable);
}

#[test]
fn a_wait_for_the_end_alone_hears_of_the_end_and_not_of_data_although_others_look_meanwhile() {
    let (active, passive) = streams();
    for stream in [&active, &passive] {
        stream.set_nonblocking(true).unwrap();
    }
    assert_eq!((&active).write(b"ahoy").unwrap(), 4);
    eventually("data", || passive.ready().readable);
    let begun = passive.begin_wait([false, false]);
    eventually("nothing more is reported", || {
        assert!(!passive.ready_or_watch(false, false).read_closed);
        is_quiet(&passive)
    });
    active.shutdown(Shutdown::Write).unwrap();
    eventually("the end is seen", || {
        passive.ready_or_watch(false, false).read_closed
    });
    wait(&passive);
    passive.end_wait([false, false], begun);
    // Who has seen the end waits for the next one.
    let begun = passive.begin_wait([false, false]);
    assert!(is_quiet(&passive));
    passive.end_wait([false, false], begun);
}

/// Fills a stream with a small send buffer again and again, whose peer sends a byte and then reads all that comes into a
/// large buffer. `wait_for_room` is called whenever the stream is full. It has room again when the device has completed
/// what was sent: nothing needs to arrive.
fn fill_often(wait_for_room: impl Fn(&Stream)) {
    let small = stream_options().send_buffer(8192).grows(false);
    let (active, mut passive) = streams_with(&small, stream_options().receive_buffer(1 << 20));
    active.set_nonblocking(true).unwrap();
    let reader = thread::spawn(move || {
        passive.write_all(b"x").unwrap();
        let mut bytes = vec![0; 1 << 16];
        while passive.read(&mut bytes).unwrap() > 0 {}
    });
    eventually("data", || active.ready().readable);
    for _ in 0..5_000 {
        // The completion of this write alone makes no room.
        while would_block((&active).write(&[1; 20])) {
            wait_for_room(&active);
        }
        while !would_block((&active).write(&[1; 8192])) {}
    }
    active.shutdown(Shutdown::Both).unwrap();
    reader.join().unwrap();
}

/// As a thread that waits by the descriptor while another one calls `look`.
fn wait_for_room_beside(active: &Stream, look: impl FnOnce()) {
    let begun = active.begin_wait([false, true]);
    look();
    if !begun.writable {
        wait(active);
    }
    active.end_wait([false, true], begun);
}

#[test]
fn a_reader_does_not_take_the_wake_up_of_an_event_loop_that_waits_for_room() {
    fill_often(|mut active| {
        let mut byte = [0];
        while active.read(&mut byte).is_ok() {}
        wait(active);
    });
}

#[test]
fn an_event_loop_that_reads_does_not_take_the_wake_up_of_a_thread_that_waits_for_room() {
    fill_often(|mut active| {
        while active.read(&mut [0]).is_ok() {}
        wait_for_room_beside(active, || {
            assert!(!active.ready_or_watch(true, false).readable);
        });
    });
}

#[test]
fn a_glance_at_data_does_not_take_the_wake_up_of_a_thread_that_waits_for_room() {
    fill_often(|active| {
        wait_for_room_beside(active, || {
            let seen = active.glance([true, false], false);
            assert!(seen.expect("the device calls").readable);
        });
    });
}

//! Streams between two processes of a host, each a provider of its own, whose waiting threads wait for the device
//! themselves.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::thread;

use portolan::{Stream, StreamListener};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::harness::*;
use crate::pair::*;

/// `count` streams between two providers: the active ends, the passive ones.
pub(crate) fn streams_of_two(count: usize) -> Vec<(Stream, Stream)> {
    let port = free_port();
    let (one, other) = (start(port), start(port));
    let listener = listener_on(other, "127.0.0.1:0");
    let listener = StreamListener::new(listener, stream_options());
    let address = listener.local_addr().unwrap();
    let options = stream_options().provider(one);
    let connect = |_| {
        thread::scope(|scope| {
            let active = scope.spawn(|| Stream::connect_to(address, &options).unwrap());
            let (passive, _) = listener.accept_within(PATIENCE).unwrap();
            let ends = (active.join().unwrap(), passive);
            for end in [&ends.0, &ends.1] {
                end.set_read_timeout(Some(PATIENCE)).unwrap();
            }
            ends
        })
    };
    (0..count).map(connect).collect()
}

/// Reads all of it, by poll(2) of the descriptor after each read that would block.
fn read_polling(mut stream: &Stream, into: &mut [u8]) {
    let mut filled = 0;
    while filled < into.len() {
        match stream.read(&mut into[filled..]) {
            Ok(length) => filled += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let patience = Timespec::try_from(PATIENCE).unwrap();
                let fd = stream.as_fd();
                let polled = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience));
                assert_eq!(polled, Ok(1), "nobody wakes the thread");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn ping_pong(active: &Stream, passive: &Stream, messages: u8, read: fn(&Stream, &mut [u8])) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; 64];
            for _ in 0..messages {
                read(passive, &mut bytes);
                (&*passive).write_all(&bytes).unwrap();
            }
        });
        let mut bytes = [0; 64];
        for number in 0..messages {
            (&*active).write_all(&[number; 64]).unwrap();
            read(active, &mut bytes);
            assert_eq!(bytes, [number; 64]);
        }
    });
}

#[test]
fn threads_that_wait_by_the_descriptors_of_several_streams_are_all_woken() {
    let pairs = streams_of_two(4);
    thread::scope(|scope| {
        for (active, passive) in &pairs {
            scope.spawn(|| {
                active.set_nonblocking(true).unwrap();
                passive.set_nonblocking(true).unwrap();
                ping_pong(active, passive, 200, read_polling);
            });
        }
    });
}

#[test]
fn threads_that_block_in_reads_of_several_streams_are_all_woken() {
    let pairs = streams_of_two(4);
    thread::scope(|scope| {
        for (active, passive) in &pairs {
            scope.spawn(|| {
                ping_pong(active, passive, 200, |mut stream, into| {
                    stream.read_exact(into).unwrap();
                })
            });
        }
    });
}

#[test]
fn a_stream_whose_owner_does_not_come_when_it_is_woken_delays_no_other() {
    let pairs = streams_of_two(2);
    let (idle, busy) = (&pairs[0], &pairs[1]);
    for stream in [&idle.0, &idle.1] {
        // It prepares its descriptor for a wait, and does not wait.
        stream.set_nonblocking(true).unwrap();
        let _ = stream.as_fd();
        let mut reader = stream;
        let nothing = reader.read(&mut [0]).unwrap_err();
        assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    }
    ping_pong(&busy.0, &busy.1, 200, |mut stream, into| {
        stream.read_exact(into).unwrap();
    });
}

#[test]
fn another_stream_waits_for_the_device_after_the_first_one_is_dropped() {
    let mut pairs = streams_of_two(3);
    while let Some((active, passive)) = pairs.pop() {
        active.set_nonblocking(true).unwrap();
        passive.set_nonblocking(true).unwrap();
        ping_pong(&active, &passive, 100, read_polling);
    }
}

//! A connection's descriptor for event loops of any kind.

use std::thread;
use std::time::{Duration, Instant};

use portolan::{Connection, Message, Readiness};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::harness::*;

/// Waits until the descriptor is readable; fails the test if it does not become so.
fn wait_readable(readiness: &Readiness) {
    let timeout = Timespec::try_from(PATIENCE).unwrap();
    let readable = poll(&mut [PollFd::new(readiness, PollFlags::IN)], Some(&timeout));
    assert_eq!(readable.unwrap(), 1, "it becomes readable");
}

fn receive(connection: &Connection, readiness: &Readiness) -> Message {
    loop {
        readiness.arm().unwrap();
        if let Some(message) = connection.try_receive().unwrap() {
            return message;
        }
        wait_readable(readiness);
    }
}

#[test]
fn messages_and_ends_of_transfers_make_it_readable() {
    let (active, passive) = pair();
    let readiness = active.readiness().unwrap();
    let echo = thread::spawn(move || {
        for _ in 0..200 {
            let message = passive.receive_within(PATIENCE).unwrap();
            let answer = passive.buffer_from(&message).unwrap();
            passive.send(answer).unwrap().wait().unwrap();
        }
        passive
    });
    for number in 0..200u8 {
        let buffer = active.buffer_from(&[number]).unwrap();
        let mut sending = active.send(buffer).unwrap();
        loop {
            readiness.arm().unwrap();
            sending = match sending.try_finish() {
                Ok(done) => break drop(done.unwrap()),
                Err(posted) => posted,
            };
            wait_readable(&readiness);
        }
        assert_eq!(receive(&active, &readiness)[..], [number]);
    }
    drop(echo.join().unwrap());
    loop {
        readiness.arm().unwrap();
        match active.try_receive() {
            Ok(message) => assert!(message.is_none()),
            Err(error) => break assert!(error.is_disconnected(), "{error}"),
        }
        wait_readable(&readiness);
    }
}

#[test]
fn it_is_readable_when_another_thread_takes_the_completions() {
    let (active, passive) = pair();
    let readiness = active.readiness().unwrap();
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let error = active.receive_within(PATIENCE).unwrap_err();
            assert!(error.is_disconnected(), "{error}");
        });
        for _ in 0..200 {
            let buffer = active.buffer_from(b"ahoy").unwrap();
            let mut sending = active.send(buffer).unwrap();
            loop {
                readiness.arm().unwrap();
                sending = match sending.try_finish() {
                    Ok(done) => break drop(done.unwrap()),
                    Err(posted) => posted,
                };
                wait_readable(&readiness);
            }
            drop(passive.receive_within(PATIENCE).unwrap());
        }
        passive.disconnect().unwrap();
        other.join().unwrap();
    });
}

#[test]
fn an_armed_descriptor_of_an_idle_connection_is_not_readable() {
    let (active, _passive) = pair();
    let readiness = active.readiness().unwrap();
    readiness.arm().unwrap();
    assert!(active.try_receive().unwrap().is_none());
    let started = Instant::now();
    let timeout = Timespec::try_from(Duration::from_millis(30)).unwrap();
    let readable = poll(
        &mut [PollFd::new(&readiness, PollFlags::IN)],
        Some(&timeout),
    );
    assert_eq!(readable.unwrap(), 0);
    assert!(started.elapsed() >= Duration::from_millis(30));
    assert_eq!(readiness.due(), None, "no keepalives");
}

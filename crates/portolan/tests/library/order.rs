//! Messages arrive in the order in which they were sent, whatever else the program does with the connection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use portolan::Connection;

use crate::harness::*;

/// So many that other callers collect completions between most of them.
const MESSAGES: u64 = 50_000;

/// Sends numbered messages, as fast as the peer takes them, until the connection ends.
fn send_numbers(connection: &Connection) {
    let mut posted = VecDeque::new();
    let mut number = 0u64;
    while number < MESSAGES {
        match connection.send(number.to_ne_bytes().to_vec()) {
            Ok(sent) => {
                posted.push_back(sent);
                number += 1;
            }
            // The send queue is full, or the connection has ended.
            Err(_) => match posted.pop_front().map(portolan::Transfer::wait) {
                Some(Ok(_)) => {}
                _ => return,
            },
        }
    }
}

#[test]
fn messages_keep_their_order_while_other_threads_ask_whether_the_connection_has_ended() {
    let deep = options()
        .receive_depth(256)
        .receive_size(64)
        .send_depth(256);
    let (near, far) = pair_with(&deep, &deep);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| send_numbers(&far));
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) && near.ended().is_none() {
                    thread::yield_now();
                }
            });
        }
        let received = (0..MESSAGES).try_for_each(|expected| {
            let message = near
                .receive_within(PATIENCE)
                .map_err(|error| error.to_string())?;
            let number = u64::from_ne_bytes(message[..8].try_into().unwrap());
            match number == expected {
                true => Ok(()),
                false => Err(format!("expected message {expected}, found {number}")),
            }
        });
        is_over.store(true, Ordering::Relaxed);
        near.disconnect().unwrap();
        assert_eq!(received, Ok(()));
    });
}

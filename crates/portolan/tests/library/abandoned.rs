//! Drops thousands of futures after any number of polls. Every buffer returns, no message is lost or arrives twice, and
//! the connection stays usable.

use std::pin::pin;
use std::task::Poll;

use portolan::tasks::{AsyncConnection, AsyncListener, Posted};
use portolan::{Access, Buffer, Done, RemoteMemory};
use tokio::time::timeout;

use crate::harness::*;

/// Number of futures created (`PORTOLAN_TEST_DROPS`). Most of them are dropped.
const RUNS: u64 = 10_000;
/// Seed of the random choices (`PORTOLAN_TEST_SEED`). It determines the sequence of operations, but not what has
/// completed at each poll.
const SEED: u64 = 0x706f_7274_6f6c_616e;
/// Number of buffers, which are reused.
const BUFFERS: usize = 8;
const LENGTH: usize = 64;

/// A number from the environment, or `usual`. A long campaign sets it.
fn set(name: &str, usual: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.map_or(usual, |text| text.parse().expect("a number"))
}

/// xorshift64: choices need no more.
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// One side, its buffers that are not posted, and what the peer should have got of it.
struct Side {
    connection: AsyncConnection,
    buffers: Vec<Buffer>,
    sent: u64,
    received: u64,
}

impl Side {
    fn new(connection: AsyncConnection) -> Self {
        let buffer = |_| connection.get_ref().buffer(LENGTH).unwrap();
        let buffers = (0..BUFFERS).map(buffer).collect();
        Self {
            connection,
            buffers,
            sent: 0,
            received: 0,
        }
    }

    /// A buffer; waits for abandoned work if all of them are posted.
    async fn buffer(&mut self) -> Buffer {
        if let Some(buffer) = self.buffers.pop() {
            return buffer;
        }
        let transfer = self.connection.get_ref().take_abandoned();
        let transfer = transfer.expect("every buffer is here or known");
        let done = timeout(PATIENCE, self.connection.finish(transfer)).await;
        done.expect("posted work ends").unwrap().buffer
    }

    /// Takes the next message, whose number tells whether one is missing or came twice.
    fn take(&mut self, message: &[u8]) {
        let number = u64::from_be_bytes(*message.first_chunk().unwrap());
        assert_eq!(number, self.received, "in order, each once");
        self.received += 1;
    }
}

/// Polls a future at most `polls` times, and drops it then; its output, if it ended before.
async fn dropped_after<T>(polls: u64, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), polls);
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // Woken at once now and then, as by a runtime that is free to.
            Poll::Pending => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

/// Posts one of all that can be posted.
fn post<'a>(
    connection: &'a AsyncConnection,
    choice: u64,
    mut buffer: Buffer,
    sent: &mut u64,
    memory: RemoteMemory,
) -> Posted<'a> {
    let slice = memory.slice(0, LENGTH).unwrap();
    let posted = match choice {
        0 => connection.write(buffer, slice),
        1 => connection.read(buffer, slice),
        2 => connection.fetch_add(buffer, slice, 1),
        _ => {
            buffer[..8].copy_from_slice(&sent.to_be_bytes());
            *sent += 1;
            connection.send(buffer)
        }
    };
    posted.expect("no more is posted than there are buffers")
}

async fn sides() -> (Side, Side) {
    let listener = AsyncListener::new(listener("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let active = tokio::spawn(async move { connector().connect_to_async(address).await.unwrap() });
    let incoming = listener.accept().await.unwrap();
    let passive = incoming.accept_async(&options()).await.unwrap();
    (Side::new(active.await.unwrap()), Side::new(passive))
}

#[tokio::test]
async fn ten_thousand_futures_dropped_at_any_poll_lose_no_buffer_and_no_message() {
    let (mut one, mut two) = sides().await;
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let memory = two.connection.get_ref().share(LENGTH, access).unwrap();
    let remote = memory.remote();
    let back = one.connection.get_ref().share(LENGTH, access).unwrap();
    let (runs, seed) = (
        set("PORTOLAN_TEST_DROPS", RUNS),
        set("PORTOLAN_TEST_SEED", SEED),
    );
    // From a seed of zero, xorshift produces only zeros.
    let mut choices = Choices(seed.max(1));
    let (mut ended, mut dropped) = (0, 0);
    for run in 0..runs {
        let is_one = choices.below(2) == 0;
        let (side, remote) = match is_one {
            true => (&mut one, remote),
            false => (&mut two, back.remote()),
        };
        let polls = choices.below(5);
        if choices.below(4) == 0 {
            match dropped_after(polls, side.connection.receive()).await {
                Some(message) => {
                    let message = message.unwrap();
                    side.take(&message);
                    ended += 1;
                }
                None => dropped += 1,
            }
            continue;
        }
        let buffer = side.buffer().await;
        let choice = choices.below(6);
        let posted = post(&side.connection, choice, buffer, &mut side.sent, remote);
        match dropped_after(polls, posted).await {
            Some(done) => {
                let Done { buffer, .. } = done.unwrap_or_else(|error| panic!("{run}: {error}"));
                side.buffers.push(buffer);
                ended += 1;
            }
            None => dropped += 1,
        }
        // The peer takes what waits, or the sixteen receives run out.
        let (to, from) = if is_one {
            (&mut two, &one)
        } else {
            (&mut one, &two)
        };
        while from.sent - to.received > 8 {
            let message = timeout(PATIENCE, to.connection.receive()).await;
            let message = message.expect("it was sent").unwrap();
            to.take(&message);
        }
    }
    assert!(
        ended > runs / 20 && dropped > runs / 20,
        "{ended} {dropped}"
    );
    let (of_one, of_two) = (one.sent, two.sent);
    for (to, from) in [(&mut two, of_one), (&mut one, of_two)] {
        while to.received < from {
            let message = timeout(PATIENCE, to.connection.receive()).await;
            let message = message.expect("it was sent").unwrap();
            to.take(&message);
        }
        assert!(to.connection.get_ref().try_receive().unwrap().is_none());
    }
    for side in [&mut one, &mut two] {
        let mut all = Vec::new();
        for _ in 0..BUFFERS {
            all.push(side.buffer().await);
        }
        assert!(side.connection.get_ref().take_abandoned().is_none());
        assert!(all.iter().all(|buffer| buffer.len() == LENGTH));
        assert_eq!(side.connection.get_ref().ended(), None);
    }
}

#[tokio::test]
async fn abandoned_work_is_known_by_its_tag_and_waited_for_in_any_order() {
    let (one, two) = sides().await;
    let (sender, receiver) = (&one.connection, &two.connection);
    for tag in [10u64, 20, 20, 30] {
        let message = sender.get_ref().buffer_from(&tag.to_be_bytes()).unwrap();
        let posted = sender.send(message).unwrap().tagged(tag);
        assert_eq!(posted.tag(), Some(tag));
        drop(posted);
    }
    drop(sender.send(vec![0; 8]).unwrap());
    let connection = sender.get_ref();
    assert!(connection.take_abandoned_tagged(40).is_none());
    for tag in [30, 20, 20, 10] {
        let transfer = connection.take_abandoned_tagged(tag).expect("it is known");
        assert_eq!(transfer.tag(), Some(tag));
        // Dropped again, it keeps its tag.
        drop(sender.finish(transfer));
        let transfer = connection.take_abandoned_tagged(tag).expect("it is known");
        let done = timeout(PATIENCE, sender.finish(transfer)).await;
        let buffer = done.expect("posted work ends").unwrap().buffer;
        assert_eq!(buffer[..], tag.to_be_bytes());
    }
    let untagged = connection.take_abandoned().expect("the last one");
    assert_eq!(untagged.tag(), None);
    untagged.wait().unwrap();
    assert!(connection.take_abandoned().is_none());
    for tag in [10u64, 20, 20, 30, 0] {
        let message = receiver.receive().await.unwrap();
        assert_eq!(message[..], tag.to_be_bytes());
    }
}

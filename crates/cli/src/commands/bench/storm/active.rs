//! The connecting side: many ids on one channel, in one thread.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portolan::cm::{CmId, Event, EventChannel};
use portolan::provider::cm::{EventType, IdNumber};
use portolan::provider::traits::Provider;

use super::MESSAGE_LEN;
use super::queue_pairs::QueuePairs;
use crate::commands::bench::memory::resident_bytes;
use crate::latency::Latencies;

/// The local port of the first connection at each address. The next ones follow: there are too few ephemeral ports.
const FIRST_PORT: u16 = 4096;
/// Time limit for a whole step.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Active {
    events: EventChannel,
    /// The listeners, which the connections go to by turns.
    to: Vec<SocketAddr>,
    /// The number of the next connection.
    next: usize,
    queue_pairs: Option<QueuePairs>,
    capacity: u32,
    /// Ids with a resolved route.
    routed: Vec<CmId>,
    connected: Vec<CmId>,
    resident_before: u64,
}

impl Active {
    pub(super) fn new(
        provider: Arc<dyn Provider>,
        to: Vec<SocketAddr>,
        capacity: u32,
    ) -> Result<Active> {
        Ok(Active {
            events: EventChannel::open_on(provider)?,
            to,
            next: 0,
            queue_pairs: None,
            capacity,
            routed: Vec::new(),
            connected: Vec::new(),
            resident_before: resident_bytes()?,
        })
    }

    /// Resolves the address and route of `count` ids and creates their queue pairs.
    pub(super) fn resolve(&mut self, count: u32) -> Result<()> {
        let mut ids = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let id = CmId::new(&self.events)?;
            let number = self.next;
            self.next += 1;
            let to = *self.to.get(number % self.to.len()).context("no listener")?;
            let port = FIRST_PORT + u16::try_from(number / self.to.len())?;
            id.resolve_addr(Some(SocketAddr::new(to.ip(), port)), to, PATIENCE)?;
            ids.push(id);
        }
        let deadline = Instant::now() + PATIENCE;
        while self.routed.len() < ids.len() {
            let event = self.next(deadline)?;
            match event.event_type() {
                EventType::AddrResolved => event.id().resolve_route(PATIENCE)?,
                EventType::RouteResolved => {
                    let id = event.id();
                    let queue_pairs = match &mut self.queue_pairs {
                        Some(queue_pairs) => queue_pairs,
                        none => none.insert(QueuePairs::new(&id.device()?, self.capacity)?),
                    };
                    queue_pairs.enter(id)?;
                    self.routed.push(id.clone());
                }
                _ => bail!(unexpected(&event)),
            }
        }
        Ok(())
    }

    /// Connects all ids with a resolved route at once; returns the time of each.
    pub(super) fn connect(&mut self) -> Result<Latencies> {
        let (mut latencies, mut under_way) =
            (Latencies::new(), HashMap::<IdNumber, Instant>::new());
        let deadline = Instant::now() + PATIENCE;
        let ids = std::mem::take(&mut self.routed);
        for id in &ids {
            under_way.insert(id.number(), Instant::now());
            id.connect(&QueuePairs::conn_param())?;
        }
        while !under_way.is_empty() {
            let event = self.next(deadline)?;
            match event.event_type() {
                EventType::Established => {
                    let started = under_way.remove(&event.id().number());
                    let started = started.context("an id is established twice")?;
                    latencies.record(started.elapsed());
                }
                _ => bail!(unexpected(&event)),
            }
        }
        self.connected.extend(ids);
        Ok(latencies)
    }

    /// Memory of this process per connection.
    pub(super) fn bytes_per_connection(&self) -> Result<u64> {
        let grown = resident_bytes()?.saturating_sub(self.resident_before);
        Ok(grown / self.connected.len().max(1) as u64)
    }

    /// Sends a message over each of `messages` randomly chosen connections and waits for all replies.
    pub(super) fn exchange(&self, messages: u32, seed: u64) -> Result<Latencies> {
        let queue_pairs = self
            .queue_pairs
            .as_ref()
            .context("there is no connection")?;
        let mut latencies = Latencies::new();
        let mut under_way = HashMap::new();
        for number in drawn(self.connected.len(), messages as usize, seed) {
            let mut message = [0; MESSAGE_LEN];
            for (at, byte) in message.iter_mut().enumerate() {
                *byte = (number >> (at % 8)) as u8 ^ at as u8;
            }
            under_way.insert(number, (Instant::now(), message));
            queue_pairs.send(number, &message)?;
        }
        let deadline = Instant::now() + PATIENCE;
        while !under_way.is_empty() {
            for number in queue_pairs.arrivals()? {
                let (sent, message) = under_way
                    .remove(&number)
                    .context("an unexpected message arrived")?;
                ensure!(
                    queue_pairs.message(number) == message,
                    "a message came back changed"
                );
                latencies.record(sent.elapsed());
            }
            ensure!(
                Instant::now() < deadline,
                "{} messages are missing",
                under_way.len()
            );
        }
        Ok(latencies)
    }

    /// Disconnects all connections and waits for the peer's answers.
    pub(super) fn disconnect(mut self) -> Result<()> {
        let ids = std::mem::take(&mut self.connected);
        for id in &ids {
            id.disconnect()?;
        }
        let deadline = Instant::now() + PATIENCE;
        let mut left = ids.len();
        while left > 0 {
            match self.next(deadline)?.event_type() {
                EventType::Disconnected => left -= 1,
                // The end of time-wait.
                EventType::TimewaitExit => {}
                other => bail!("{other} while waiting for the end of a connection"),
            }
        }
        Ok(())
    }

    fn next(&self, deadline: Instant) -> Result<Event> {
        let left = deadline.saturating_duration_since(Instant::now());
        Ok(self.events.next_event_within(left)?)
    }
}

fn unexpected(event: &Event) -> anyhow::Error {
    match event.failure() {
        Some(error) => error.into(),
        None => anyhow::anyhow!("{} was not expected", event.event_type()),
    }
}

/// `count` different random numbers below `below` (Fisher and Yates).
fn drawn(below: usize, count: usize, seed: u64) -> Vec<usize> {
    let mut numbers: Vec<usize> = (0..below).collect();
    let mut state = seed;
    for at in 0..count.min(below) {
        // Knuth's MMIX generator, whose high bits are the random ones.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let left = below - at;
        numbers.swap(at, at + (state >> 33) as usize % left);
    }
    numbers.truncate(count);
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_drawn_once_each_and_differ_with_the_seed() {
        let some = drawn(10_000, 1000, 1);
        let mut sorted = some.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 1000);
        assert!(sorted.iter().all(|number| *number < 10_000));
        assert_ne!(some, drawn(10_000, 1000, 2));
        assert_eq!(drawn(3, 5, 1).len(), 3);
    }
}

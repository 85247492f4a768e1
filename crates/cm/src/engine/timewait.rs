//! Time-wait: a closed connection is remembered while its late packets may arrive, even if its id is destroyed.

use alloc::collections::VecDeque;
use core::hash::Hash;
use core::time::Duration;

use portolan_provider::cm::{EventType, IdNumber};

use crate::config::time_of_exponent;
use crate::engine::Cm;
use crate::hash::{Keyed, Map};
use crate::mutant::{Mutant, is_planted};
use crate::state::{Event, State};

/// The keys of destroyed or rejected ids that a peer's request had created, and the answers to late copies of that request.
/// A copy must not open a connection that its sender no longer wants.
#[derive(Debug)]
pub(crate) struct Remembered<K, V> {
    entries: Map<K, (Duration, V)>,
    /// The same, oldest first.
    order: VecDeque<K>,
    limit: usize,
}

impl<K: Copy + Eq + Hash, V> Remembered<K, V> {
    pub(crate) fn new(limit: usize, hash: Keyed) -> Self {
        Self {
            entries: Map::with_hasher(hash),
            order: VecDeque::new(),
            limit,
        }
    }

    /// Whether the key is still remembered.
    pub(crate) fn contains(&self, now: Duration, key: &K) -> bool {
        self.get(now, key).is_some()
    }

    /// The value stored with the key.
    pub(crate) fn get(&self, now: Duration, key: &K) -> Option<&V> {
        let (until, value) = self.entries.get(key)?;
        (*until > now).then_some(value)
    }

    pub(crate) fn insert(&mut self, now: Duration, key: K, until: Duration, value: V) {
        while let Some(oldest) = self.order.front() {
            let entry = self.entries.get(oldest);
            let over = entry.is_none_or(|(until, _)| *until <= now);
            if !over && self.order.len() < self.limit {
                break;
            }
            self.entries.remove(oldest);
            self.order.pop_front();
        }
        if self.limit > 0 && self.entries.insert(key, (until, value)).is_none() {
            self.order.push_back(key);
        }
    }

    /// Forgets a key. Looks through all keys.
    pub(crate) fn forget(&mut self, key: &K) {
        if self.entries.remove(key).is_some() {
            self.order.retain(|known| known != key);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }
}

impl Cm {
    /// Starts time-wait (`cm_enter_timewait`). The peer may reuse its queue pair from now on. Its communication id
    /// stays known, so that a copy of its request is recognized.
    pub(crate) fn begin_timewait(&mut self, now: Duration, number: IdNumber) {
        self.settle(number);
        self.ids.forget_remote_qp(number);
        let mut wait = self.timewait_of(number);
        if is_planted(Mutant::TimewaitSkipped) {
            wait = Duration::ZERO;
        }
        self.set_deadline(number, Some(now.saturating_add(wait)));
    }

    /// Ends time-wait (`cm_timewait_handler`). The owner gets the event only if it knows that the connection ended.
    pub(crate) fn timewait_over(&mut self, now: Duration, number: IdNumber) {
        if !self.advance(now, number, Event::TimewaitOver) {
            return;
        }
        let connection = self.ids.get(number).and_then(|id| id.connection.as_deref());
        if connection.is_some_and(|connection| connection.disconnect_reported) {
            self.report_bare(number, EventType::TimewaitExit, 0);
        }
    }

    /// Stores the key of a connection that is being destroyed.
    pub(crate) fn remember(&mut self, now: Duration, number: IdNumber) {
        let Some(id) = self.ids.get(number) else {
            return;
        };
        let Some(connection) = id
            .connection
            .as_deref()
            .filter(|connection| connection.passive)
        else {
            return;
        };
        let until = match id.state {
            State::Timewait => id.deadline.unwrap_or(now),
            State::RepSent
            | State::MraRepRcvd
            | State::Established
            | State::DreqSent
            | State::DreqRcvd
            | State::DeviceRemoval => now.saturating_add(self.timewait_of(number)),
            _ => return,
        };
        if let Some(remote) = connection.remote_id() {
            self.remembered.insert(now, remote, until, ());
        }
    }

    fn timewait_of(&self, number: IdNumber) -> Duration {
        let connection = self.ids.get(number).and_then(|id| id.connection.as_deref());
        let exponent = connection.map_or(0, |connection| connection.ack_timeout_exp);
        time_of_exponent(exponent.min(self.config.longest_grant_exp))
    }
}

//! Pending lookups as a pure engine: table entries, probe results and time come in; queries, probes
//! and outcomes go out.
//!
//! After each input, drain [`Pending::next_action`] and [`Pending::take_finished`]; then call
//! [`Pending::handle_timeout`] no later than [`Pending::next_timeout`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use portolan_provider::Cause;

use super::link_address::LinkAddress;

/// Maximum number of pending lookups of one resolver.
pub const WAITERS_MAX: usize = 16_384;

/// Interval at which the table is queried again while an answer is pending: a notification may be
/// lost, and the kernel may drop an entry under memory pressure.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Delay before the table is queried again after lost notifications. An immediate query may lose
/// its answer to the same storm of changes.
const LOSS_DELAY: Duration = Duration::from_millis(20);

/// A neighbour: an address on an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NextHop {
    pub(super) address: IpAddr,
    pub(super) interface_index: u32,
}

/// The neighbour table's entry for a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The address is known: reachable, stale, delay, probe, permanent, noarp.
    Usable(LinkAddress),
    /// ARP or neighbour discovery is in progress.
    Incomplete,
    /// Resolution failed: no answer.
    Failed,
    /// There is no entry.
    Absent,
}

/// An action for the driver to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Query the table, then call [`Pending::handle_reply`] with the sequence number.
    Query { hop: NextHop, sequence: u32 },
    /// Send a datagram to the next hop. Call [`Pending::handle_refusal`] if it cannot be sent, or
    /// [`Pending::handle_deferral`] if it cannot be sent now.
    Probe(NextHop),
    /// Find out whether the interface resolves neighbours; call [`Pending::handle_link`].
    ReadLink(NextHop),
}

/// The state of a next hop's lookup, named for what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The table's entry before any probe.
    FirstEntry,
    /// The table's entry right after a probe.
    ProbedEntry,
    /// Whether the interface resolves neighbours.
    Link,
    /// The kernel's ARP or neighbour discovery.
    Discovery,
}

#[derive(Debug)]
struct Hop {
    phase: Phase,
    tickets: BTreeSet<u64>,
    /// The latest query; replies to older ones are ignored.
    query: u32,
    probes: u32,
    recheck_at: Instant,
}

#[derive(Debug)]
struct Waiter<W> {
    hop: NextHop,
    deadline: Instant,
    after_ms: u64,
    done: W,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A lookup's deadline.
    Deadline(u64),
    /// When to query a next hop's entry again.
    Recheck(NextHop),
}

/// All pending lookups. `W` receives the outcome.
#[derive(Debug)]
pub(super) struct Pending<W> {
    hops: BTreeMap<NextHop, Hop>,
    waiters: BTreeMap<u64, Waiter<W>>,
    queries: BTreeMap<u32, NextHop>,
    timers: BTreeSet<(Instant, Timer)>,
    actions: VecDeque<Action>,
    finished: Vec<(W, Result<LinkAddress, Cause>)>,
    last_ticket: u64,
    last_sequence: u32,
}

impl<W> Pending<W> {
    pub(super) fn new() -> Self {
        Self {
            hops: BTreeMap::new(),
            waiters: BTreeMap::new(),
            queries: BTreeMap::new(),
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            finished: Vec::new(),
            last_ticket: 0,
            last_sequence: 0,
        }
    }

    /// Adds a lookup; it joins the work on its next hop if that has begun.
    pub(super) fn add(
        &mut self,
        hop: NextHop,
        now: Instant,
        within: Duration,
        done: W,
    ) -> Result<u64, Cause> {
        if self.waiters.len() >= WAITERS_MAX {
            let limit = WAITERS_MAX as u64;
            return Err(Cause::LimitReached {
                what: "pending neighbour lookups",
                limit,
            });
        }
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let deadline = now + within;
        let after_ms = within.as_millis() as u64;
        self.waiters.insert(
            ticket,
            Waiter {
                hop,
                deadline,
                after_ms,
                done,
            },
        );
        self.timers.insert((deadline, Timer::Deadline(ticket)));
        if let Some(state) = self.hops.get_mut(&hop) {
            state.tickets.insert(ticket);
        } else {
            let state = Hop {
                phase: Phase::FirstEntry,
                tickets: BTreeSet::from([ticket]),
                query: 0,
                probes: 0,
                recheck_at: now + RECHECK_INTERVAL,
            };
            self.timers.insert((state.recheck_at, Timer::Recheck(hop)));
            self.hops.insert(hop, state);
            self.query(hop);
        }
        Ok(ticket)
    }

    /// Cancels a lookup and returns its `W`.
    pub(super) fn cancel(&mut self, ticket: u64) -> Option<W> {
        let waiter = self.remove_waiter(ticket)?;
        let state = self.hops.get_mut(&waiter.hop)?;
        state.tickets.remove(&ticket);
        if state.tickets.is_empty() {
            self.remove_hop(waiter.hop);
        }
        Some(waiter.done)
    }

    /// Handles the table's reply to a query, or the query's failure.
    pub(super) fn handle_reply(&mut self, sequence: u32, reply: Result<Entry, Cause>) {
        let Some(hop) = self.queries.remove(&sequence) else {
            return;
        };
        let Some(state) = self.hops.get_mut(&hop) else {
            return;
        };
        let entry = match reply {
            Ok(entry) => entry,
            Err(cause) => return self.finish(hop, Err(cause)),
        };
        match (state.phase, entry) {
            (_, Entry::Usable(address)) => self.finish(hop, Ok(address)),
            // Whatever the entry was, a probe makes the kernel try again, and a later failure is a
            // new one.
            (Phase::FirstEntry, _) => self.probe(hop),
            (Phase::ProbedEntry, Entry::Absent) => {
                state.phase = Phase::Link;
                self.actions.push_back(Action::ReadLink(hop));
            }
            (Phase::ProbedEntry, Entry::Incomplete) => state.phase = Phase::Discovery,
            (Phase::ProbedEntry | Phase::Discovery, Entry::Failed) => {
                self.finish(hop, Err(Cause::HostUnreachable));
            }
            (Phase::Discovery, Entry::Absent) => self.probe(hop),
            (Phase::Discovery, Entry::Incomplete) | (Phase::Link, _) => {}
        }
    }

    /// Handles a change that the kernel announced. Changes and replies arrive in the order in which
    /// they happened: before the first reply a change may be old; in [`Phase::Discovery`] it is
    /// newer than the probe.
    pub(super) fn handle_change(&mut self, hop: NextHop, entry: Entry) {
        let Some(state) = self.hops.get(&hop) else {
            return;
        };
        match (state.phase, entry) {
            (Phase::FirstEntry, _) => {}
            (_, Entry::Usable(address)) => self.finish(hop, Ok(address)),
            (Phase::Discovery, Entry::Failed) => self.finish(hop, Err(Cause::HostUnreachable)),
            _ => {}
        }
    }

    /// Handles a probe that could not be sent.
    pub(super) fn handle_refusal(&mut self, hop: NextHop, cause: Cause) {
        self.finish(hop, Err(cause));
    }

    /// Handles a probe that could not be sent for now: the next recheck starts over. Until then the
    /// table's entry does not reflect a probe.
    pub(super) fn handle_deferral(&mut self, hop: NextHop) {
        let Some(state) = self.hops.get_mut(&hop) else {
            return;
        };
        state.phase = Phase::FirstEntry;
        state.probes = state.probes.saturating_sub(1);
        self.queries.remove(&state.query);
    }

    /// Handles the answer whether the next hop's interface resolves neighbours.
    pub(super) fn handle_link(&mut self, hop: NextHop, resolves: Result<bool, Cause>) {
        let Some(state) = self.hops.get_mut(&hop) else {
            return;
        };
        if state.phase != Phase::Link {
            return;
        }
        match resolves {
            Ok(true) => state.phase = Phase::Discovery,
            Ok(false) => self.finish(hop, Ok(LinkAddress::NONE)),
            Err(cause) => self.finish(hop, Err(cause)),
        }
    }

    /// Handles an ICMP error for a probe to this address. It may be forged by anyone, so it only
    /// makes the engine query the table sooner.
    pub(super) fn handle_icmp_error(&mut self, address: IpAddr) {
        let of = |interface_index| NextHop {
            address,
            interface_index,
        };
        let hops: Vec<_> = self
            .hops
            .range(of(0)..=of(u32::MAX))
            .filter(|(_, state)| state.phase == Phase::Discovery)
            .filter(|(_, state)| !self.queries.contains_key(&state.query))
            .map(|(hop, _)| *hop)
            .collect();
        hops.into_iter().for_each(|hop| self.query(hop));
    }

    /// Handles lost replies or notifications: queries again soon.
    pub(super) fn handle_loss(&mut self, now: Instant) {
        for (hop, state) in &mut self.hops {
            self.timers
                .remove(&(state.recheck_at, Timer::Recheck(*hop)));
            state.recheck_at = state.recheck_at.min(now + LOSS_DELAY);
            self.timers.insert((state.recheck_at, Timer::Recheck(*hop)));
        }
    }

    /// Handles the timers that are due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            match timer {
                Timer::Deadline(ticket) => self.expire(ticket),
                Timer::Recheck(hop) => self.recheck(hop, now),
            }
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The next action; drain before waiting.
    pub(super) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Outcomes since the last call.
    pub(super) fn take_finished(&mut self) -> Vec<(W, Result<LinkAddress, Cause>)> {
        std::mem::take(&mut self.finished)
    }

    /// Fails all lookups.
    pub(super) fn fail_all(&mut self, cause: &Cause) {
        while let Some(hop) = self.hops.keys().next().copied() {
            self.finish(hop, Err(cause.clone()));
        }
    }

    /// Returns whether no lookup is pending.
    pub(super) fn is_idle(&self) -> bool {
        self.hops.is_empty()
    }

    fn query(&mut self, hop: NextHop) {
        let Some(state) = self.hops.get_mut(&hop) else {
            return;
        };
        // Zero marks notifications. At most one query per hop is current, so the numbers in use are
        // few and close together: the counter never wraps into one of them.
        self.last_sequence = self.last_sequence.wrapping_add(1).max(1);
        self.queries.remove(&state.query);
        state.query = self.last_sequence;
        self.queries.insert(state.query, hop);
        self.actions.push_back(Action::Query {
            hop,
            sequence: state.query,
        });
    }

    /// Sends a probe, and queries the entry that results.
    fn probe(&mut self, hop: NextHop) {
        let Some(state) = self.hops.get_mut(&hop) else {
            return;
        };
        state.phase = Phase::ProbedEntry;
        state.probes += 1;
        self.actions.push_back(Action::Probe(hop));
        self.query(hop);
    }

    fn recheck(&mut self, hop: NextHop, now: Instant) {
        let Some(state) = self.hops.get_mut(&hop) else {
            return;
        };
        self.timers.remove(&(state.recheck_at, Timer::Recheck(hop)));
        state.recheck_at = now + RECHECK_INTERVAL;
        self.timers.insert((state.recheck_at, Timer::Recheck(hop)));
        self.query(hop);
    }

    fn expire(&mut self, ticket: u64) {
        let Some(waiter) = self.waiters.get(&ticket) else {
            return;
        };
        let probes = self.hops.get(&waiter.hop).map_or(0, |state| state.probes);
        // The first probe is the message; later ones are retries.
        let cause = Cause::TimedOut {
            after_ms: waiter.after_ms,
            retries: probes.saturating_sub(1),
        };
        if let Some(done) = self.cancel(ticket) {
            self.finished.push((done, Err(cause)));
        }
    }

    fn finish(&mut self, hop: NextHop, outcome: Result<LinkAddress, Cause>) {
        for ticket in self.remove_hop(hop) {
            if let Some(waiter) = self.remove_waiter(ticket) {
                self.finished.push((waiter.done, outcome.clone()));
            }
        }
    }

    fn remove_waiter(&mut self, ticket: u64) -> Option<Waiter<W>> {
        let waiter = self.waiters.remove(&ticket)?;
        self.timers
            .remove(&(waiter.deadline, Timer::Deadline(ticket)));
        Some(waiter)
    }

    fn remove_hop(&mut self, hop: NextHop) -> BTreeSet<u64> {
        let Some(state) = self.hops.remove(&hop) else {
            return BTreeSet::new();
        };
        self.timers.remove(&(state.recheck_at, Timer::Recheck(hop)));
        self.queries.remove(&state.query);
        state.tickets
    }
}

#[cfg(test)]
mod tests;

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

/// What a lookup needs to know of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Need {
    /// Its address, confirmed or not.
    Address,
    /// That it answers.
    Answer,
}

/// What lookups share: those of one next hop with one need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Target {
    pub(super) hop: NextHop,
    pub(super) need: Need,
}

/// The neighbour table's entry for a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The address is valid: reachable, permanent, noarp.
    Valid(LinkAddress),
    /// The address was valid, and nothing tests it.
    Stale(LinkAddress),
    /// The address was valid, and the kernel tests it: delay, probe.
    Probed(LinkAddress),
    /// ARP or neighbour discovery is in progress.
    Incomplete,
    /// Resolution failed: no answer.
    Failed,
    /// There is no entry.
    Absent,
}

impl Entry {
    /// The address, confirmed or not.
    pub(super) fn address(self) -> Option<LinkAddress> {
        match self {
            Self::Valid(address) | Self::Stale(address) | Self::Probed(address) => Some(address),
            Self::Incomplete | Self::Failed | Self::Absent => None,
        }
    }

    /// The entry for a lookup with this need. One that needs an answer treats an unconfirmed
    /// address like an unknown one.
    fn for_need(self, need: Need) -> Seen {
        match (self, need) {
            (Self::Valid(address), _)
            | (Self::Stale(address) | Self::Probed(address), Need::Address) => {
                Seen::Usable(address)
            }
            (Self::Probed(_), Need::Answer) | (Self::Incomplete, _) => Seen::Incomplete,
            (Self::Stale(_), Need::Answer) | (Self::Absent, _) => Seen::Absent,
            (Self::Failed, _) => Seen::Failed,
        }
    }
}

/// An entry for one need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It suffices.
    Usable(LinkAddress),
    /// ARP or neighbour discovery is in progress.
    Incomplete,
    /// There was no answer.
    Failed,
    /// The kernel does nothing.
    Absent,
}

/// An action for the driver to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Query the table, then call [`Pending::handle_reply`] with the sequence number.
    Query { hop: NextHop, sequence: u32 },
    /// Send a datagram to the next hop. Call [`Pending::handle_refusal`] if it cannot be sent, or
    /// [`Pending::handle_deferral`] if it cannot be sent now.
    Probe(Target),
    /// Find out whether the interface resolves neighbours; call [`Pending::handle_link`].
    ReadLink(Target),
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
    target: Target,
    deadline: Instant,
    after_ms: u64,
    done: W,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A lookup's deadline.
    Deadline(u64),
    /// When to query a next hop's entry again.
    Recheck(Target),
}

/// All pending lookups. `W` receives the outcome.
#[derive(Debug)]
pub(super) struct Pending<W> {
    hops: BTreeMap<Target, Hop>,
    waiters: BTreeMap<u64, Waiter<W>>,
    queries: BTreeMap<u32, Target>,
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

    /// Adds a lookup; it joins the work on its target if that has begun.
    pub(super) fn add(
        &mut self,
        target: Target,
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
                target,
                deadline,
                after_ms,
                done,
            },
        );
        self.timers.insert((deadline, Timer::Deadline(ticket)));
        if let Some(state) = self.hops.get_mut(&target) {
            state.tickets.insert(ticket);
        } else {
            let state = Hop {
                phase: Phase::FirstEntry,
                tickets: BTreeSet::from([ticket]),
                query: 0,
                probes: 0,
                recheck_at: now + RECHECK_INTERVAL,
            };
            self.timers
                .insert((state.recheck_at, Timer::Recheck(target)));
            self.hops.insert(target, state);
            self.query(target);
        }
        Ok(ticket)
    }

    /// Cancels a lookup and returns its `W`.
    pub(super) fn cancel(&mut self, ticket: u64) -> Option<W> {
        let waiter = self.remove_waiter(ticket)?;
        let state = self.hops.get_mut(&waiter.target)?;
        state.tickets.remove(&ticket);
        if state.tickets.is_empty() {
            self.remove_hop(waiter.target);
        }
        Some(waiter.done)
    }

    /// Handles the table's reply to a query, or the query's failure.
    pub(super) fn handle_reply(&mut self, sequence: u32, reply: Result<Entry, Cause>) {
        let Some(target) = self.queries.remove(&sequence) else {
            return;
        };
        let Some(state) = self.hops.get_mut(&target) else {
            return;
        };
        let entry = match reply {
            Ok(entry) => entry,
            Err(cause) => return self.finish(target, Err(cause)),
        };
        match (state.phase, entry.for_need(target.need)) {
            (_, Seen::Usable(address)) => self.finish(target, Ok(address)),
            // Whatever the entry was, a probe makes the kernel try again, and a later failure is a
            // new one.
            (Phase::FirstEntry, _) => self.probe(target),
            (Phase::ProbedEntry, Seen::Absent) => {
                state.phase = Phase::Link;
                self.actions.push_back(Action::ReadLink(target));
            }
            (Phase::ProbedEntry, Seen::Incomplete) => state.phase = Phase::Discovery,
            (Phase::ProbedEntry | Phase::Discovery, Seen::Failed) => {
                self.finish(target, Err(Cause::HostUnreachable));
            }
            (Phase::Discovery, Seen::Absent) => self.probe(target),
            (Phase::Discovery, Seen::Incomplete) | (Phase::Link, _) => {}
        }
    }

    /// Handles a change that the kernel announced. Changes and replies arrive in the order in which
    /// they happened: before the first reply a change may be old; in [`Phase::Discovery`] it is
    /// newer than the probe.
    pub(super) fn handle_change(&mut self, hop: NextHop, entry: Entry) {
        for need in [Need::Address, Need::Answer] {
            let target = Target { hop, need };
            let Some(state) = self.hops.get(&target) else {
                continue;
            };
            match (state.phase, entry.for_need(need)) {
                (Phase::FirstEntry, _) => {}
                (_, Seen::Usable(address)) => self.finish(target, Ok(address)),
                (Phase::Discovery, Seen::Failed) => {
                    self.finish(target, Err(Cause::HostUnreachable));
                }
                _ => {}
            }
        }
    }

    /// Handles a probe that could not be sent.
    pub(super) fn handle_refusal(&mut self, target: Target, cause: Cause) {
        self.finish(target, Err(cause));
    }

    /// Handles a probe that could not be sent for now: the next recheck starts over. Until then the
    /// table's entry does not reflect a probe.
    pub(super) fn handle_deferral(&mut self, target: Target) {
        let Some(state) = self.hops.get_mut(&target) else {
            return;
        };
        state.phase = Phase::FirstEntry;
        state.probes = state.probes.saturating_sub(1);
        self.queries.remove(&state.query);
    }

    /// Handles the answer whether the next hop's interface resolves neighbours.
    pub(super) fn handle_link(&mut self, target: Target, resolves: Result<bool, Cause>) {
        let Some(state) = self.hops.get_mut(&target) else {
            return;
        };
        if state.phase != Phase::Link {
            return;
        }
        match resolves {
            Ok(true) => state.phase = Phase::Discovery,
            Ok(false) => self.finish(target, Ok(LinkAddress::NONE)),
            Err(cause) => self.finish(target, Err(cause)),
        }
    }

    /// Handles an ICMP error for a probe to this address. It may be forged by anyone, so it only
    /// makes the engine query the table sooner.
    pub(super) fn handle_icmp_error(&mut self, address: IpAddr) {
        let of = |interface_index, need| Target {
            hop: NextHop {
                address,
                interface_index,
            },
            need,
        };
        let hops: Vec<_> = self
            .hops
            .range(of(0, Need::Address)..=of(u32::MAX, Need::Answer))
            .filter(|(_, state)| state.phase == Phase::Discovery)
            .filter(|(_, state)| !self.queries.contains_key(&state.query))
            .map(|(target, _)| *target)
            .collect();
        hops.into_iter().for_each(|target| self.query(target));
    }

    /// Handles lost replies or notifications: queries again soon.
    pub(super) fn handle_loss(&mut self, now: Instant) {
        for (target, state) in &mut self.hops {
            self.timers
                .remove(&(state.recheck_at, Timer::Recheck(*target)));
            state.recheck_at = state.recheck_at.min(now + LOSS_DELAY);
            self.timers
                .insert((state.recheck_at, Timer::Recheck(*target)));
        }
    }

    /// Handles the timers that are due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            match timer {
                Timer::Deadline(ticket) => self.expire(ticket),
                Timer::Recheck(target) => self.recheck(target, now),
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
        while let Some(target) = self.hops.keys().next().copied() {
            self.finish(target, Err(cause.clone()));
        }
    }

    /// Returns whether no lookup is pending.
    pub(super) fn is_idle(&self) -> bool {
        self.hops.is_empty()
    }

    fn query(&mut self, target: Target) {
        let Some(state) = self.hops.get_mut(&target) else {
            return;
        };
        // Zero marks notifications. At most one query per target is current, so the numbers in use
        // are few and close together: the counter never wraps into one of them.
        self.last_sequence = self.last_sequence.wrapping_add(1).max(1);
        self.queries.remove(&state.query);
        state.query = self.last_sequence;
        self.queries.insert(state.query, target);
        self.actions.push_back(Action::Query {
            hop: target.hop,
            sequence: state.query,
        });
    }

    /// Sends a probe, and queries the entry that results.
    fn probe(&mut self, target: Target) {
        let Some(state) = self.hops.get_mut(&target) else {
            return;
        };
        state.phase = Phase::ProbedEntry;
        state.probes += 1;
        self.actions.push_back(Action::Probe(target));
        self.query(target);
    }

    fn recheck(&mut self, target: Target, now: Instant) {
        let Some(state) = self.hops.get_mut(&target) else {
            return;
        };
        self.timers
            .remove(&(state.recheck_at, Timer::Recheck(target)));
        state.recheck_at = now + RECHECK_INTERVAL;
        self.timers
            .insert((state.recheck_at, Timer::Recheck(target)));
        self.query(target);
    }

    fn expire(&mut self, ticket: u64) {
        let Some(waiter) = self.waiters.get(&ticket) else {
            return;
        };
        let probes = self
            .hops
            .get(&waiter.target)
            .map_or(0, |state| state.probes);
        // The first probe is the message; later ones are retries.
        let cause = Cause::TimedOut {
            after_ms: waiter.after_ms,
            retries: probes.saturating_sub(1),
        };
        if let Some(done) = self.cancel(ticket) {
            self.finished.push((done, Err(cause)));
        }
    }

    fn finish(&mut self, target: Target, outcome: Result<LinkAddress, Cause>) {
        for ticket in self.remove_hop(target) {
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

    fn remove_hop(&mut self, target: Target) -> BTreeSet<u64> {
        let Some(state) = self.hops.remove(&target) else {
            return BTreeSet::new();
        };
        self.timers
            .remove(&(state.recheck_at, Timer::Recheck(target)));
        self.queries.remove(&state.query);
        state.tickets
    }
}

#[cfg(test)]
mod tests;

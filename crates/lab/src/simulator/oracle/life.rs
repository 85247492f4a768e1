//! The life of an id as its owner sees it: the legal events of each phase, and their deadlines.

use std::time::Duration;

use portolan_cm::{Config, time_of_exponent};
use portolan_provider::cm::EventType;

use super::Deadline;
use crate::simulator::failure::{Violation, ensure, violation};

/// Added to a deadline for the order of tasks at the same time.
const SLACK: Duration = Duration::from_millis(1);

/// What the owner knows of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum Phase {
    Idle,
    Listening,
    ResolvingAddress,
    AddressResolved,
    RouteResolved,
    Connecting,
    /// Active: the reply has arrived.
    Replied,
    /// Passive: the request has arrived.
    Requested,
    /// Passive: accepted.
    Accepted,
    Connected,
    Disconnected,
    /// Datagrams: has asked for the peer's queue pair.
    Inquiring,
    /// Datagrams: knows the peer's queue pair.
    Served,
    /// Datagrams: was asked.
    Asked,
    Over,
}

/// An id's life so far.
#[derive(Debug)]
pub(in crate::simulator) struct Life {
    pub(in crate::simulator) phase: Phase,
    awaited: Option<Deadline>,
    /// The earliest time for `TimewaitExit`.
    timewait_ends: Option<Duration>,
    /// Duration of time-wait, once the connection's timers are known.
    pub(in crate::simulator) timewait: Duration,
    /// For how long a REQ may be repeated after the first.
    pub(in crate::simulator) repeats: Duration,
    /// How long to wait for the peer's answer to one message, including all retransmissions and all
    /// time granted to the peer.
    patience: Duration,
    /// The same for a question. The peer cannot ask for more time.
    patience_of_inquiry: Duration,
}

impl Life {
    pub(in crate::simulator) fn new(phase: Phase, config: &Config) -> Self {
        let once = time_of_exponent(config.response_timeout_exp)
            + time_of_exponent(config.packet_lifetime_exp) * 2;
        let sends = u32::from(config.max_cm_retries) + 1;
        let granted = time_of_exponent(config.mra_timeout_exp.min(config.longest_grant_exp));
        let patience = (once + granted) * sends + SLACK;
        Self {
            phase,
            awaited: None,
            timewait_ends: None,
            timewait: Duration::ZERO,
            repeats: once * sends,
            patience,
            patience_of_inquiry: time_of_exponent(config.response_timeout_exp) * sends + SLACK,
        }
    }

    /// The owner resolves an address.
    pub(in crate::simulator) fn resolves(&mut self, now: Duration, timeout: Duration) {
        self.phase = Phase::ResolvingAddress;
        self.await_until(now + timeout + SLACK, "the answer to address resolution");
    }

    pub(in crate::simulator) fn connects(&mut self, now: Duration) {
        self.phase = Phase::Connecting;
        self.await_until(now + self.patience, "the answer to the connection request");
    }

    pub(in crate::simulator) fn inquires(&mut self, now: Duration) {
        self.phase = Phase::Inquiring;
        self.await_until(now + self.patience_of_inquiry, "the answer to a question");
    }

    pub(in crate::simulator) fn accepts(&mut self, now: Duration) {
        self.phase = Phase::Accepted;
        self.await_until(now + self.patience, "the end of the handshake");
    }

    /// The owner completed the active side.
    pub(in crate::simulator) fn establishes(&mut self) {
        self.phase = Phase::Connected;
    }

    pub(in crate::simulator) fn rejects(&mut self) {
        self.phase = Phase::Over;
        self.awaited = None;
    }

    /// The owner disconnects. `in_timewait`: the peer had disconnected first.
    pub(in crate::simulator) fn disconnects(&mut self, now: Duration, in_timewait: bool) {
        match self.phase {
            Phase::Connected => self.await_until(now + self.patience, "the end of the connection"),
            Phase::Disconnected if in_timewait => self.begin_timewait(now),
            _ => {}
        }
    }

    /// The engine emitted an event. `in_timewait`: whether the id was then in time-wait.
    pub(in crate::simulator) fn event(
        &mut self,
        now: Duration,
        event: EventType,
        in_timewait: bool,
    ) -> Result<(), Violation> {
        use EventType as E;
        use Phase as P;
        let next = match (self.phase, event) {
            (P::ResolvingAddress, E::AddrResolved) => P::AddressResolved,
            (P::ResolvingAddress, E::AddrError) => P::Over,
            (P::AddressResolved, E::RouteResolved) => P::RouteResolved,
            (P::Connecting, E::ConnectResponse) => P::Replied,
            (P::Connecting | P::Replied | P::Accepted | P::Connected, E::Rejected) => P::Over,
            (P::Connecting | P::Accepted, E::Unreachable) => P::Over,
            (P::Accepted, E::Established) => P::Connected,
            (P::Accepted | P::Connected, E::Disconnected) => P::Disconnected,
            (P::Disconnected, E::TimewaitExit) => P::Over,
            (P::Inquiring, E::Established) => P::Served,
            (P::Inquiring, E::Unreachable | E::AddrError) => P::Over,
            (phase, event) => return Err(violation!("{event} at an id in phase {phase:?}")),
        };
        self.awaited = None;
        if event == E::TimewaitExit {
            let ends = self.timewait_ends.take();
            ensure!(
                ends.is_some_and(|ends| ends <= now),
                "time-wait ended at {now:?}, expected {ends:?}"
            );
        }
        self.phase = next;
        if next == P::Disconnected && in_timewait {
            self.begin_timewait(now);
        }
        Ok(())
    }

    /// Checks that nothing is overdue, on a machine that stalled for `late` in total.
    pub(in crate::simulator) fn check(
        &self,
        now: Duration,
        late: Duration,
    ) -> Result<(), Violation> {
        match self.awaited.filter(|awaited| awaited.at + late < now) {
            None => Ok(()),
            Some(Deadline { at, what }) => Err(violation!(
                "{what} is overdue since {at:?}; the id is {:?}",
                self.phase
            )),
        }
    }

    fn begin_timewait(&mut self, now: Duration) {
        if self.timewait_ends.is_none() {
            let ends = now + self.timewait;
            self.timewait_ends = Some(ends);
            self.await_until(ends + SLACK, "the end of time-wait");
        }
    }

    fn await_until(&mut self, at: Duration, what: &'static str) {
        self.awaited = Some(Deadline { at, what });
    }
}

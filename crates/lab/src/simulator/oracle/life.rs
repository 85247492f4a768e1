//! The life of an id, as its owner may see it: which events may come when, and by when they must.

use std::time::Duration;

use portolan_cm::{Config, time_of_exponent};
use portolan_provider::cm::EventType;

use super::Deadline;
use crate::simulator::failure::{Violation, ensure, violation};

/// What is added to a limit for the order of things of one moment.
const SLACK: Duration = Duration::from_millis(1);

/// What the owner of an id knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulator) enum Phase {
    Idle,
    Listening,
    ResolvingAddress,
    AddressResolved,
    RouteResolved,
    Connecting,
    /// Active: the reply came.
    Replied,
    /// Passive: the request came.
    Requested,
    /// Passive: accepted.
    Accepted,
    Connected,
    Disconnected,
    /// Datagrams: asks for the peer's queue pair.
    Inquiring,
    /// Datagrams: knows it.
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
    /// Not before then `TimewaitExit` may come.
    timewait_ends: Option<Duration>,
    /// How long time-wait lasts, once the connection's timers are known.
    pub(in crate::simulator) timewait: Duration,
    /// How long the peer may keep us waiting for the answer to one message, all repetitions and all
    /// time it is granted included.
    patience: Duration,
    /// The same for a question, for which no time is granted.
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
            patience,
            patience_of_inquiry: time_of_exponent(config.response_timeout_exp) * sends + SLACK,
        }
    }

    /// The owner asks for the way to an address.
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

    /// The owner disconnects; `in_timewait` if the peer had asked for that.
    pub(in crate::simulator) fn disconnects(&mut self, now: Duration, in_timewait: bool) {
        match self.phase {
            Phase::Connected => self.await_until(now + self.patience, "the end of the connection"),
            Phase::Disconnected if in_timewait => self.begin_timewait(now),
            _ => {}
        }
    }

    /// An event, when the engine gave it out. `in_timewait` if the engine then was.
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
            (phase, event) => return Err(violation!("{event} came to an id that is {phase:?}")),
        };
        self.awaited = None;
        if event == E::TimewaitExit {
            let ends = self.timewait_ends.take();
            ensure!(
                ends.is_some_and(|ends| ends <= now),
                "time-wait was over at {now:?}, but ought to last until {ends:?}"
            );
        }
        self.phase = next;
        if next == P::Disconnected && in_timewait {
            self.begin_timewait(now);
        }
        Ok(())
    }

    /// Nothing is overdue, on a machine that stalled for `late` altogether.
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

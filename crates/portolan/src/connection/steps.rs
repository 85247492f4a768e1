//! The steps of an attempt to reach one address: resolve the address, then further steps. An event ends each step.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_provider::cm::EventType;
use portolan_provider::error::errno;
use portolan_provider::{Cause, Error, Result, Step};

use crate::cm::{CmId, Event, EventChannel};
use crate::deadline;

/// Longest time that the provider gets to resolve the address in one turn. If a neighbour's answer is lost or arrives
/// too early (as on a veth pair), Linux tries again only when that time is over.
const TURN_MAX: Duration = Duration::from_secs(1);

/// An id on its way to an address.
#[derive(Debug)]
pub(crate) struct Steps {
    pub(crate) id: CmId,
    pub(crate) events: EventChannel,
    pub(crate) to: SocketAddr,
    /// The step that the next event ends.
    pub(crate) step: Step,
    pub(crate) deadline: Instant,
    source: Option<SocketAddr>,
    started: Instant,
}

impl Steps {
    /// Starts to resolve the address. Fails if the deadline has passed.
    pub(crate) fn start(
        id: CmId,
        events: EventChannel,
        source: Option<SocketAddr>,
        to: SocketAddr,
        deadline: Instant,
    ) -> Result<Self> {
        let steps = Self {
            id,
            events,
            to,
            step: Step::ResolveAddress,
            deadline,
            source,
            started: Instant::now(),
        };
        let started = match steps.has_time() {
            true => steps.resolve_address(),
            false => Err(deadline::passed(Step::Connect)),
        };
        started.map_err(|error| steps.explain(error))?;
        Ok(steps)
    }

    /// Starts a turn. Retries until the deadline if the processes that share the port do not answer: their
    /// coordinator is stopped, or the next one is not ready yet.
    fn resolve_address(&self) -> Result<()> {
        loop {
            let turn = self.left().min(TURN_MAX);
            match self.id.resolve_addr(self.source, self.to, turn) {
                Err(error) if error.errno() == errno::ETIMEDOUT && self.has_time() => {}
                started => return started,
            }
        }
    }

    /// Whether the event only reports the end of a turn, and time is left before the deadline.
    fn is_turn_over(&self, event: &Event) -> bool {
        self.step == Step::ResolveAddress
            && event.event_type() == EventType::AddrError
            && event.status() == -errno::ETIMEDOUT
            && self.has_time()
    }

    /// Starts to resolve the route.
    pub(crate) fn resolve_route(&mut self) -> Result<()> {
        self.step = Step::ResolveRoute;
        self.id.resolve_route(self.left())
    }

    /// The error for an event that does not end the current step.
    pub(crate) fn unexpected(&self, event: &Event) -> Error {
        let wanted = "the step's success";
        let other = || Error::invalid(self.step, "event", wanted, event.event_type());
        event.failure().unwrap_or_else(other)
    }

    /// Adds both ends' addresses to an error. For a missed deadline, also adds the attempt's duration and step.
    pub(crate) fn explain(&self, mut error: Error) -> Error {
        if let Cause::TimedOut { after_ms, .. } | Cause::GroupSilent { after_ms, .. } =
            &mut error.cause
        {
            *after_ms = self.started.elapsed().as_millis() as u64;
        }
        if error.step == Step::Event {
            error.step = self.step;
        }
        let known = self.id.addresses().unwrap_or_default();
        error.between(known.local, known.remote.or(Some(self.to.into())))
    }

    /// The time left. The provider rejects a zero timeout. A minimal one makes the wait, not the start, report the
    /// deadline.
    fn left(&self) -> Duration {
        deadline::left(self.deadline).max(Duration::from_millis(1))
    }

    fn has_time(&self) -> bool {
        !deadline::left(self.deadline).is_zero()
    }
}

/// An attempt at one address, driven by events.
pub(crate) trait Attempt: Sized {
    /// The result of a successful attempt.
    type Prize;

    fn steps(&self) -> &Steps;

    /// Handles the event that ends a step and starts the next step. Returns the result after the last one.
    fn take_step(&mut self, event: &Event) -> Result<Option<Self::Prize>>;

    /// Creates what the request needs once the route is resolved, so that the request can be sent at once.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// Handles an event.
    fn advance(&mut self, event: &Event) -> Result<Option<Self::Prize>> {
        let advanced = match event.event_type() {
            // A hint, and an event that the program has written: neither ends a step.
            EventType::AddrChange | EventType::User => Ok(None),
            _ if self.steps().is_turn_over(event) => self.steps().resolve_address().map(|()| None),
            _ => self.take_step(event),
        };
        advanced.map_err(|error| self.steps().explain(error))
    }

    /// Handles the pending events. Returns the result when complete.
    fn take_events(&mut self) -> Result<Option<Self::Prize>> {
        loop {
            let event = self.steps().events.try_next_event();
            let event = event.map_err(|error| self.steps().explain(error))?;
            let Some(event) = event else { return Ok(None) };
            if let Some(prize) = self.advance(&event)? {
                return Ok(Some(prize));
            }
        }
    }

    /// Waits until the attempt succeeds or fails, at the latest at its deadline.
    fn finish(mut self) -> Result<Self::Prize> {
        let events = self.steps().events.clone();
        let mut attendance = None;
        loop {
            let steps = self.steps();
            let event = steps.events.next_event_within(steps.left());
            let event = event.map_err(|error| steps.explain(error))?;
            if event.event_type() == EventType::RouteResolved {
                self.prepare().map_err(|mut error| {
                    if error.step == Step::Event {
                        error.step = Step::Connect;
                    }
                    self.steps().explain(error)
                })?;
                // This thread is the one that waits for the peer's answer. Management datagrams wait for it from here
                // on, so it has nothing else left to do than to send the request.
                attendance = attendance.or_else(|| events.attend());
            }
            if let Some(prize) = self.advance(&event)? {
                return Ok(prize);
            }
        }
    }
}

//! A query in progress.

use std::time::Duration;

use portolan_wire::mad::RmppStatus;

use super::failure::{Failure, Problem};
use super::reassembly::Reassembly;
use super::{Engine, QueryId, Request, Transmit};
use crate::transport::MadAddress;

/// The engine waits longer than the driver by this fraction of an attempt, so that the driver's
/// timeout report arrives first.
const GRACE_DIVISOR: u32 = 4;
/// Shortest attempt, so that time advances between two.
const TRY_MIN: Duration = Duration::from_millis(1);
/// Maximum number of doublings of a time.
const DOUBLINGS_MAX: u32 = 16;

#[derive(Debug)]
pub(super) struct Flight {
    pub(super) request: Request,
    pub(super) submitted: Duration,
    pub(super) deadline: Duration,
    pub(super) state: FlightState,
    /// Transaction id of the current attempt; `None` before the first.
    pub(super) tid: Option<u32>,
    /// The queried administrator.
    pub(super) to: Option<MadAddress>,
    /// Number of attempts.
    pub(super) tries: u32,
    /// Number of busy answers.
    pub(super) pauses: u32,
    pub(super) last: Option<Problem>,
    /// When the current state needs attention.
    pub(super) wake: Option<Duration>,
    pub(super) armed: Option<Duration>,
}

/// What a query waits for.
#[derive(Debug)]
pub(super) enum FlightState {
    /// A free slot: [`Config::in_flight_max`] is reached.
    Turn,
    /// An answer to the request sent at `sent`, for at most `within`.
    Answer { sent: Duration, within: Duration },
    /// The end of a pause.
    Pause,
    /// More segments of a table.
    Segments(Box<Reassembly>),
}

impl Flight {
    pub(super) fn new(request: Request, now: Duration, deadline: Duration) -> Self {
        Self {
            request,
            submitted: now,
            deadline,
            state: FlightState::Turn,
            tid: None,
            to: None,
            tries: 0,
            pauses: 0,
            last: None,
            wake: None,
            armed: None,
        }
    }

    pub(super) fn due(&self) -> Duration {
        self.wake
            .map_or(self.deadline, |wake| wake.min(self.deadline))
    }

    pub(super) fn reassembled_bytes(&self) -> usize {
        match &self.state {
            FlightState::Segments(reassembly) => reassembly.held_bytes(),
            _ => 0,
        }
    }
}

impl Engine {
    /// Starts a query.
    pub(super) fn launch(&mut self, now: Duration, id: QueryId) {
        let tid = self.draw_tid();
        if let Some(flight) = self.flights.get_mut(&id) {
            flight.tid = Some(tid);
            self.by_tid.insert(tid, id);
            self.ask(now, id);
        }
    }

    /// Restarts a query with a new transaction id.
    pub(super) fn restart(&mut self, now: Duration, id: QueryId, problem: Option<Problem>) {
        self.abandon_transfer(id, RmppStatus::TOO_MANY_RETRIES);
        let tid = self.draw_tid();
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        if let Some(old) = flight.tid.replace(tid) {
            self.by_tid.remove(&old);
        }
        self.by_tid.insert(tid, id);
        flight.last = problem.or(flight.last);
        self.ask(now, id);
    }

    /// Sends the request.
    fn ask(&mut self, now: Duration, id: QueryId) {
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        let (Some(tid), Some(to)) = (flight.tid, self.target) else {
            flight.last = Some(Problem::NoAdministrator);
            flight.state = FlightState::Pause;
            // `set_target` wakes the query when there is an administrator.
            self.wake_at(id, None);
            return;
        };
        let within = doubled(self.config.try_first, flight.tries).min(self.config.try_max);
        let within = within.max(TRY_MIN);
        if flight.tries > 0 {
            self.counters.retries += 1;
        }
        flight.tries = flight.tries.saturating_add(1);
        flight.to = Some(to);
        flight.state = FlightState::Answer { sent: now, within };
        self.transmits.push_back(Transmit {
            to,
            mad: Box::new(flight.request.mad(tid)),
            answer_within: within,
        });
        let wait = within.saturating_add(within / GRACE_DIVISOR);
        self.wake_at(id, Some(now.saturating_add(wait)));
    }

    /// Sends the request again after a pause.
    pub(super) fn pause(&mut self, now: Duration, id: QueryId, problem: Problem) {
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        let pause = doubled(self.config.busy_pause_first, flight.pauses);
        flight.pauses = flight.pauses.saturating_add(1);
        flight.last = Some(problem);
        flight.state = FlightState::Pause;
        let pause = pause.min(self.config.busy_pause_max);
        self.wake_at(id, Some(now.saturating_add(pause)));
    }

    /// The timeout failure for a caller that waited for `after`; the query continues.
    pub(crate) fn timed_out(&self, id: QueryId, after: Duration) -> Failure {
        let flight = self.flights.get(&id);
        Failure::TimedOut {
            after,
            tries: flight.map_or(0, |flight| flight.tries),
            last: flight.and_then(|flight| flight.last),
        }
    }

    /// Handles a query's timer.
    pub(super) fn flight_due(&mut self, now: Duration, id: QueryId) {
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        if now >= flight.deadline {
            let stalled = match &flight.state {
                FlightState::Segments(reassembly) => Some(Problem::Stalled {
                    segments: reassembly.contiguous(),
                }),
                _ => None,
            };
            let failure = Failure::TimedOut {
                after: flight.deadline.saturating_sub(flight.submitted),
                tries: flight.tries,
                last: stalled.or(flight.last),
            };
            self.abandon_transfer(id, RmppStatus::TOTAL_TIME_TOO_LONG);
            self.end(now, id, Err(failure));
            return;
        }
        match &mut flight.state {
            _ if flight.wake.is_none_or(|wake| now < wake) => self.arm(id),
            FlightState::Turn => self.arm(id),
            FlightState::Answer { .. } | FlightState::Pause => self.ask(now, id),
            FlightState::Segments(_) => self.transfer_stalled(now, id),
        }
    }

    /// Handles a failed send: the driver reported that a datagram could not be delivered or was not
    /// answered in time, or sending it failed.
    pub fn handle_send_failure(&mut self, now: Duration, tid: u64, errno: i32) {
        let Some(&id) = self.by_tid.get(&(tid as u32)) else {
            return;
        };
        let Some(flight) = self.flights.get_mut(&id) else {
            return;
        };
        let FlightState::Answer { sent, within } = flight.state else {
            return;
        };
        if errno == portolan_provider::error::errno::ETIMEDOUT {
            // Retry at the end of the attempt, even if the driver reports its failure early.
            self.wake_at(id, Some(now.max(sent.saturating_add(within))));
        } else {
            self.pause(now, id, Problem::NotDelivered { errno });
        }
    }

    pub(super) fn wake_at(&mut self, id: QueryId, wake: Option<Duration>) {
        if let Some(flight) = self.flights.get_mut(&id) {
            flight.wake = wake;
        }
        self.arm(id);
    }

    fn arm(&mut self, id: QueryId) {
        if let Some(flight) = self.flights.get_mut(&id) {
            let due = flight.due();
            self.timers.set(id, &mut flight.armed, Some(due));
        }
    }
}

fn doubled(first: Duration, times: u32) -> Duration {
    first.saturating_mul(1 << times.min(DOUBLINGS_MAX))
}

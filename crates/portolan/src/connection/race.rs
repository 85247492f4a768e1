//! Tries several addresses of one name concurrently, in the spirit of RFC 8305. The attempts start
//! in order, each shortly after the previous one or as soon as that fails. The first connection
//! wins; the others are abandoned.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_provider::{Cause, Error, Result, Step};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::steps::Attempt;
use crate::deadline;

/// How long an attempt runs alone before the next address is tried as well (RFC 8305 section 5,
/// Connection Attempt Delay).
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The running attempts and the failures of the others.
#[derive(Debug)]
pub(crate) struct Race<Start, A> {
    start: Start,
    deadline: Instant,
    waiting: VecDeque<SocketAddr>,
    running: Vec<A>,
    failed: Failures,
    next_start: Instant,
}

/// The failures of a name's addresses.
#[derive(Debug)]
pub(crate) struct Failures {
    name: String,
    untried: Vec<Error>,
    errors: Vec<Error>,
}

impl<Start, A> Race<Start, A>
where
    Start: Fn(SocketAddr, Instant) -> Result<A>,
    A: Attempt,
{
    /// Creates a race to the addresses of `name`. `start` starts each attempt with the common
    /// deadline.
    pub(crate) fn new(
        start: Start,
        name: &str,
        addresses: impl IntoIterator<Item = SocketAddr>,
        deadline: Instant,
    ) -> Self {
        Self {
            start,
            deadline,
            waiting: addresses.into_iter().collect(),
            running: Vec::new(),
            failed: Failures::of(name),
            next_start: Instant::now(),
        }
    }

    /// Runs until an attempt succeeds, all have failed, or the deadline passes.
    pub(crate) fn run(mut self) -> Result<A::Prize> {
        loop {
            if let Some(prize) = self.advance() {
                return Ok(prize);
            }
            let now = Instant::now();
            if now >= self.deadline {
                self.end_all();
            }
            let is_due = self.running.is_empty() || now >= self.next_start;
            let next = if is_due {
                self.waiting.pop_front()
            } else {
                None
            };
            match next {
                Some(address) => self.try_next(address),
                None if self.running.is_empty() => return Err(self.failed.into_error()),
                None => self.wait()?,
            }
        }
    }

    fn try_next(&mut self, address: SocketAddr) {
        self.next_start = Instant::now() + ATTEMPT_DELAY;
        match (self.start)(address, self.deadline) {
            Ok(attempt) => self.running.push(attempt),
            Err(error) => {
                self.failed.add(error);
                self.next_start = Instant::now();
            }
        }
    }

    /// Handles the attempts' events. A failed attempt lets the next one start at once.
    fn advance(&mut self) -> Option<A::Prize> {
        let mut at = 0;
        while let Some(attempt) = self.running.get_mut(at) {
            match attempt.take_events() {
                Ok(Some(prize)) => return Some(prize),
                Ok(None) => at += 1,
                Err(error) => {
                    self.running.remove(at);
                    self.failed.add(error);
                    self.next_start = Instant::now();
                }
            }
        }
        None
    }

    /// Ends all attempts at the deadline.
    fn end_all(&mut self) {
        let (after_ms, retries) = (0, 0);
        for attempt in self.running.drain(..) {
            let late = Error::new(Step::Event, Cause::TimedOut { after_ms, retries });
            self.failed.add(attempt.steps().explain(late));
        }
        for address in self.waiting.drain(..) {
            self.failed.add_untried(address);
        }
    }

    /// Sleeps until an attempt has an event, the next attempt is due, or the deadline passes.
    fn wait(&self) -> Result<()> {
        let until = match self.waiting.is_empty() {
            true => self.deadline,
            false => self.deadline.min(self.next_start),
        };
        let timeout = Timespec::try_from(deadline::left(until)).unwrap_or_default();
        let events = self.running.iter().map(|each| &each.steps().events);
        let mut ready: Vec<_> = events
            .map(|events| PollFd::new(events, PollFlags::IN))
            .collect();
        match poll(&mut ready, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => {
                let (call, errno) = ("poll", errno.raw_os_error());
                Err(Error::new(Step::Connect, Cause::Os { call, errno }))
            }
        }
    }
}

impl Failures {
    pub(crate) fn of(name: &str) -> Self {
        Self {
            name: name.into(),
            untried: Vec::new(),
            errors: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, error: Error) {
        self.errors.push(error);
    }

    /// Adds an address that was not tried before the deadline. The errors of attempts count as later ones, because they
    /// say more.
    pub(crate) fn add_untried(&mut self, address: SocketAddr) {
        let (after_ms, retries) = (0, 0);
        let late = Error::new(Step::Connect, Cause::TimedOut { after_ms, retries });
        self.untried.push(late.between(None, Some(address.into())));
    }

    /// The last failure, with the earlier ones attached.
    pub(crate) fn into_error(mut self) -> Error {
        let mut errors = self.untried;
        errors.append(&mut self.errors);
        let last = errors.pop();
        let last = last.unwrap_or_else(|| no_address(&self.name));
        last.after(errors)
    }
}

pub(crate) fn no_address(name: &str) -> Error {
    let cause = Cause::NameNotKnown(format!("{name} has no address"));
    Error::new(Step::ResolveName, cause)
}

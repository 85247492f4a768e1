//! Several addresses of one name, tried side by side (RFC 8305 in spirit): in their order, each a little
//! after the one before it or as soon as that failed. The first connection wins; the others are given up.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_provider::{Cause, Error, Result, Step};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::connector::no_address;
use crate::cm::EventChannel;
use crate::deadline;

/// How long an attempt is alone before the next address is tried beside it (RFC 8305 section 5,
/// Connection Attempt Delay).
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// One that runs: an attempt at one address, which events drive.
pub(crate) trait Runner: Sized {
    /// What it is after.
    type Prize;

    /// Takes the events that wait; the prize, once it has it.
    fn take_events(&mut self) -> Result<Option<Self::Prize>>;

    /// Where its events come.
    fn events(&self) -> &EventChannel;

    /// Adds to an error what is known of both ends.
    fn explain(&self, error: Error) -> Error;
}

/// The attempts, and what became of those that failed.
#[derive(Debug)]
pub(crate) struct Race<Start, Attempt> {
    start: Start,
    deadline: Instant,
    waiting: VecDeque<SocketAddr>,
    running: Vec<Attempt>,
    failed: Failures,
    next_start: Instant,
}

/// The failures of a name's addresses.
#[derive(Debug)]
pub(crate) struct Failures {
    name: String,
    errors: Vec<Error>,
}

impl<Start, Attempt> Race<Start, Attempt>
where
    Start: Fn(SocketAddr, Instant) -> Result<Attempt>,
    Attempt: Runner,
{
    /// To the addresses of `name`, each attempt started by `start` with the deadline of all.
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

    /// Runs until an address has a connection, all have failed, or the deadline passes.
    pub(crate) fn run(mut self) -> Result<Attempt::Prize> {
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

    /// Takes the events of the attempts. One that fails makes room for the next at once.
    fn advance(&mut self) -> Option<Attempt::Prize> {
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

    /// The deadline has passed.
    fn end_all(&mut self) {
        let (after_ms, retries) = (0, 0);
        for attempt in self.running.drain(..) {
            let late = Error::new(Step::Event, Cause::TimedOut { after_ms, retries });
            self.failed.add(attempt.explain(late));
        }
        for address in self.waiting.drain(..) {
            self.failed.add_untried(address);
        }
    }

    /// Sleeps until an attempt has an event, the next one is due, or the deadline.
    fn wait(&self) -> Result<()> {
        let until = match self.waiting.is_empty() {
            true => self.deadline,
            false => self.deadline.min(self.next_start),
        };
        let timeout = Timespec::try_from(deadline::left(until)).unwrap_or_default();
        let events = self.running.iter().map(Runner::events);
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
            errors: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, error: Error) {
        self.errors.push(error);
    }

    /// The deadline passed before this address was tried.
    pub(crate) fn add_untried(&mut self, address: SocketAddr) {
        let (after_ms, retries) = (0, 0);
        let late = Error::new(Step::Connect, Cause::TimedOut { after_ms, retries });
        self.add(late.between(None, Some(address.into())));
    }

    /// The last failure, with those before it.
    pub(crate) fn into_error(mut self) -> Error {
        let last = self.errors.pop();
        let last = last.unwrap_or_else(|| no_address(&self.name));
        last.after(self.errors)
    }
}

//! Several addresses of one name, tried side by side (RFC 8305 in spirit): in their order, each a little
//! after the one before it or as soon as that failed. The first connection wins; the others are given up.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_provider::{Cause, Error, Result, Step};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::connector::{Attempt, Connector, no_address};
use super::established::Connection;
use crate::deadline;

/// How long an attempt is alone before the next address is tried beside it (RFC 8305 section 5,
/// Connection Attempt Delay).
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// The attempts, and what became of those that failed.
#[derive(Debug)]
pub(super) struct Race<'a> {
    connector: &'a Connector,
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

impl<'a> Race<'a> {
    pub(super) fn new(
        connector: &'a Connector,
        name: &str,
        addresses: impl IntoIterator<Item = SocketAddr>,
        deadline: Instant,
    ) -> Self {
        Self {
            connector,
            deadline,
            waiting: addresses.into_iter().collect(),
            running: Vec::new(),
            failed: Failures::of(name),
            next_start: Instant::now(),
        }
    }

    /// Runs until an address has a connection, all have failed, or the deadline passes.
    pub(super) fn run(mut self) -> Result<Connection> {
        loop {
            if let Some(connection) = self.advance() {
                return Ok(connection);
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
                Some(address) => self.start(address),
                None if self.running.is_empty() => return Err(self.failed.into_error()),
                None => self.wait()?,
            }
        }
    }

    fn start(&mut self, address: SocketAddr) {
        self.next_start = Instant::now() + ATTEMPT_DELAY;
        match Attempt::start(self.connector, address, self.deadline) {
            Ok(attempt) => self.running.push(attempt),
            Err(error) => {
                self.failed.add(error);
                self.next_start = Instant::now();
            }
        }
    }

    /// Takes the events of the attempts. One that fails makes room for the next at once.
    fn advance(&mut self) -> Option<Connection> {
        let mut at = 0;
        while let Some(attempt) = self.running.get_mut(at) {
            match attempt.take_events() {
                Ok(Some(connection)) => return Some(connection),
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
            let late = Error::new(Step::Connect, Cause::TimedOut { after_ms, retries });
            self.failed.add(late.between(None, Some(address.into())));
        }
    }

    /// Sleeps until an attempt has an event, the next one is due, or the deadline.
    fn wait(&self) -> Result<()> {
        let until = match self.waiting.is_empty() {
            true => self.deadline,
            false => self.deadline.min(self.next_start),
        };
        let timeout = Timespec::try_from(deadline::left(until)).unwrap_or_default();
        let events = self.running.iter().map(Attempt::events);
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

    /// The last failure, with those before it.
    pub(crate) fn into_error(mut self) -> Error {
        let last = self.errors.pop();
        let last = last.unwrap_or_else(|| no_address(&self.name));
        last.after(self.errors)
    }
}

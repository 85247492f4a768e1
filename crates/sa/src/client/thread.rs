//! The client's thread: takes commands, moves datagrams between engine and transport, runs
//! callbacks.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::CLOSE_GRACE;
use super::lease::Leases;
use super::shared::{Command, Done, Question, Shared};
use crate::engine::{Failure, Transmit};
use crate::port::Port;
use crate::query_coalescer::{Outcome, QueryCoalescer, Ticket};
use crate::rand;
use crate::transport::{Received, Transport, TransportError};

/// Maximum age of the port's attributes when a query is sent.
const PORT_FRESH_FOR: Duration = Duration::from_millis(500);
/// How often to read the port while answers are pending or leases are active.
const PORT_LOOK: Duration = Duration::from_secs(1);
/// Longest single wait in a transport that cannot be interrupted.
const DEAF_WAIT: Duration = Duration::from_millis(2);
/// Pause after a transport failed to receive.
const FAILED_PAUSE: Duration = Duration::from_millis(20);
/// Longest single wait in a transport that can be interrupted.
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of datagrams to receive before other work gets its turn.
const RECEIVE_BATCH: usize = 128;

pub(super) fn run(shared: &Arc<Shared>) {
    let mut thread = Thread {
        shared: shared.clone(),
        epoch: Instant::now(),
        queries: None,
        transport: None,
        deaf: false,
        port_read: None,
        by_number: BTreeMap::new(),
        callers: BTreeMap::new(),
        leases: Leases::default(),
        closing: None,
    };
    thread.run();
}

struct Thread {
    shared: Arc<Shared>,
    epoch: Instant,
    queries: Option<QueryCoalescer>,
    transport: Option<Box<dyn Transport>>,
    /// Whether the transport's wait cannot be interrupted.
    deaf: bool,
    port_read: Option<Duration>,
    by_number: BTreeMap<u64, Ticket>,
    callers: BTreeMap<Ticket, (u64, Done)>,
    leases: Leases,
    /// Once the last handle is gone: when to stop waiting for withdrawals.
    closing: Option<Duration>,
}

impl Thread {
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn run(&mut self) {
        loop {
            let (commands, closing) = self.shared.take();
            let subnet_changed = commands.subnet_changed;
            if subnet_changed {
                self.subnet_changed();
            }
            for command in commands.into_commands() {
                self.obey(command);
            }
            if subnet_changed {
                // Services registered just before the change need a renewal too.
                self.leases.renew_all(self.now());
            }
            if closing && self.closing.is_none() {
                self.close();
            }
            self.serve();
            let now = self.now();
            if let Some(until) = self.closing
                && (now >= until || !self.leases.is_withdrawing() || self.transport.is_none())
            {
                return;
            }
            self.wait();
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Ask(question) => self.ask(question),
            Command::Cancel(number) => {
                let now = self.now();
                if let Some(ticket) = self.by_number.remove(&number) {
                    self.callers.remove(&ticket);
                    if let Some(queries) = &mut self.queries {
                        queries.cancel(now, ticket);
                    }
                }
            }
            Command::Renew(order) => self.leases.add(self.now(), order),
            Command::Withdraw(number) => {
                let now = self.now();
                self.leases.withdraw(now, number, self.queries.as_mut());
            }
            Command::Forget(number) => {
                let now = self.now();
                self.leases.forget(now, number, self.queries.as_mut());
            }
        }
    }

    fn subnet_changed(&mut self) {
        self.port_read = None;
        if let Some(queries) = &mut self.queries {
            queries.forget_answers();
        }
        self.leases.renew_all(self.now());
    }

    fn ask(&mut self, question: Question) {
        let Question {
            number,
            make,
            deadline,
            done,
        } = question;
        let now = self.now();
        let request = match self.fresh_port(now) {
            Ok(port) => {
                catch_unwind(AssertUnwindSafe(|| make(&port))).unwrap_or_else(|_| Err(panicked()))
            }
            Err(failure) => Err(failure),
        };
        let queries = self.queries.as_mut();
        match (request, queries) {
            (Ok(request), Some(queries)) => {
                let deadline = deadline.saturating_duration_since(self.epoch);
                let ticket = queries.ask(now, request, deadline);
                self.by_number.insert(number, ticket);
                self.callers.insert(ticket, (number, done));
            }
            (Err(failure), _) => tell(done, Err(failure)),
            (Ok(_), None) => tell(done, Err(Failure::Closed)),
        }
    }

    /// The port's attributes, at most [`PORT_FRESH_FOR`] old.
    fn fresh_port(&mut self, now: Duration) -> Result<Port, Failure> {
        if let (Some(read), Some(queries)) = (self.port_read, &self.queries)
            && now < read + PORT_FRESH_FOR
            && let Some(port) = queries.port()
        {
            return Ok(port.clone());
        }
        self.look_at_port(now)
    }

    fn look_at_port(&mut self, now: Duration) -> Result<Port, Failure> {
        let transport = match &mut self.transport {
            Some(transport) => transport,
            None => {
                let transport = (self.shared.open)()?;
                let wake = transport.wake();
                self.deaf = wake.is_none();
                self.shared.set_wake(wake);
                self.transport.insert(transport)
            }
        };
        let port = match transport.port() {
            Ok(port) => port,
            Err(error) => {
                self.transport_failed(&error);
                return Err(Failure::Transport(error));
            }
        };
        self.port_read = Some(now);
        let queries = match &mut self.queries {
            Some(queries) => queries,
            None => {
                let config = self.shared.config.clone();
                let seed = rand::seed()?;
                self.queries
                    .insert(QueryCoalescer::new(config.engine, config.cache, seed))
            }
        };
        if queries.set_port(now, port.clone()) {
            tracing::debug!(
                device = port.device, port = port.port_num, state = %port.state, lid = port.lid,
                sm_lid = port.sm_lid, "the port's subnet"
            );
            // A new administrator does not know the services registered with the previous one.
            self.leases.renew_all(now);
        }
        Ok(port)
    }

    /// Does all work that does not wait.
    fn serve(&mut self) {
        let now = self.now();
        if (self.is_busy() || self.leases.any())
            && self.port_read.is_none_or(|read| now >= read + PORT_LOOK)
            && let Err(failure) = self.look_at_port(now)
        {
            tracing::debug!(%failure, "the port cannot be looked at");
            // Count the failed read as well, so that it is not repeated at once.
            self.port_read = Some(now);
        }
        self.receive(Duration::ZERO);
        let now = self.now();
        if let Some(queries) = &mut self.queries {
            queries.handle_timeout(now);
            *self.shared.counters() = *queries.engine.counters();
            self.leases.turn(now, queries);
        }
        self.send();
        self.call_back();
    }

    fn send(&mut self) {
        let now = self.now();
        let mut gone = None;
        if let (Some(queries), Some(transport)) = (&mut self.queries, &mut self.transport) {
            while let Some(Transmit {
                to,
                mad,
                answer_within,
            }) = queries.engine.poll_transmit()
            {
                let Err(error) = transport.send(&to, &mad, answer_within) else {
                    continue;
                };
                if error.is_final() {
                    gone = Some(error);
                    break;
                }
                let tid = mad[8..16].try_into().map_or(0, u64::from_be_bytes);
                queries.engine.handle_send_failure(now, tid, error.errno());
            }
        }
        if let Some(error) = gone {
            self.transport_failed(&error);
        }
    }

    /// Receives the available datagrams; waits for the first one for at most `wait`.
    fn receive(&mut self, mut wait: Duration) {
        for _ in 0..RECEIVE_BATCH {
            let Some(transport) = &mut self.transport else {
                return;
            };
            let received = match transport.receive(wait) {
                Ok(Some(received)) => received,
                Ok(None) => return,
                Err(error) if error.is_final() => {
                    self.transport_failed(&error);
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "receiving failed");
                    self.shared.wait(Some(Instant::now() + FAILED_PAUSE));
                    return;
                }
            };
            wait = Duration::ZERO;
            let now = self.now();
            if let Some(queries) = &mut self.queries {
                match received {
                    Received::Mad { from, mad } => {
                        queries.engine.handle_mad(now, &from, mad.as_slice());
                    }
                    Received::SendFailed { tid, errno } => {
                        queries.engine.handle_send_failure(now, tid, errno);
                    }
                }
            }
        }
    }

    fn call_back(&mut self) {
        let now = self.now();
        while let Some(queries) = &mut self.queries
            && let Some((ticket, outcome)) = queries.poll_outcome(now)
        {
            if let Some((number, done)) = self.callers.remove(&ticket) {
                self.by_number.remove(&number);
                tell(done, outcome);
            } else {
                self.leases.answered(now, ticket, outcome.map(|_| ()));
            }
        }
    }

    /// Closes a failed transport: all queries on it fail, and the next query opens it again.
    fn transport_failed(&mut self, error: &TransportError) {
        if !error.is_final() {
            return;
        }
        self.transport = None;
        self.shared.set_wake(None);
        self.port_read = None;
        self.queries = None;
        self.by_number.clear();
        let now = self.now();
        self.leases.lost(now, &Failure::Transport(error.clone()));
        for (_, (_, done)) in std::mem::take(&mut self.callers) {
            tell(done, Err(Failure::Transport(error.clone())));
        }
    }

    /// Closes the client after the last handle is gone: only withdrawals of services are still
    /// pending.
    fn close(&mut self) {
        let now = self.now();
        self.closing = Some(now + CLOSE_GRACE);
        self.by_number.clear();
        for (ticket, (_, done)) in std::mem::take(&mut self.callers) {
            if let Some(queries) = &mut self.queries {
                queries.cancel(now, ticket);
            }
            tell(done, Err(Failure::Closed));
        }
    }

    fn is_busy(&self) -> bool {
        self.queries.as_ref().is_some_and(QueryCoalescer::is_busy)
    }

    fn wait(&mut self) {
        let now = self.now();
        let queries = self.queries.as_ref();
        let times = [
            queries.and_then(QueryCoalescer::poll_timeout),
            queries.and_then(|_| self.leases.timeout()),
            self.closing,
            (self.is_busy() || self.leases.any()).then_some(now + PORT_LOOK),
        ];
        let until = times.into_iter().flatten().min();
        if self.transport.is_none() || self.deaf && !self.is_busy() {
            // No answers are pending, so the thread only waits for commands.
            self.shared.wait(until.map(|until| self.epoch + until));
            return;
        }
        // Commands that arrived before the wake handle was set did not interrupt the transport.
        if self.closing.is_none() && self.shared.has_commands() {
            return;
        }
        let left = until.map_or(WAIT_MAX, |until| until.saturating_sub(now));
        let wait = if self.deaf {
            left.min(DEAF_WAIT)
        } else {
            left.min(WAIT_MAX)
        };
        self.receive(wait);
    }
}

/// Runs a callback and catches its panic, so that one caller's bug does not affect the others.
fn tell(done: Done, outcome: Outcome) {
    if catch_unwind(AssertUnwindSafe(|| done(outcome))).is_err() {
        tracing::error!("the callback of a subnet administration query panicked");
    }
}

fn panicked() -> Failure {
    Failure::Invalid {
        what: "a query that depends on the port",
        expected: "one that can be built",
        found: "a panic".into(),
    }
}

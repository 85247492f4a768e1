//! The client: one thread for each port, which owns the transport and the engine.
//!
//! The thread starts with the first query and ends with the last handle. It calls the callbacks;
//! the blocking calls and the futures build on callbacks.

mod asked;
mod lease;
mod records;
mod registration;
mod shared;
mod thread;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

pub use asked::Asked;
pub use lease::{LeaseState, RENEWALS_PER_LEASE};
pub use registration::Registration;

use crate::cache::CacheConfig;
use crate::engine::{Config, Counters, Failure, Request};
use crate::port::Port;
use crate::query_coalescer::Outcome;
use crate::transport::{Transport, TransportError};
use crate::umad;
use shared::{Command, Handle, Question};

/// Limits and times of a [`Client`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientConfig {
    /// Configuration of the query engine.
    pub engine: Config,
    /// Limits of the answer cache.
    pub cache: CacheConfig,
}

/// A client of the subnet administrator of one port.
///
/// This is a handle: clones share one thread, which ends when the last clone is dropped. The thread
/// first withdraws all services of this client's [`Registration`]s; if the administrator does not
/// answer, it waits for at most [`CLOSE_GRACE`].
#[derive(Clone, Debug)]
pub struct Client(Arc<Handle>);

/// How long the withdrawal of services may delay the end of a client.
pub const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Longest time limit of a query; a longer one is shortened to this.
pub const WITHIN_MAX: Duration = Duration::from_secs(3600);

/// How much longer than its time limit a blocking call waits for a delayed thread.
const SLACK: Duration = Duration::from_secs(1);

/// Opens the transport, on first use and after a failure.
pub(crate) type Open = dyn Fn() -> Result<Box<dyn Transport>, TransportError> + Send + Sync;

impl Client {
    /// Creates a client that opens its transport with the first query.
    ///
    /// If opening fails, that query fails, and the next query tries again. A port that disappeared
    /// and came back is opened the same way.
    pub fn new(
        config: ClientConfig,
        open: impl Fn() -> Result<Box<dyn Transport>, TransportError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Handle::new(config, Box::new(open), thread::run)))
    }

    /// Creates a client on a port's user MAD device.
    pub fn of_device(config: ClientConfig, device: umad::Device) -> Self {
        Self::new(config, move || {
            let transport = device.open(&umad::Class::SUBNET_ADMINISTRATION)?;
            Ok(Box::new(transport))
        })
    }

    /// Sends a query and calls `done` once with the outcome, at the latest after `within` (at most
    /// [`WITHIN_MAX`]).
    ///
    /// `done` runs on the client's thread and must not block it. If the query cannot be sent at
    /// all, `done` runs on the caller's thread before this returns. Dropping the [`Pending`]
    /// cancels the query, unless its outcome has arrived.
    pub fn ask(
        &self,
        request: Request,
        within: Duration,
        done: impl FnOnce(Outcome) + Send + 'static,
    ) -> Pending {
        self.ask_of_port(move |_| Ok(request), within, done)
    }

    /// Sends a query that depends on the port: `make` gets the port's current attributes.
    pub fn ask_of_port(
        &self,
        make: impl FnOnce(&Port) -> Result<Request, Failure> + Send + 'static,
        within: Duration,
        done: impl FnOnce(Outcome) + Send + 'static,
    ) -> Pending {
        let number = self.0.draw_number();
        let question = Question {
            number,
            make: Box::new(make),
            deadline: Instant::now() + within.min(WITHIN_MAX),
            done: Box::new(done),
        };
        self.0.submit(Command::Ask(question));
        Pending {
            handle: self.0.clone(),
            number,
            armed: true,
        }
    }

    /// Sends a query as a future that any runtime can drive. Dropping the future cancels the query.
    pub fn start(&self, request: Request, within: Duration) -> Asked {
        self.start_of_port(move |_| Ok(request), within)
    }

    /// Like [`start`](Self::start), for a query that depends on the port.
    pub fn start_of_port(
        &self,
        make: impl FnOnce(&Port) -> Result<Request, Failure> + Send + 'static,
        within: Duration,
    ) -> Asked {
        Asked::new(|done| self.ask_of_port(make, within, done))
    }

    /// Sends a query and waits for the outcome.
    ///
    /// # Errors
    /// Why the query failed, at the latest after `within`. [`Failure::Invalid`] on the client's own
    /// thread, which would deadlock.
    pub fn wait(&self, request: Request, within: Duration) -> Outcome {
        self.wait_of_port(move |_| Ok(request), within)
    }

    /// Like [`wait`](Self::wait), for a query that depends on the port.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn wait_of_port(
        &self,
        make: impl FnOnce(&Port) -> Result<Request, Failure> + Send + 'static,
        within: Duration,
    ) -> Outcome {
        if self.0.is_own_thread() {
            return Err(Failure::Invalid {
                what: "the thread of a blocking call",
                expected: "a thread other than the client's",
                found: "a callback".into(),
            });
        }
        let within = within.min(WITHIN_MAX);
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        let pending = self.ask_of_port(make, within, move |outcome| {
            // The send fails if the caller gave up waiting, which is harmless.
            let _ = send.send(outcome);
        });
        // The thread enforces the time limit, unless another caller's callback blocks it.
        let outcome = match receive.recv_timeout(within + SLACK) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Disconnected) => Err(Failure::Closed),
            Err(RecvTimeoutError::Timeout) => {
                return Err(Failure::TimedOut {
                    after: within,
                    tries: 0,
                    last: None,
                });
            }
        };
        pending.disarm();
        outcome
    }

    /// Reports that the subnet may have changed.
    ///
    /// Call this on a port event such as `IBV_EVENT_LID_CHANGE`, `SM_CHANGE`, `CLIENT_REREGISTER`
    /// or `PORT_ERR`. The client empties its cache, reads the port again and renews all
    /// registrations. Without such calls the client detects changes by reading the port
    /// periodically.
    pub fn subnet_changed(&self) {
        self.0.subnet_changed();
    }

    /// The port's current attributes.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn port(&self, within: Duration) -> Result<Port, Failure> {
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        let look = move |port: &Port| {
            let _ = send.send(port.clone());
            // The port's attributes suffice: no query is sent.
            Err(Failure::Closed)
        };
        let outcome = self.wait_of_port(look, within);
        match (receive.try_recv(), outcome) {
            (Ok(port), _) => Ok(port),
            (Err(_), Err(failure)) => Err(failure),
            (Err(_), Ok(_)) => Err(Failure::Closed),
        }
    }

    /// Counters of dropped datagrams by reason, since the transport was opened.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.0
    }
}

/// A query in progress. Dropping it cancels the query.
#[must_use = "dropping it cancels the query"]
pub struct Pending {
    handle: Arc<Handle>,
    number: u64,
    armed: bool,
}

impl Pending {
    /// Lets the query continue without this handle.
    pub fn detach(mut self) {
        self.armed = false;
    }

    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.armed {
            self.handle.cancel(self.number);
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("number", &self.number)
            .finish()
    }
}

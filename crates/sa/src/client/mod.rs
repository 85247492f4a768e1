//! The client: one thread for each port, which holds the transport and the engine.
//!
//! The thread starts with the first question and ends with the last handle. Answers are given to callbacks on
//! that thread; the blocking calls and the futures rest on them.

mod asked;
mod lease;
mod records;
mod shared;
mod thread;

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

pub use asked::Asked;
pub use lease::{LeaseState, RENEWALS_PER_LEASE, Registration};

use crate::cache::CacheConfig;
use crate::desk::Outcome;
use crate::engine::{Config, Counters, Failure, Request};
use crate::port::Port;
use crate::transport::{Transport, TransportError};
use crate::umad;
use shared::{Command, Handle, Question};

/// Bounds and times of a [`Client`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientConfig {
    /// Of the questions.
    pub engine: Config,
    /// Of the answers that are kept.
    pub cache: CacheConfig,
}

/// Asks the administrator of one port's subnet. A handle: clones ask through the same thread, which ends
/// when the last of them is dropped.
///
/// All that its [`Registration`]s registered is withdrawn before that, for at most
/// [`CLOSE_GRACE`] if the administrator does not answer.
#[derive(Clone, Debug)]
pub struct Client(Arc<Handle>);

/// How long the withdrawal of services may hold up the end of a client.
pub const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// The longest time that a question may take; more is as much.
pub const WITHIN_MAX: Duration = Duration::from_secs(3600);

/// How much longer than asked for a blocking call may wait for a thread that is held up.
const SLACK: Duration = Duration::from_secs(1);

/// Makes the transport, when it is first needed and after it failed.
pub(crate) type Open = dyn Fn() -> Result<Box<dyn Transport>, TransportError> + Send + Sync;

impl Client {
    /// A client that opens its transport with the first question. If that fails, the question fails, and
    /// the next one opens it anew; so it is when the port was gone and is back.
    pub fn new(
        config: ClientConfig,
        open: impl Fn() -> Result<Box<dyn Transport>, TransportError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Handle::new(config, Box::new(open))))
    }

    /// A client of a port's user MAD device.
    pub fn of_device(config: ClientConfig, device: umad::Device) -> Self {
        Self::new(config, move || {
            let transport = device.open(&umad::Class::SUBNET_ADMINISTRATION)?;
            Ok(Box::new(transport))
        })
    }

    /// Asks; `done` is called once with the outcome, at the latest after `within` ([`WITHIN_MAX`] at most), on the client's
    /// thread (it must not block there), or in the caller's before this returns, if it cannot be asked at all. Dropping
    /// the [`Pending`] cancels the question, unless its outcome is there.
    pub fn ask(
        &self,
        request: Request,
        within: Duration,
        done: impl FnOnce(Outcome) + Send + 'static,
    ) -> Pending {
        self.ask_of_port(move |_| Ok(request), within, done)
    }

    /// Asks what depends on the port: `make` is given what the port says of itself at that moment.
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

    /// Asks, as a future that any runtime can drive. Dropping it cancels the question.
    pub fn start(&self, request: Request, within: Duration) -> Asked {
        self.start_of_port(move |_| Ok(request), within)
    }

    /// As [`start`](Self::start), what depends on the port.
    pub fn start_of_port(
        &self,
        make: impl FnOnce(&Port) -> Result<Request, Failure> + Send + 'static,
        within: Duration,
    ) -> Asked {
        Asked::new(|done| self.ask_of_port(make, within, done))
    }

    /// Asks and waits.
    ///
    /// # Errors
    /// What went wrong, at the latest after `within`. [`Failure::Invalid`] on the client's own thread, which
    /// cannot wait for itself.
    pub fn wait(&self, request: Request, within: Duration) -> Outcome {
        self.wait_of_port(move |_| Ok(request), within)
    }

    /// As [`wait`](Self::wait), what depends on the port.
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
                what: "a question whose answer is waited for",
                expected: "a thread other than the client's",
                found: "a callback".into(),
            });
        }
        let within = within.min(WITHIN_MAX);
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        let pending = self.ask_of_port(make, within, move |outcome| {
            // Nobody waits any more if the receiver is gone.
            let _ = send.send(outcome);
        });
        // The thread keeps the time, unless another caller's callback keeps the thread.
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

    /// Tells that the subnet may have changed, for those who hear of a port's events
    /// (`IBV_EVENT_LID_CHANGE`, `SM_CHANGE`, `CLIENT_REREGISTER`, `PORT_ERR` and their kin): nothing that was found
    /// is taken for true, the port is looked at anew, and services are registered again. Who hears of none needs
    /// not call it: the port is looked at now and then, all the same.
    pub fn subnet_changed(&self) {
        self.0.subnet_changed();
    }

    /// What the port says of itself.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub fn port(&self, within: Duration) -> Result<Port, Failure> {
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        let look = move |port: &Port| {
            let _ = send.send(port.clone());
            // Nothing is to be asked.
            Err(Failure::Closed)
        };
        let outcome = self.wait_of_port(look, within);
        match (receive.try_recv(), outcome) {
            (Ok(port), _) => Ok(port),
            (Err(_), Err(failure)) => Err(failure),
            (Err(_), Ok(_)) => Err(Failure::Closed),
        }
    }

    /// What was dropped, and why, since the transport was opened.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.0
    }
}

/// A question under way. Dropping it cancels the question.
#[must_use = "dropping it cancels the question"]
pub struct Pending {
    handle: Arc<Handle>,
    number: u64,
    armed: bool,
}

impl Pending {
    /// Lets the question go on without it.
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

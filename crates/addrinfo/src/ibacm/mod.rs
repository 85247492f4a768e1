//! Paths from ibacm, the machine's path cache (ibacm(8)), through its socket.
//!
//! ibacm is optional: if it is absent, silent or invalid, the caller queries the subnet
//! administrator. So each query has a short deadline, and after a failed query ibacm is not used
//! for a while.

mod exchange;
mod message;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan_provider::Cause;
use portolan_threads::lock::{Mutex, MutexGuard};
use portolan_wire::sa::PathRecord;

use crate::path::PathData;
use message::Answer;

/// Deadline of a query to ibacm.
pub const QUESTION_DEADLINE: Duration = Duration::from_millis(400);
/// How long ibacm is not used after it failed to answer validly.
pub const DISTRUST: Duration = Duration::from_secs(60);

/// The file with ibacm's TCP port, if it has one.
const PORT_FILE: &str = "/run/ibacm.port";
/// ibacm's socket if it has no TCP port.
const SOCKET: &str = "/run/ibacm.sock";

/// The requested paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathRequest {
    /// Paths between IP addresses; ibacm finds their ports.
    Ip {
        /// The local address; `None` lets ibacm choose.
        source: Option<IpAddr>,
        /// The destination.
        destination: IpAddr,
    },
    /// Paths between GIDs.
    Gid {
        /// A path with these GIDs; other nonzero fields must match as well.
        like: PathRecord,
    },
}

/// The address at which an ibacm listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// A stream socket at this path.
    Unix(PathBuf),
    /// At this port of 127.0.0.1.
    Tcp(u16),
}

impl Server {
    /// The address of this machine's ibacm.
    pub fn of_this_machine() -> Self {
        let port = std::fs::read_to_string(PORT_FILE).ok();
        match port.and_then(|text| text.trim().parse().ok()) {
            Some(port) => Self::Tcp(port),
            None => Self::Unix(SOCKET.into()),
        }
    }
}

/// A client of ibacm. Each query has its own connection, so that no leftover data reaches the next
/// one.
#[derive(Debug)]
pub struct Client {
    /// The server; `None` means this machine's.
    server: Option<Server>,
    next_transaction: AtomicU64,
    /// When ibacm may be used again.
    distrusted: Mutex<Option<Instant>>,
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

impl Client {
    /// Creates a client of this machine's ibacm, which may start and stop at any time.
    pub const fn new() -> Self {
        Self {
            server: None,
            next_transaction: AtomicU64::new(1),
            distrusted: Mutex::new(None),
        }
    }

    /// Creates a client of the given ibacm.
    pub fn at(server: Server) -> Self {
        Self {
            server: Some(server),
            ..Self::new()
        }
    }

    /// Queries paths and returns at least one. Blocks for [`QUESTION_DEADLINE`] at most.
    ///
    /// # Errors
    /// * [`Cause::NoSuchObject`]: no ibacm runs here, or it is not used after a recent failure.
    /// * [`Cause::InvalidArgument`]: a value of the query is wider than its field.
    /// * [`Cause::NetworkUnreachable`]: ibacm reports that there is no path.
    /// * [`Cause::TimedOut`]: ibacm does not answer.
    /// * [`Cause::Os`]: the connection fails (the call's errno), or the answer is invalid (EPROTO).
    ///
    /// After the last two, ibacm is not used for [`DISTRUST`].
    pub fn paths(&self, question: &PathRequest) -> Result<Vec<PathData>, Cause> {
        if self.is_distrusted() {
            return Err(Cause::NoSuchObject("an ibacm that answers"));
        }
        let transaction = self.next_transaction.fetch_add(1, Ordering::Relaxed);
        let server = self.server.clone().unwrap_or_else(Server::of_this_machine);
        let outcome = exchange::ask(&server, question, transaction, QUESTION_DEADLINE);
        match outcome {
            Ok(Answer::Paths(paths)) => Ok(paths),
            Ok(Answer::Refused(status)) => {
                tracing::debug!(status, "ibacm has no path");
                Err(Cause::NetworkUnreachable)
            }
            // There is no ibacm, or the query is the caller's fault.
            Err(cause @ (Cause::NoSuchObject(_) | Cause::InvalidArgument { .. })) => Err(cause),
            Err(cause) => {
                tracing::warn!(%cause, "ibacm is not used for a while");
                *self.lock() = Some(Instant::now() + DISTRUST);
                Err(cause)
            }
        }
    }

    fn is_distrusted(&self) -> bool {
        self.lock().is_some_and(|until| Instant::now() < until)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.distrusted.lock()
    }
}

#[cfg(test)]
mod tests;

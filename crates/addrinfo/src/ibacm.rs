//! Paths from ibacm, the machine's own cache of them (ibacm(8)), by its socket.
//!
//! It is a helper and never needed: whoever does not find it, finds it silent, or gets nonsense from it asks
//! the subnet administrator. So a question has a short deadline, and one that ended badly is the last for a
//! while.

mod exchange;
mod message;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan_provider::Cause;
use portolan_wire::sa::PathRecord;

use crate::path::PathData;
use message::Answer;

/// How long a question to ibacm may take.
pub const QUESTION_DEADLINE: Duration = Duration::from_millis(400);
/// How long an ibacm that did not answer, or not sensibly, is left alone.
pub const DISTRUST: Duration = Duration::from_secs(60);

/// Where ibacm tells its TCP port, if it has one.
const PORT_FILE: &str = "/run/ibacm.port";
/// Its socket otherwise.
const SOCKET: &str = "/run/ibacm.sock";

/// What paths are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathRequest {
    /// Between IP addresses, whose ports ibacm finds.
    Ip {
        /// The local address; ibacm chooses without one.
        source: Option<IpAddr>,
        /// The destination.
        destination: IpAddr,
    },
    /// Between GIDs.
    Gid {
        /// A path with these GIDs, and what else of it is not zero.
        like: PathRecord,
    },
}

/// Where an ibacm listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// At a stream socket of this path.
    Unix(PathBuf),
    /// At this port of 127.0.0.1.
    Tcp(u16),
}

impl Server {
    /// Where this machine's ibacm would be.
    pub fn of_this_machine() -> Self {
        let port = std::fs::read_to_string(PORT_FILE).ok();
        match port.and_then(|text| text.trim().parse().ok()) {
            Some(port) => Self::Tcp(port),
            None => Self::Unix(SOCKET.into()),
        }
    }
}

/// Asks an ibacm. Each question has a connection of its own, so that nothing is left over for the next.
#[derive(Debug)]
pub struct Client {
    /// This machine's, if not given.
    server: Option<Server>,
    next_transaction: AtomicU64,
    /// Until when it is left alone.
    distrusted: Mutex<Option<Instant>>,
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

impl Client {
    /// Of this machine's ibacm, which may come and go.
    pub const fn new() -> Self {
        Self {
            server: None,
            next_transaction: AtomicU64::new(1),
            distrusted: Mutex::new(None),
        }
    }

    /// Of the ibacm there.
    pub fn at(server: Server) -> Self {
        Self {
            server: Some(server),
            ..Self::new()
        }
    }

    /// Asks for paths; there is at least one. Blocks for [`QUESTION_DEADLINE`] at most.
    ///
    /// # Errors
    /// * [`Cause::NoSuchObject`]: no ibacm runs here, or it is left alone for now.
    /// * [`Cause::NetworkUnreachable`]: it says that there is no path.
    /// * [`Cause::TimedOut`]: it does not answer.
    /// * [`Cause::Os`]: it breaks off (the call's errno), or what it says makes no sense (EPROTO).
    ///
    /// After the last two it is left alone for as long as [`DISTRUST`].
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
            Err(cause @ Cause::NoSuchObject(_)) => Err(cause),
            Err(cause) => {
                tracing::warn!(%cause, "ibacm is left alone for a while");
                *self.lock() = Some(Instant::now() + DISTRUST);
                Err(cause)
            }
        }
    }

    fn is_distrusted(&self) -> bool {
        self.lock().is_some_and(|until| Instant::now() < until)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        let lock = self.distrusted.lock();
        lock.unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;

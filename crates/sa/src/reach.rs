//! Whether a GID can be reached over an InfiniBand port: the administrator knows a path to it, or not.

use std::time::Duration;

use portolan_provider::error::errno;
use portolan_wire::Gid;
use portolan_wire::sa::{PathRecord, Query};

use crate::client::{Asked, Client, Pending};
use crate::desk::Outcome;
use crate::engine::{Failure, Request};
use crate::port::{LinkLayer, Port};
use crate::transport::TransportError;

/// Why a GID is not known to be reachable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreachable {
    /// The administrator knows no path to it (ENXIO).
    #[error("no path to {dgid}: {failure}")]
    NoPath {
        /// The GID.
        dgid: Gid,
        /// What the administrator said.
        failure: Failure,
    },
    /// The question is wrong (EINVAL).
    #[error("{what}: expected {expected}, found {found}")]
    Invalid {
        /// Which part of it.
        what: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// Nobody could say (EIO; ENOMEM where a bound of this machine's was reached or it had no memory, EINTR where a
    /// system call was interrupted).
    #[error("whether {dgid} can be reached is not known: {failure}")]
    NotKnown {
        /// The GID.
        dgid: Gid,
        /// Why.
        failure: Failure,
    },
}

impl Unreachable {
    /// The errno of ibv_gid_reachable (positive).
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NoPath { .. } => errno::ENXIO,
            Self::Invalid { .. } => errno::EINVAL,
            Self::NotKnown {
                failure:
                    Failure::LimitReached { .. }
                    | Failure::Transport(TransportError::Os {
                        errno: errno::ENOMEM | errno::ENOBUFS,
                        ..
                    }),
                ..
            } => errno::ENOMEM,
            Self::NotKnown {
                failure:
                    Failure::Transport(TransportError::Os {
                        errno: errno::EINTR,
                        ..
                    }),
                ..
            } => errno::EINTR,
            Self::NotKnown { .. } => errno::EIO,
        }
    }

    fn new(dgid: Gid, failure: Failure) -> Self {
        match failure {
            Failure::Invalid {
                what,
                expected,
                found,
            } => Self::Invalid {
                what,
                expected,
                found,
            },
            failure if failure.says_none() => Self::NoPath { dgid, failure },
            failure => Self::NotKnown { dgid, failure },
        }
    }
}

/// Whether the client's port reaches `dgid`: the path that the administrator names. Blocks until there
/// is an answer, at most for `within`. What was found not long ago is not asked again, as
/// [`CacheConfig`](crate::CacheConfig) says.
///
/// # Errors
/// [`Unreachable`], whose errno is that of ibv_gid_reachable.
pub fn gid_reachable(
    client: &Client,
    dgid: Gid,
    within: Duration,
) -> Result<PathRecord, Unreachable> {
    check(dgid)?;
    path_of(
        dgid,
        client.wait_of_port(move |port| question(port, dgid), within),
    )
}

/// As [`gid_reachable`], for many GIDs at one time: each is a future of its own.
///
/// # Errors
/// The future's: [`Unreachable`].
pub async fn gid_reachable_async(
    client: &Client,
    dgid: Gid,
    within: Duration,
) -> Result<PathRecord, Unreachable> {
    check(dgid)?;
    let asked: Asked = client.start_of_port(move |port| question(port, dgid), within);
    path_of(dgid, asked.await)
}

/// As [`gid_reachable`], for those who wait in their own way: `done` is called once with the outcome, as
/// [`Client::ask`] says, or before this returns if the question is wrong. Dropping what is returned cancels
/// the question.
pub fn ask(
    client: &Client,
    dgid: Gid,
    within: Duration,
    done: impl FnOnce(Result<PathRecord, Unreachable>) + Send + 'static,
) -> Option<Pending> {
    if let Err(refused) = check(dgid) {
        done(Err(refused));
        return None;
    }
    let make = move |port: &Port| question(port, dgid);
    Some(client.ask_of_port(make, within, move |outcome| done(path_of(dgid, outcome))))
}

fn check(dgid: Gid) -> Result<(), Unreachable> {
    let expected = "the GID of a port";
    let found = match () {
        () if dgid.is_unspecified() => "zero".into(),
        () if dgid.is_multicast() => format!("the group {dgid}"),
        () => return Ok(()),
    };
    let what = "the destination's GID";
    Err(Unreachable::Invalid {
        what,
        expected,
        found,
    })
}

fn question(port: &Port, dgid: Gid) -> Result<Request, Failure> {
    if port.link_layer != LinkLayer::InfiniBand {
        return Err(Failure::Invalid {
            what: "the port's link layer",
            expected: "InfiniBand",
            found: port.link_layer.to_string(),
        });
    }
    let sgid = port.gid().ok_or(Failure::NoAdministrator)?;
    let query = Query::<PathRecord>::new()
        .sgid(sgid)
        .dgid(dgid)
        .reversible(true)
        .numb_path(1);
    Ok(Request::get(&query)?)
}

fn path_of(dgid: Gid, outcome: Outcome) -> Result<PathRecord, Unreachable> {
    let answer = outcome.map_err(|failure| Unreachable::new(dgid, failure))?;
    let path = answer.records::<PathRecord>().into_iter().next();
    let failure = match path {
        Some(path) if path.dgid == dgid => return Ok(path),
        Some(_) => Failure::Malformed("a path to another GID"),
        None => Failure::Malformed("an answer without a path"),
    };
    Err(Unreachable::NotKnown { dgid, failure })
}

//! Whether a GID is reachable over an InfiniBand port: whether the administrator has a path to it.

use std::time::Duration;

use portolan_provider::error::errno;
use portolan_wire::Gid;
use portolan_wire::sa::{PathRecord, Query};

use crate::client::{Asked, Client, Pending};
use crate::engine::{Failure, Request};
use crate::port::{LinkLayer, Port};
use crate::query_coalescer::Outcome;
use crate::transport::TransportError;

/// Why a GID is unreachable or its reachability is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreachable {
    /// The administrator has no path to the GID (ENXIO).
    #[error("no path to {dgid}: {failure}")]
    NoPath {
        /// The GID.
        dgid: Gid,
        /// The administrator's answer.
        failure: Failure,
    },
    /// The query is invalid (EINVAL).
    #[error("{what}: expected {expected}, found {found}")]
    Invalid {
        /// The invalid parameter.
        what: &'static str,
        /// The expected value.
        expected: &'static str,
        /// The value found.
        found: String,
    },
    /// The administrator gave no answer.
    ///
    /// The errno is ENOMEM if a limit of this machine was reached or memory ran out, EINTR if a
    /// signal interrupted a system call, and EIO otherwise.
    #[error("cannot determine whether {dgid} is reachable: {failure}")]
    NotKnown {
        /// The GID.
        dgid: Gid,
        /// Why the query failed.
        failure: Failure,
    },
}

impl Unreachable {
    /// The errno that ibv_gid_reachable returns (positive).
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

/// Returns the path from the client's port to `dgid` if the administrator has one.
///
/// Blocks until the answer arrives, at most for `within`. A recent answer comes from the cache; see
/// [`CacheConfig`](crate::CacheConfig).
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

/// Like [`gid_reachable`], as a future. Use one future for each of many GIDs to query them
/// concurrently.
///
/// # Errors
/// The future returns [`Unreachable`].
pub async fn gid_reachable_async(
    client: &Client,
    dgid: Gid,
    within: Duration,
) -> Result<PathRecord, Unreachable> {
    check(dgid)?;
    let asked: Asked = client.start_of_port(move |port| question(port, dgid), within);
    path_of(dgid, asked.await)
}

/// Like [`gid_reachable`], with a callback.
///
/// `done` is called once with the outcome, as [`Client::ask`] documents, or before this returns if
/// the query is invalid. Dropping the returned [`Pending`] cancels the query.
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
    // The client has checked that each path is between the ports that the query names.
    let path = answer.records::<PathRecord>().into_iter().next();
    path.ok_or_else(|| {
        let failure = Failure::Malformed("an answer without a path");
        Unreachable::NotKnown { dgid, failure }
    })
}

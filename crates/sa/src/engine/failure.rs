//! Why a query failed.

use std::fmt;
use std::time::Duration;

use portolan_provider::error::errno;
use portolan_wire::mad::RmppStatus;
use portolan_wire::sa::{SaStatus, Status};

use crate::transport::TransportError;

/// Why a query failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The deadline passed.
    #[error("no answer from the subnet administrator in {} ms, {tries} attempts{}", .after.as_millis(), Last(.last))]
    TimedOut {
        /// How long the query waited.
        after: Duration,
        /// How often the query was sent.
        tries: u32,
        /// The last problem before the deadline.
        last: Option<Problem>,
    },
    /// The administrator answered with an error status.
    #[error("the subnet administrator answered with status {0}")]
    Status(Status),
    /// The port knows no administrator, or is not active.
    #[error(
        "no subnet administrator: the port is not active, or no subnet manager has configured it"
    )]
    NoAdministrator,
    /// The answer is malformed.
    #[error("the subnet administrator's answer is invalid: {0}")]
    Malformed(&'static str),
    /// The table ended early.
    #[error("the table is truncated: expected {expected}, found {found}")]
    Truncated {
        /// What was expected.
        expected: &'static str,
        /// Number of bytes found.
        found: u64,
    },
    /// The administrator aborted the transfer of a table.
    #[error("the subnet administrator aborted the table: {0}")]
    Aborted(RmppStatus),
    /// A limit was reached.
    #[error("the limit of {limit} {what} is reached")]
    LimitReached {
        /// What is limited.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The query is invalid.
    #[error("{what}: expected {expected}, found {found}")]
    Invalid {
        /// The invalid parameter.
        what: &'static str,
        /// The expected value.
        expected: &'static str,
        /// The value found.
        found: String,
    },
    /// The transport failed for good.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The client was closed before the answer arrived.
    #[error("the client was closed")]
    Closed,
}

/// Why one attempt failed; a retry may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The administrator answered that it is busy.
    #[error("the subnet administrator is busy")]
    Busy,
    /// The datagram could not be sent or delivered.
    #[error("the query could not be delivered: {}", std::io::Error::from_raw_os_error(*.errno))]
    NotDelivered {
        /// The system's errno (positive).
        errno: i32,
    },
    /// The table did not arrive completely.
    #[error("the table stopped after {segments} segments")]
    Stalled {
        /// Number of segments received without a gap.
        segments: u32,
    },
    /// The administrator aborted the transfer of a table.
    #[error("the subnet administrator aborted the table: {0}")]
    Aborted(RmppStatus),
    /// There was no administrator to query.
    #[error("the port lost its subnet administrator")]
    NoAdministrator,
}

struct Last<'a>(&'a Option<Problem>);

impl fmt::Display for Last<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(problem) => write!(f, "; last: {problem}"),
            None => Ok(()),
        }
    }
}

impl Failure {
    /// The errno (positive) of this failure on Linux.
    pub fn errno(&self) -> i32 {
        match self {
            Self::TimedOut { .. } => errno::ETIMEDOUT,
            Self::Status(status) => match status.decode() {
                SaStatus::NoRecords => errno::ENXIO,
                SaStatus::NoResources => errno::ENOMEM,
                SaStatus::Busy => errno::EBUSY,
                SaStatus::Denied => errno::EACCES,
                SaStatus::InvalidGid
                | SaStatus::InvalidField
                | SaStatus::RequestInvalid
                | SaStatus::InsufficientComponents => errno::EINVAL,
                SaStatus::MethodNotSupported | SaStatus::MethodAttributeNotSupported => {
                    errno::EOPNOTSUPP
                }
                _ => errno::EIO,
            },
            Self::NoAdministrator => errno::ENETUNREACH,
            Self::Malformed(_) | Self::Truncated { .. } | Self::Aborted(_) => errno::EIO,
            Self::LimitReached { .. } => errno::ENOMEM,
            Self::Invalid { .. } => errno::EINVAL,
            Self::Transport(error) => error.errno(),
            Self::Closed => errno::ENODEV,
        }
    }

    /// Returns whether the administrator answered that no such record exists. For a GID that no
    /// port has, OpenSM answers that the GID is invalid.
    pub fn says_none(&self) -> bool {
        let Self::Status(status) = self else {
            return false;
        };
        matches!(status.decode(), SaStatus::NoRecords | SaStatus::InvalidGid)
    }
}

impl From<portolan_wire::Error> for Failure {
    fn from(error: portolan_wire::Error) -> Self {
        Self::Invalid {
            what: "a value of the query",
            expected: "one that fits its field",
            found: error.to_string(),
        }
    }
}

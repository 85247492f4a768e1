//! Why a GID is unreachable or its reachability is unknown, with the errno of ibv_gid_reachable(3).

use std::fmt;

use portolan_provider::Cause;
use portolan_provider::error::errno;
use portolan_wire::addr::Gid;

/// A GID that is unreachable or whose reachability is unknown.
///
/// ```
/// use portolan::reach::{Port, reach};
/// use std::net::Ipv4Addr;
/// use std::time::Duration;
///
/// // A port without network interface reaches nothing else.
/// let port = Port::ethernet("none", 1, vec![Ipv4Addr::LOCALHOST.into()], vec![]);
/// let gid = Ipv4Addr::new(198, 51, 100, 7).into();
/// let unreachable = reach(&port, gid, Duration::from_secs(5)).unwrap_err();
/// assert!(unreachable.is_no_path(), "{unreachable}");
/// assert_eq!((unreachable.gid, unreachable.reason.name()), (gid, "ENXIO"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreachable {
    /// The local RDMA device.
    pub device: String,
    /// Its port; 0 if none was selected.
    pub port_num: u8,
    /// The GID.
    pub gid: Gid,
    /// The reason.
    pub reason: Reason,
}

/// The reason, classified by the manual's errors; [`reach`](super::reach()) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// `EINVAL`: no such port, or the GID is not a host's.
    InvalidArgument {
        /// The argument.
        what: &'static str,
        /// The valid values.
        expected: &'static str,
        /// The value given.
        found: String,
    },
    /// `ENXIO`: there is no path.
    NoPath(String),
    /// `EIO`: the port is down, or the administrator or the system did not answer validly.
    Io(String),
    /// `ENOMEM`: too many queries are in progress, or the system is out of memory.
    NoMemory(String),
    /// `EINTR`: a system call was interrupted.
    Interrupted,
}

impl Unreachable {
    /// The errno (positive) that ibv_gid_reachable(3) returns.
    pub fn errno(&self) -> i32 {
        self.reason.errno()
    }

    /// Returns whether there is definitely no path; otherwise reachability is unknown.
    pub fn is_no_path(&self) -> bool {
        matches!(self.reason, Reason::NoPath(_))
    }
}

impl Reason {
    /// The errno (positive) that ibv_gid_reachable(3) returns.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::InvalidArgument { .. } => errno::EINVAL,
            Self::NoPath(_) => errno::ENXIO,
            Self::Io(_) => errno::EIO,
            Self::NoMemory(_) => errno::ENOMEM,
            Self::Interrupted => errno::EINTR,
        }
    }

    /// Its name in C.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::InvalidArgument { .. } => "EINVAL",
            Self::NoPath(_) => "ENXIO",
            Self::Io(_) => "EIO",
            Self::NoMemory(_) => "ENOMEM",
            Self::Interrupted => "EINTR",
        }
    }
}

impl From<Cause> for Reason {
    /// Converts a failed lookup. A missing route or link-layer address is an answer; a timeout is
    /// not.
    fn from(cause: Cause) -> Self {
        let text = cause.to_string();
        match (&cause, cause.errno()) {
            (Cause::InvalidArgument { .. }, _) => Self::InvalidArgument {
                what: "GID",
                expected: "the address of one host",
                found: text,
            },
            // Without an address of the family there is no source address.
            (
                Cause::NetworkUnreachable | Cause::HostUnreachable | Cause::AddressNotAvailable,
                _,
            ) => Self::NoPath(text),
            // A `prohibit` route is an answer too.
            (_, errno::ENETUNREACH | errno::EHOSTUNREACH | errno::EACCES) => Self::NoPath(text),
            (_, errno::ENOMEM | errno::ENOBUFS) => Self::NoMemory(text),
            (_, errno::EINTR) => Self::Interrupted,
            _ => Self::Io(text),
        }
    }
}

impl From<portolan_sa::reach::Unreachable> for Reason {
    /// Converts the subnet administrator's answer, or the lack of one.
    fn from(why: portolan_sa::reach::Unreachable) -> Self {
        let text = match &why {
            portolan_sa::reach::Unreachable::NoPath { failure, .. } => failure.to_string(),
            why => why.to_string(),
        };
        match (why.errno(), why) {
            (
                _,
                portolan_sa::reach::Unreachable::Invalid {
                    what,
                    expected,
                    found,
                },
            ) => Self::InvalidArgument {
                what,
                expected,
                found,
            },
            (errno::ENXIO, _) => Self::NoPath(text),
            (errno::ENOMEM, _) => Self::NoMemory(text),
            (errno::EINTR, _) => Self::Interrupted,
            _ => Self::Io(text),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArgument {
                what,
                expected,
                found,
            } => write!(f, "{what}: expected {expected}, found {found}"),
            Self::NoPath(why) => write!(f, "no path: {why}"),
            Self::Io(why) | Self::NoMemory(why) => f.write_str(why),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Reason {}

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            device,
            port_num,
            gid,
            reason,
        } = self;
        write!(f, "{gid} from {device}")?;
        if *port_num != 0 {
            write!(f, " port {port_num}")?;
        }
        write!(f, ": {reason}")
    }
}

impl std::error::Error for Unreachable {}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno_of(cause: Cause) -> i32 {
        Reason::from(cause).errno()
    }

    fn os(errno: i32) -> Cause {
        Cause::Os {
            call: "send",
            errno,
        }
    }

    #[test]
    fn enxio_is_for_answers_without_a_path() {
        for cause in [
            Cause::NetworkUnreachable,
            Cause::HostUnreachable,
            Cause::AddressNotAvailable,
            os(errno::EACCES),
        ] {
            assert_eq!(errno_of(cause), errno::ENXIO);
        }
    }

    #[test]
    fn enomem_is_for_unavailable_resources() {
        let limit = Cause::LimitReached {
            what: "look-ups",
            limit: 1,
        };
        for cause in [limit, os(errno::ENOMEM), os(errno::ENOBUFS)] {
            assert_eq!(errno_of(cause), errno::ENOMEM);
        }
    }

    #[test]
    fn eintr_is_for_interrupted_system_calls() {
        assert_eq!(errno_of(os(errno::EINTR)), errno::EINTR);
    }

    #[test]
    fn eio_is_for_failed_input_or_output_and_for_no_answer() {
        let late = Cause::TimedOut {
            after_ms: 1,
            retries: 0,
        };
        for cause in [late, Cause::DeviceRemoved, os(errno::EIO), os(errno::EPERM)] {
            assert_eq!(errno_of(cause), errno::EIO);
        }
    }
}

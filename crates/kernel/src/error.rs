//! Converts the kernel's errnos to causes.

use portolan_provider::error::errno::*;
use portolan_provider::{Cause, Error, Step};
use portolan_wire::cm::RejectReason;
use rustix::io::Errno;

/// The error of a command or verb that the kernel or libibverbs refused; `call` is its name. An errno without a
/// specific cause keeps its number.
pub(crate) fn refused(step: Step, call: &'static str, errno: Errno) -> Error {
    let errno = errno.raw_os_error();
    let cause = match errno {
        EAGAIN => Cause::WouldBlock,
        // From TCP under iWARP: the peer has no listener.
        ECONNREFUSED => Cause::Rejected {
            reason: RejectReason::INVALID_SERVICE_ID,
            private_data: Default::default(),
        },
        EADDRINUSE => Cause::AddressInUse { holder: None },
        EADDRNOTAVAIL => Cause::AddressNotAvailable,
        ENETUNREACH => Cause::NetworkUnreachable,
        EHOSTUNREACH => Cause::HostUnreachable,
        ENXIO => Cause::DeviceRemoved,
        ENODEV => Cause::NoDevice {
            why: format!("the kernel refused {call} with ENODEV"),
        },
        _ => Cause::Os { call, errno },
    };
    Error::new(step, cause)
}

/// The error of a command that only requires the id to exist.
pub(crate) fn unknown_id(step: Step, name: &'static str, errno: Errno) -> Error {
    match errno {
        Errno::NOENT => Error::new(step, Cause::NoSuchObject("id")),
        _ => refused(step, name, errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_of_a_refusal_has_the_errno_it_came_with() {
        let all = [
            EAGAIN,
            ECONNREFUSED,
            EADDRINUSE,
            EADDRNOTAVAIL,
            ENETUNREACH,
            EHOSTUNREACH,
            ENXIO,
            ENODEV,
            EINVAL,
            EACCES,
            ENOENT,
            ENOMEM,
            ETIMEDOUT,
        ];
        for errno in all {
            let error = refused(Step::Bind, "BIND", Errno::from_raw_os_error(errno));
            assert_eq!(error.errno(), errno, "{error}");
        }
    }
}

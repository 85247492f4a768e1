//! System calls: interfaces, netlink and probes.

pub(crate) mod interface;
pub(crate) mod netlink;
pub(crate) mod probe;
pub(crate) mod rtnetlink;

use portolan_provider::Cause;
use rustix::io::Errno;

/// A failed system call as a cause.
pub(crate) fn os_error(call: &'static str) -> impl Fn(Errno) -> Cause {
    move |errno| Cause::Os {
        call,
        errno: errno.raw_os_error(),
    }
}

//! The functions that replace libc's for resource limits. This library raises the soft limit of open files while it makes a
//! descriptor of its own ([`room`]), which the program neither sees nor disturbs.

#![allow(unsafe_code, reason = "pointers of the program, and calls of libc")]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all: the arguments are the program's, which vouches for them as the function's manual page says, \
              and go on unchanged to libc's function of that name"
)]

use std::ffi::{c_int, c_uint};

use libc::{pid_t, rlimit};
use portolan_abi_layout::exports;
use portolan_port_sharing::room;

use crate::real;

/// Makes a call for a limit.
fn call(resource: c_uint, call: impl FnOnce() -> c_int) -> c_int {
    match resource == libc::RLIMIT_NOFILE as c_uint {
        true => room::with_limit(call),
        false => call(),
    }
}

exports! {
    fn getrlimit(resource: c_uint, limit: *mut rlimit) -> c_int {
        call(resource, || unsafe { real::getrlimit(resource, limit) })
    }

    fn getrlimit64(resource: c_uint, limit: *mut rlimit) -> c_int {
        call(resource, || unsafe { real::getrlimit64(resource, limit) })
    }

    fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int {
        call(resource, || unsafe { real::setrlimit(resource, limit) })
    }

    fn setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int {
        call(resource, || unsafe { real::setrlimit64(resource, limit) })
    }

    fn prlimit(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        call(resource, || unsafe { real::prlimit(process, resource, new, old) })
    }

    fn prlimit64(process: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        call(resource, || unsafe { real::prlimit64(process, resource, new, old) })
    }
}

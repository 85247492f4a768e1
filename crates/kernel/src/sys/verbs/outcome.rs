//! Return values of verbs as results.

use std::ffi::c_int;

use portolan_provider::error::errno::EIO;
use portolan_provider::{Cause, Error, Result, Step};
use rustix::io::Errno;

use crate::error::refused;

/// The numbers that an errno can be.
const ERRNOS: std::ops::Range<c_int> = 1..4096;

/// The error of a verb that returned the errno `code`, or -1 with the errno in the thread's variable.
pub(super) fn failed(step: Step, verb: &'static str, code: c_int) -> Error {
    let errno = match code {
        ..0 => last_errno(),
        code => errno_of(code),
    };
    if errno.raw_os_error() == EIO {
        // uverbs returns this for every call on a removed device.
        return Error::new(step, Cause::DeviceRemoved);
    }
    refused(step, verb, errno)
}

/// Checks a verb's return value: 0, an errno, or -1.
pub(super) fn check(step: Step, verb: &'static str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(failed(step, verb, code)),
    }
}

/// Checks a pointer that a verb returned: null means an error in `errno`.
pub(super) fn made<T>(
    step: Step,
    verb: &'static str,
    object: *mut T,
) -> Result<std::ptr::NonNull<T>> {
    std::ptr::NonNull::new(object).ok_or_else(|| failed(step, verb, -1))
}

pub(super) fn last_errno() -> Errno {
    let errno = std::io::Error::last_os_error().raw_os_error();
    errno_of(errno.unwrap_or(EIO))
}

/// A driver may fail without an errno or with an invalid one: that becomes `EIO`.
pub(super) fn errno_of(code: c_int) -> Errno {
    let errno = Some(code).filter(|code| ERRNOS.contains(code));
    Errno::from_raw_os_error(errno.unwrap_or(EIO))
}

/// Converts a `u32` to an `int` of the ABI, saturating.
pub(super) fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// An object of another provider or device.
pub(super) fn foreign(step: Step, expected: &'static str) -> Error {
    Error::invalid(step, "object", expected, "another provider's or device's")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_that_fails_without_a_valid_errno_fails_by_eio() {
        for code in [0, 4096, i32::MAX, -1, i32::MIN] {
            assert_eq!(errno_of(code).raw_os_error(), EIO, "{code}");
        }
        assert_eq!(errno_of(4095).raw_os_error(), 4095);
        let error = failed(Step::CreateQp, "ibv_create_qp", 5000);
        assert_eq!(error.cause, Cause::DeviceRemoved);
        // SAFETY: the address of this thread's `errno` is always valid.
        unsafe { *libc::__errno_location() = 0 };
        let null = std::ptr::null_mut::<u8>();
        let error = made(Step::RegisterMemory, "ibv_reg_mr", null).unwrap_err();
        assert_eq!(error.cause, Cause::DeviceRemoved);
    }
}

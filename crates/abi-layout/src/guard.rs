//! The boundary between C and Rust: errors become `errno`, no panic crosses it, and no thread is cancelled within it.

#![allow(unsafe_code, reason = "`errno` belongs to libc")]

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use portolan_threads::uncancelled;
use rustix::io::Errno;

/// The result of a C library's own functions; errors are errnos.
pub type Result<T> = std::result::Result<T, Errno>;

/// Runs the body of a function. A panic, whose message was already printed, becomes `EIO`.
///
/// # Errors
/// The body's error.
#[inline]
pub fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    value(Err(Errno::IO), body)
}

/// Runs the body of a function with any return type; returns `otherwise` if it panics.
#[inline]
pub fn value<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    uncancelled(|| catch_unwind(AssertUnwindSafe(body))).unwrap_or(otherwise)
}

/// Sets `errno`, and returns -1.
pub fn failed(errno: Errno) -> c_int {
    set_errno(errno);
    -1
}

/// Sets `errno`, and returns null.
pub fn null<T>(errno: Errno) -> *mut T {
    set_errno(errno);
    std::ptr::null_mut()
}

/// Sets `errno`.
pub fn set_errno(errno: Errno) {
    // SAFETY: the address of this thread's `errno` is always valid.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

/// The `errno` of the last C call; `EIO` if it set none.
pub fn last_errno() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error();
    errno_of(number.unwrap_or(0))
}

/// Converts a number to an errno; `EIO` if it is not valid.
pub fn errno_of(number: c_int) -> Errno {
    let errno = Some(number).filter(|number| (1..4096).contains(number));
    errno.map_or(Errno::IO, Errno::from_raw_os_error)
}

/// Checks the result of a verb that returns an errno, or -1 with `errno` set.
///
/// # Errors
/// The verb's error.
pub fn check(answer: c_int) -> Result<()> {
    match answer {
        0 => Ok(()),
        number if number > 0 => Err(errno_of(number)),
        _ => Err(last_errno()),
    }
}

/// Checks the result of a verb that returns a pointer, or null with `errno` set.
///
/// # Errors
/// The verb's error.
pub fn made<T>(pointer: *mut T) -> Result<*mut T> {
    match pointer.is_null() {
        true => Err(last_errno()),
        false => Ok(pointer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_panics_become_errno() {
        assert_eq!(caught(|| Ok(7)), Ok(7));
        assert_eq!(caught(|| Err::<(), _>(Errno::BUSY)), Err(Errno::BUSY));
        assert_eq!(caught::<()>(|| panic!("on purpose")), Err(Errno::IO));
        assert_eq!(value(3, || panic!("on purpose")), 3);
        assert_eq!(failed(Errno::ADDRINUSE), -1);
        assert_eq!(last_errno(), Errno::ADDRINUSE);
        assert!(null::<u8>(Errno::NOMEM).is_null());
        assert_eq!(last_errno(), Errno::NOMEM);
    }

    #[test]
    fn verbs_report_errors_in_three_ways_and_an_invalid_errno_is_an_io_error() {
        assert_eq!(check(0), Ok(()));
        assert_eq!(check(libc::EINVAL), Err(Errno::INVAL));
        assert_eq!(check(4096), Err(Errno::IO));
        set_errno(Errno::BUSY);
        assert_eq!(check(-1), Err(Errno::BUSY));
        assert_eq!(made(std::ptr::null_mut::<u8>()), Err(Errno::BUSY));
        for number in [0, -1, 4096, c_int::MAX, c_int::MIN] {
            assert_eq!(errno_of(number), Errno::IO, "{number}");
        }
        assert_eq!(errno_of(4095).raw_os_error(), 4095);
    }
}

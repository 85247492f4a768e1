//! The edge between C and Rust: errors become `errno` and -1, and no panic crosses it.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;

use crate::fork;

/// What the library's own functions give: errors are those of `errno`.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// Runs the body of a function that gives 0, or -1 and `errno`.
pub(crate) fn status(body: impl FnOnce() -> Result<()>) -> c_int {
    match caught(body) {
        Ok(()) => 0,
        Err(errno) => failed(errno),
    }
}

/// Runs the body of a function that gives a pointer, or null and `errno`.
pub(crate) fn pointer<T>(body: impl FnOnce() -> Result<*mut T>) -> *mut T {
    caught(body).unwrap_or_else(|errno| {
        set_errno(errno.raw_os_error());
        std::ptr::null_mut()
    })
}

/// Runs the body of a function that gives what it likes; `otherwise` if it panics.
pub(crate) fn value<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// Sets `errno` and gives -1.
pub(crate) fn failed(errno: Errno) -> c_int {
    set_errno(errno.raw_os_error());
    -1
}

/// Sets `errno`.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the address of this thread's `errno` is always good.
    unsafe { *libc::__errno_location() = number };
}

/// The `errno` that a function of C just left; `EIO` if it left none.
pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error())
        .filter(|errno| errno.raw_os_error() != 0)
        .unwrap_or(Errno::IO)
}

/// What a verb gives that tells its error by a number: `errno`'s, or -1 and `errno`.
pub(crate) fn check(answer: c_int) -> Result<()> {
    match answer {
        0 => Ok(()),
        number if number > 0 => Err(errno_of(number)),
        _ => Err(last_errno()),
    }
}

/// A number that is no errno is `EIO`.
pub(crate) fn errno_of(number: c_int) -> Errno {
    let errno = Some(number).filter(|number| (1..4096).contains(number));
    errno.map_or(Errno::IO, Errno::from_raw_os_error)
}

/// What a verb gives that tells its error by null and `errno`.
pub(crate) fn made<T>(pointer: *mut T) -> Result<*mut T> {
    if pointer.is_null() {
        Err(last_errno())
    } else {
        Ok(pointer)
    }
}

/// A defect of the library's own is told as `EIO`; its text has been printed. In a child of a process that has software
/// devices the body is not run ([`fork::check`]).
pub(crate) fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    fork::check()?;
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_becomes_errno_and_a_panic_is_one() {
        assert_eq!(status(|| Ok(())), 0);
        assert_eq!(status(|| Err(Errno::ADDRINUSE)), -1);
        assert_eq!(last_errno(), Errno::ADDRINUSE);
        assert_eq!(status(|| panic!("on purpose")), -1);
        assert_eq!(last_errno(), Errno::IO);
        assert!(pointer::<u8>(|| Err(Errno::NOMEM)).is_null());
        assert_eq!(last_errno(), Errno::NOMEM);
    }

    #[test]
    fn verbs_tell_their_errors_in_three_ways() {
        assert_eq!(check(0), Ok(()));
        assert_eq!(check(libc::EINVAL), Err(Errno::INVAL));
        assert_eq!(check(4096), Err(Errno::IO));
        set_errno(libc::EBUSY);
        assert_eq!(check(-1), Err(Errno::BUSY));
        assert_eq!(made(std::ptr::null_mut::<u8>()), Err(Errno::BUSY));
    }
}

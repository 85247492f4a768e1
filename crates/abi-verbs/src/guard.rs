//! The edge between C and Rust: errors become numbers and `errno`.

use std::ffi::c_int;

use portolan_abi_layout::guard;
pub(crate) use portolan_abi_layout::guard::{Result, caught, failed, set_errno, value};
use rustix::io::Errno;

use crate::process::check_process;

/// Runs the body of a verb that gives 0 or the number of an error, as most do. `errno` is set, too.
#[inline]
pub(crate) fn number(body: impl FnOnce() -> Result<()>) -> c_int {
    match caught(body) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno.raw_os_error()
        }
    }
}

/// As [`number`], for what is not on the way of data.
///
/// A child of a process that has devices is refused: another thread may have held any lock at the fork, or an event
/// that is not acknowledged there.
pub(crate) fn control(body: impl FnOnce() -> Result<()>) -> c_int {
    number(|| {
        check_process()?;
        body()
    })
}

/// Runs the body of a function that gives a number, or -1 and `errno`.
pub(crate) fn status(body: impl FnOnce() -> Result<c_int>) -> c_int {
    caught(body).unwrap_or_else(failed)
}

/// Runs the body of a function that gives a pointer, or null and `errno`.
pub(crate) fn pointer<T>(body: impl FnOnce() -> Result<*mut T>) -> *mut T {
    caught(body).unwrap_or_else(guard::null)
}

/// The number that an error of the provider stands for.
#[cold]
pub(crate) fn errno_of(error: &portolan_provider::Error) -> Errno {
    guard::errno_of(error.errno())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_becomes_a_number_and_errno_and_a_panic_is_one() {
        assert_eq!(number(|| Ok(())), 0);
        assert_eq!(number(|| Err(Errno::BUSY)), libc::EBUSY);
        assert_eq!(guard::last_errno(), Errno::BUSY);
        assert_eq!(number(|| panic!("on purpose")), libc::EIO);
        assert_eq!(status(|| Ok(7)), 7);
        assert_eq!(status(|| Err(Errno::AGAIN)), -1);
        assert_eq!(guard::last_errno(), Errno::AGAIN);
        assert!(pointer::<u8>(|| Err(Errno::NOMEM)).is_null());
        assert_eq!(guard::last_errno(), Errno::NOMEM);
    }
}

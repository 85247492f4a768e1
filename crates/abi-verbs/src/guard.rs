//! The boundary between C and Rust: errors become return values and `errno`.

use std::ffi::c_int;

use portolan_abi_layout::guard;
pub(crate) use portolan_abi_layout::guard::{Result, caught, failed, set_errno, value};
use rustix::io::Errno;

/// Runs the body of a verb that returns 0 or an errno, as most do. Also sets `errno`.
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

/// Runs the body of a function that returns a number, or -1 with `errno` set.
pub(crate) fn status(body: impl FnOnce() -> Result<c_int>) -> c_int {
    caught(body).unwrap_or_else(failed)
}

/// Runs the body of a function that returns a pointer, or null with `errno` set.
pub(crate) fn pointer<T>(body: impl FnOnce() -> Result<*mut T>) -> *mut T {
    caught(body).unwrap_or_else(guard::null)
}

/// The errno of a provider's error.
#[cold]
pub(crate) fn errno_of(error: &portolan_provider::Error) -> Errno {
    guard::errno_of(error.errno())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_panics_become_a_number_and_errno() {
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

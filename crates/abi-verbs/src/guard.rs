//! The edge between C and Rust: errors become numbers and `errno`, and no panic crosses it.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;

use crate::provider::check_process;

/// What the library's own functions give: errors are those of `errno`.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

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
/// that nobody acknowledges there.
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
    caught(body).unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// Runs the body of a function that gives what it likes; `otherwise` if it panics.
#[inline]
pub(crate) fn value<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// Sets `errno` and gives -1.
pub(crate) fn failed(errno: Errno) -> c_int {
    set_errno(errno);
    -1
}

/// Sets `errno`.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the address of this thread's `errno` is always good.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

/// The number that an error of the provider stands for.
#[cold]
pub(crate) fn errno_of(error: &portolan_provider::Error) -> Errno {
    let number = Some(error.errno()).filter(|number| (1..4096).contains(number));
    number.map_or(Errno::IO, Errno::from_raw_os_error)
}

/// A defect of the library's own is told as `EIO`; its text has been printed.
#[inline]
pub(crate) fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> Option<i32> {
        std::io::Error::last_os_error().raw_os_error()
    }

    #[test]
    fn an_error_becomes_a_number_and_errno_and_a_panic_is_one() {
        assert_eq!(number(|| Ok(())), 0);
        assert_eq!(number(|| Err(Errno::BUSY)), libc::EBUSY);
        assert_eq!(last(), Some(libc::EBUSY));
        assert_eq!(number(|| panic!("on purpose")), libc::EIO);
        assert_eq!(status(|| Ok(7)), 7);
        assert_eq!(status(|| Err(Errno::AGAIN)), -1);
        assert_eq!(last(), Some(libc::EAGAIN));
        assert!(pointer::<u8>(|| Err(Errno::NOMEM)).is_null());
        assert_eq!(last(), Some(libc::ENOMEM));
        assert_eq!(value(3, || panic!("on purpose")), 3);
    }
}

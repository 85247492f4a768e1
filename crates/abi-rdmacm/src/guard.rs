//! The boundary between C and Rust, which every call crosses. Errors become `errno`.

use std::ffi::c_int;

use portolan_abi_layout::guard;
pub(crate) use portolan_abi_layout::guard::{
    Result, caught, check, errno_of, failed, last_errno, made, set_errno, value,
};

/// Runs the body of a function that returns 0, or -1 with `errno`.
pub(crate) fn status(body: impl FnOnce() -> Result<()>) -> c_int {
    caught(body).map_or_else(failed, |()| 0)
}

/// Runs the body of a function that returns a pointer, or null with `errno`.
pub(crate) fn pointer<T>(body: impl FnOnce() -> Result<*mut T>) -> *mut T {
    caught(body).unwrap_or_else(guard::null)
}

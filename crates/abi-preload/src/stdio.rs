//! `fdopen` of a stream. glibc's files read and write within libc, where nothing can be caught. So the file of a stream calls
//! this library (fopencookie(3)).

#![allow(unsafe_code, reason = "a file of libc's")]

use std::ffi::{c_char, c_int, c_void};

use libc::{FILE, off64_t, size_t, ssize_t};

/// What a file calls.
#[repr(C)]
pub(crate) struct Calls {
    pub(crate) read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    pub(crate) write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    pub(crate) seek: Option<unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int>,
    pub(crate) close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, calls: Calls) -> *mut FILE;
}

/// Where glibc's `struct _IO_FILE` has the descriptor, for `fileno`: after the flags and 13 pointers. It is part of the ABI.
const FILENO_AT: usize = 14 * size_of::<usize>();

/// Opens a file on a descriptor, which the calls get as their cookie.
///
/// # Safety
/// The mode is a string.
pub(crate) unsafe fn open(number: c_int, mode: *const c_char, calls: Calls) -> *mut FILE {
    let cookie = number as usize as *mut c_void;
    // SAFETY: the caller's mode; the calls take the cookie for a number.
    let file = unsafe { fopencookie(cookie, mode, calls) };
    if !file.is_null() {
        // SAFETY: the field of a file that is there.
        unsafe { file.byte_add(FILENO_AT).cast::<c_int>().write(number) };
    }
    file
}

/// The number of a cookie.
pub(crate) fn number(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int
}

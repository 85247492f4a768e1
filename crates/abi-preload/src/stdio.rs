//! `fdopen` of a stream. glibc's stdio calls read and write inside libc, where they cannot be intercepted. So a
//! stream's file is made by fopencookie(3) and calls this library.

#![allow(unsafe_code, reason = "a file of libc's")]

use std::ffi::{c_char, c_int, c_void};

use libc::{FILE, off64_t, size_t, ssize_t};
use portolan_threads::ProcessCell;
use portolan_threads::lock::{Mutex, MutexGuard};

use crate::inside::Inside;

/// The callbacks of a file (`cookie_io_functions_t`).
#[repr(C)]
pub(crate) struct Calls {
    pub(crate) read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    pub(crate) write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    pub(crate) seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    pub(crate) close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, calls: Calls) -> *mut FILE;
    fn ftrylockfile(file: *mut FILE) -> c_int;
    fn funlockfile(file: *mut FILE);
    fn fflush_unlocked(file: *mut FILE) -> c_int;
}

/// Offset of the descriptor in glibc's `struct _IO_FILE`, for `fileno`: after the flags and 13 pointers. It is ABI.
const FILENO_AT: usize = 14 * size_of::<usize>();

/// Opens a file on a descriptor. The callbacks get the descriptor as their cookie.
///
/// # Safety
/// `mode` is a C string.
pub(crate) unsafe fn open(number: c_int, mode: *const c_char, calls: Calls) -> *mut FILE {
    let _inside = Inside::enter();
    let cookie = number as usize as *mut c_void;
    // SAFETY: the caller vouches for the mode; the callbacks treat the cookie as a number.
    let file = unsafe { fopencookie(cookie, mode, calls) };
    if !file.is_null() {
        // SAFETY: the file is open, and the field lies within it.
        unsafe { file.byte_add(FILENO_AT).cast::<c_int>().write(number) };
        files().push(file as usize);
    }
    file
}

/// The open files of streams, by their addresses. They leave the list before they are closed. A forked child begins with a copy of
/// its parent's list, unless another thread had locked that at the fork.
fn files() -> MutexGuard<'static, Vec<usize>> {
    static FILES: ProcessCell<Mutex<Vec<usize>>> = ProcessCell::new();
    let copy = |parents: Option<&Mutex<Vec<usize>>>| {
        let known = parents.and_then(|parents| Some(parents.try_lock()?.clone()));
        Mutex::new(known.unwrap_or_default())
    };
    FILES.get_or_inherit(copy).lock()
}

/// The file of a number is being closed.
pub(crate) fn closing(number: c_int) {
    let _inside = Inside::enter();
    files().retain(|file| fileno_of(*file) != number);
}

/// Whether a file is a stream's.
pub(crate) fn is_own(file: *mut FILE) -> bool {
    let _inside = Inside::enter();
    files().contains(&(file as usize))
}

/// Writes what is buffered in the files that the program has not closed. libc does so at exit, but after this library has ended.
/// Leaves out files that another thread uses. No file is closed meanwhile.
pub(crate) fn flush() {
    for file in files().iter() {
        let file = *file as *mut FILE;
        // SAFETY: the file is open: its close removes it first, or waits for this lock.
        unsafe {
            if ftrylockfile(file) == 0 {
                fflush_unlocked(file);
                funlockfile(file);
            }
        }
    }
}

fn fileno_of(file: usize) -> c_int {
    let file = file as *mut FILE;
    // SAFETY: the file is open, and the field lies within it.
    unsafe { file.byte_add(FILENO_AT).cast::<c_int>().read() }
}

/// The descriptor number in a cookie.
pub(crate) fn number(cookie: *mut c_void) -> c_int {
    cookie.addr() as c_int
}

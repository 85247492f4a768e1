//! sysfs files, forks.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{CStr, c_char, c_int, c_void};

use portolan_abi_layout::exports;
use rustix::io::Errno;

use crate::guard::{status, value};
use crate::sysfs;

/// `IBV_FORK_UNNEEDED`.
const FORK_UNNEEDED: c_int = 2;

exports! {
    fn ibv_get_sysfs_path() -> *const c_char {
        value(c"/sys".as_ptr(), sysfs::path)
    }

    fn ibv_read_sysfs_file(
        folder: *const c_char,
        file: *const c_char,
        into: *mut c_char,
        size: usize
    ) -> c_int {
        status(|| {
            if folder.is_null() || file.is_null() || into.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the program's texts.
            let (folder, file) = unsafe { (CStr::from_ptr(folder), CStr::from_ptr(file)) };
            // SAFETY: the program provides that many bytes.
            let into = unsafe {
                into.cast::<u8>().write_bytes(0, size);
                std::slice::from_raw_parts_mut(into.cast::<u8>(), size)
            };
            sysfs::read(folder, file, into)
        })
    }

    // Registered memory is not pinned. After a fork each process has its own memory, and the device uses its parent's.
    fn ibv_fork_init() -> c_int {
        0
    }

    fn ibv_is_fork_initialized() -> c_int {
        FORK_UNNEEDED
    }

    fn ibv_dontfork_range(_start: *mut c_void, _size: usize) -> c_int {
        0
    }

    fn ibv_dofork_range(_start: *mut c_void, _size: usize) -> c_int {
        0
    }
}

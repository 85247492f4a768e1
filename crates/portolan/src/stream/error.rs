//! Errors of the library as errors of the standard library.

use std::io;

use portolan_provider::Error;

/// The error of the same kind that `std::net` would give; its source is the library's error, with step, addresses and device.
pub(super) fn io_error(error: Error) -> io::Error {
    let kind = io::Error::from_raw_os_error(error.errno()).kind();
    io::Error::new(kind, error)
}

//! Errors of streams as `errno`.

use std::io;

use portolan::Error;
use rustix::io::Errno;

use crate::guard::errno_of;

/// The errno of a library's error.
pub(super) fn of_error(error: &Error) -> Errno {
    errno_of(error.errno())
}

/// The errno of a stream's error. A stream that has ended gives `ECONNRESET`, as in librdmacm.
pub(super) fn of_io(error: &io::Error) -> Errno {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::WouldBlock => return Errno::AGAIN,
        Kind::BrokenPipe | Kind::ConnectionReset => return Errno::CONNRESET,
        Kind::NotConnected => return Errno::NOTCONN,
        _ => {}
    }
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>());
    match (inner, error.raw_os_error()) {
        (Some(inner), _) => of_error(inner),
        (None, Some(number)) => errno_of(number),
        (None, None) => Errno::IO,
    }
}

//! Errors of the provider as the numbers that a write to the device fails with.

use portolan_provider::Error;
use rustix::io::Errno;

/// The errno of a provider's error.
pub(crate) fn errno(error: Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

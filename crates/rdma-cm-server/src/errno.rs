//! Errors of the provider as errnos of a write to the device.

use portolan_provider::Error;
use rustix::io::Errno;

/// The errno of a provider's error.
pub(crate) fn errno(error: Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}

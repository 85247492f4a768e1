//! The memory of the process that issues commands.

use rustix::io::Errno;

/// The caller's memory: addresses in commands refer to it, for answers and values.
pub trait Memory {
    /// Copies bytes from an address.
    ///
    /// # Errors
    /// `EFAULT` if they are not readable.
    fn read(&self, address: u64, length: usize) -> Result<Vec<u8>, Errno>;

    /// Copies bytes to an address.
    ///
    /// # Errors
    /// `EFAULT` if they are not writable.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno>;
}

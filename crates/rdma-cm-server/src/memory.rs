//! The memory of the process that writes commands.

use rustix::io::Errno;

/// The caller's memory: commands carry addresses in it, of a place for the answer or of a value.
pub trait Memory {
    /// Copies bytes from an address.
    ///
    /// # Errors
    /// `EFAULT` if they are not there to be read.
    fn read(&self, address: u64, length: usize) -> Result<Vec<u8>, Errno>;

    /// Copies bytes to an address.
    ///
    /// # Errors
    /// `EFAULT` if they may not be written there.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno>;
}

//! A random seed from the kernel.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::transport::TransportError;

/// Draws a seed. getrandom(2) returns up to 256 bytes whole or not at all.
pub(crate) fn seed() -> Result<[u8; 32], TransportError> {
    let mut seed = [0; 32];
    match getrandom(&mut seed, GetRandomFlags::empty()) {
        Ok(32) => Ok(seed),
        Ok(_) => Err(failed(portolan_provider::error::errno::EIO)),
        Err(errno) => Err(failed(errno.raw_os_error())),
    }
}

fn failed(errno: i32) -> TransportError {
    TransportError::Os {
        call: "getrandom",
        errno,
    }
}

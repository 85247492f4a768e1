//! A seed that nobody can guess.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::transport::TransportError;

/// Up to 256 bytes come whole or not at all (getrandom(2)).
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

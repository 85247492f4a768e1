//! Unpredictable numbers: keys, queue pair numbers, source ports, seeds.

use portolan_provider::{Cause, Error, Result, Step};
use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

/// Bytes from the kernel's generator. Up to 256 bytes arrive completely or not at all (getrandom(2)).
///
/// # Errors
/// `Os` if the kernel refuses.
pub fn random<const N: usize>(step: Step) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let errno = match retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty())) {
        Ok(got) if got == N => return Ok(bytes),
        Ok(_) => Errno::IO,
        Err(errno) => errno,
    };
    let (call, errno) = ("getrandom", errno.raw_os_error());
    Err(Error::new(step, Cause::Os { call, errno }))
}

/// 32 bits from the kernel's generator.
pub(crate) fn random_u32(step: Step) -> Result<u32> {
    random(step).map(u32::from_ne_bytes)
}

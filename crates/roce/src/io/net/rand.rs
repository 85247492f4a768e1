//! Unpredictable numbers: keys, queue pair numbers, source ports.

use portolan_provider::{Cause, Error, Result, Step};
use rustix::rand::{GetRandomFlags, getrandom};

/// 32 bits from the kernel's generator.
pub(crate) fn random_u32(step: Step) -> Result<u32> {
    let mut bytes = [0; 4];
    fill(step, &mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

fn fill(step: Step, mut bytes: &mut [u8]) -> Result<()> {
    while !bytes.is_empty() {
        match getrandom(&mut *bytes, GetRandomFlags::empty()) {
            Ok(filled) => bytes = bytes.get_mut(filled..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                let errno = errno.raw_os_error();
                return Err(Error::new(
                    step,
                    Cause::Os {
                        call: "getrandom",
                        errno,
                    },
                ));
            }
        }
    }
    Ok(())
}

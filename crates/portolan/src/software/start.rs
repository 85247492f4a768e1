//! Starts the provider: the engine, the device, and the device's callbacks.

use std::sync::Arc;

use portolan_cm::Cm;
use portolan_provider::error::errno;
use portolan_provider::{Cause, Error, Result, Step};
use portolan_roce::io::Stack;

use super::SoftwareConfig;
use super::claimant::Claimant;
use super::core::Core;
use super::gsi::GsiPort;
use super::registrar::Registrar;

impl Core {
    pub(super) fn start(config: SoftwareConfig) -> Result<Arc<Self>> {
        let core = Self::new();
        let gsi = Arc::new(GsiPort(core.downgrade()));
        let coordinator = Box::new(Registrar::new(
            u64::from_le_bytes(random()?),
            config.cm.closed_listener_memory,
        ));
        let member = Arc::new(Claimant::new(core.downgrade(), core.claims.clone()));
        // Before the stack's thread runs, because after that the group asks for reports, reports deaths and delivers
        // datagrams.
        Stack::start_with(config.stack, coordinator, member, |stack| {
            let cm = portolan_cm::Config {
                comm_id_block: stack.block().index(),
                ..config.cm
            };
            core.set(Cm::new(cm, random()?), stack);
            Ok(gsi)
        })?;
        Ok(core)
    }
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    // Up to 256 bytes arrive completely or not at all (getrandom(2)).
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(got) if got == N => Ok(bytes),
        Ok(_) => Err(Error::new(
            Step::OpenDevice,
            Cause::Os {
                call: "getrandom",
                errno: errno::EIO,
            },
        )),
        Err(error) => {
            let cause = Cause::Os {
                call: "getrandom",
                errno: error.raw_os_error(),
            };
            Err(Error::new(Step::OpenDevice, cause))
        }
    }
}

//! Starts the provider: the engine, the device, and the device's callbacks.

use std::sync::Arc;

use portolan_cm::Cm;
use portolan_provider::{Result, Step};
use portolan_roce::io::{Stack, random};

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
            u64::from_le_bytes(random(Step::OpenDevice)?),
            config.cm.expected_listener_memory,
        ));
        let member = Arc::new(Claimant::new(core.downgrade(), core.claims.clone()));
        // Before the stack's thread runs, because after that the group asks for reports, reports deaths and delivers
        // datagrams.
        Stack::start_with(config.stack, coordinator, member, |stack| {
            let cm = portolan_cm::Config {
                comm_id_block: stack.block().index(),
                ..config.cm
            };
            core.set(Cm::new(cm, random(Step::OpenDevice)?), stack);
            Ok(gsi)
        })?;
        Ok(core)
    }
}

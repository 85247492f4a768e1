//! The software provider: the connection protocol (`cm`) over the software device (`roce`), in this
//! process.
//!
//! * `start`: puts the engine, the device and the parts below together.
//! * `core`, `state`: the engine under its lock, and what its outputs lead to.
//! * `ids`, `bind`, `groups`: the commands that concern more than the engine.
//! * `channel`, `queue`: event channels and the commands on them.
//! * `gsi`: management datagrams and time, from the device to the engine.
//! * `devices`: devices that come and go, and neighbours that change.
//! * `resolve_addr`: how a destination is reached: route, device, neighbour.
//! * `claim`, `ports`, `registrar`: local ports, decided once for all processes that share UDP 4791.
//! * `survey`: all of those processes, seen from outside.
//! * `claimant`: what the group of those processes asks of this one, and the deaths that it reports.
//!
//! Tests of programs may have a provider of their own, whose processes share nothing with others:
//!
//! ```
//! use portolan::Listener;
//! use portolan::software::{SoftwareConfig, SoftwareProvider};
//!
//! let mut config = SoftwareConfig::default();
//! config.stack.group.port = 47_910; // UDP, instead of 4791
//! config.stack.group.name_prefix = "my-tests".into();
//! let provider = SoftwareProvider::start(config)?;
//! let listener = Listener::bind_on(provider.clone(), "127.0.0.1:0".parse().unwrap())?;
//! assert_eq!(provider.usage().listeners, 1);
//! # Ok::<(), portolan::Error>(())
//! ```

mod bind;
mod channel;
mod claim;
mod claimant;
mod core;
mod devices;
mod groups;
mod gsi;
mod ids;
mod ports;
mod queue;
mod registrar;
mod resolve_addr;
pub(crate) mod start;
mod state;
pub mod survey;

use std::net::IpAddr;
use std::sync::Arc;

pub use portolan_port_sharing::Trust;
use portolan_provider::traits::{CmChannel, Device, Provider};
use portolan_provider::{Cause, Error, Result, Step};
pub use portolan_roce::io::{DevicePreview, Direction, StackConfig, Tap, TappedPacket, preview};

use self::channel::SoftwareChannel;
use self::core::Core;

/// Settings of the software provider.
#[derive(Clone, Debug, Default)]
pub struct SoftwareConfig {
    /// The software devices.
    pub stack: StackConfig,
    /// The connection protocol. `comm_id_block` is set by the provider.
    pub cm: portolan_cm::Config,
}

/// How much a software provider holds at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Connection-manager ids, those of waiting connection requests included.
    pub ids: usize,
    /// Connections that peers have asked for and not confirmed.
    pub half_open: usize,
    /// Addresses that are listened on; a wildcard of both IP versions is two.
    pub listeners: usize,
    /// Local ports.
    pub ports: usize,
    /// Memberships of multicast groups.
    pub memberships: usize,
    /// Protection domains.
    pub protection_domains: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Memory regions.
    pub memory_regions: u32,
}

/// The software provider of a process.
#[derive(Debug)]
pub struct SoftwareProvider {
    core: Arc<Core>,
}

impl SoftwareProvider {
    /// Joins the processes that share the UDP port and starts the devices.
    ///
    /// # Errors
    /// `PortOwnedElsewhere` if something else holds the port, `GroupRefused`, or a system call's.
    pub fn start(config: SoftwareConfig) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            core: Core::start(config)?,
        }))
    }

    /// How much it holds: what ends is given back.
    pub fn usage(&self) -> Usage {
        self.core.usage()
    }

    /// Shows every packet of this process to `tap`; `None` removes it.
    pub fn set_tap(&self, tap: Option<Arc<dyn Tap>>) {
        self.core.stack().set_tap(tap);
    }
}

impl Provider for SoftwareProvider {
    fn name(&self) -> &'static str {
        "software"
    }

    fn devices(&self) -> Result<Vec<Arc<dyn Device>>> {
        let devices = self.core.stack().devices();
        Ok(devices
            .into_iter()
            .map(|device| device as Arc<dyn Device>)
            .collect())
    }

    fn open_channel(&self) -> Result<Arc<dyn CmChannel>> {
        self.core.stack().check_process(Step::OpenChannel)?;
        Ok(Arc::new(SoftwareChannel::new(self.core.clone())?))
    }

    fn device_of(&self, ip: IpAddr) -> Result<(Arc<dyn Device>, u32)> {
        let stack = self.core.stack();
        let found = stack.device_of(ip, 0).or_else(|| {
            // It may have come this very moment.
            let _ = stack.refresh();
            stack.device_of(ip, 0)
        });
        found
            .map(|(device, index)| (device as Arc<dyn Device>, index))
            .ok_or_else(|| {
                let why = format!("no interface has the address {ip}");
                Error::new(Step::OpenDevice, Cause::NoDevice { why })
            })
    }
}

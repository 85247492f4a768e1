//! The software provider: the connection protocol (`cm`) over the software device (`roce`), in this
//! process.
//!
//! Tests of programs may create a provider of their own, whose processes share nothing with others:
//!
//! ```
//! use portolan::Listener;
//! use portolan::software::{SoftwareConfig, SoftwareProvider};
//!
//! let mut config = SoftwareConfig::default();
//! config.stack.group.port = 47_910; // UDP, instead of 4791
//! config.stack.group.name_prefix = "my-tests".into();
//! # portolan::doc_group(&mut config);
//! let provider = SoftwareProvider::start(config)?;
//! let listener = Listener::bind_on(provider.clone(), "127.0.0.1:0".parse().unwrap())?;
//! assert_eq!(provider.usage().listeners, 1);
//! # Ok::<(), portolan::Error>(())
//! ```

// The modules:
//
// * `start`: creates the engine and the device, and connects them.
// * `core`, `state`: the engine under its lock, and the execution of its outputs.
// * `ids`, `bind`, `groups`: the commands that concern more than the engine.
// * `channel`, `queue`: event channels and the commands on them.
// * `gsi`: passes management datagrams and timeouts from the device to the engine.
// * `devices`: changes of devices and neighbours.
// * `resolve_addr`: finds the route, device and neighbour for a destination.
// * `claim`, `ports`, `registrar`: local ports, assigned once for all processes that share UDP port 4791.
// * `survey`: a survey of all those processes from outside.
// * `claimant`: the group's callbacks in this process, such as reports of deaths.

mod bind;
mod channel;
mod claim;
mod claimant;
mod core;
mod devices;
mod groups;
mod gsi;
mod held;
mod ids;
#[cfg(test)]
pub(crate) mod own_group;
mod ports;
mod queue;
mod registrar;
mod resolve_addr;
mod start;
mod state;
pub mod survey;

use std::net::IpAddr;
use std::sync::Arc;

/// The users whose processes may share the UDP port with this one.
/// [`configure_software`](crate::provider::configure_software) has an example.
pub use portolan_port_sharing::Trust;
use portolan_provider::traits::{CmChannel, Device, Notify, Provider};
use portolan_provider::{Error, Result, Step};
/// A device that the software provider would have; [`preview`] has an example.
pub use portolan_roce::io::DevicePreview;
/// Settings of the software devices, a part of [`SoftwareConfig`], which has an example.
pub use portolan_roce::io::StackConfig;
/// The program's view of all packets; [`set_tap`](crate::provider::set_tap) has an example.
pub use portolan_roce::io::Tap;
/// The way of a connection's packets, from [`SoftwareProvider::way_of`], which has an example.
pub use portolan_roce::io::Way;
/// The software devices of this machine.
///
/// ```
/// let devices = portolan::software::preview()?;
/// let loopback = devices.iter().find(|device| device.interface == "lo").expect("every machine has it");
/// assert_eq!(loopback.name, "sw_lo");
/// println!("{} has {:?}", loopback.name, loopback.gids);
/// # Ok::<(), portolan::Error>(())
/// ```
pub use portolan_roce::io::preview;
pub use portolan_roce::io::{
    Direction, TappedPacket, WhySocket, WhyUnreadable, may_call_process_vm,
};
use portolan_wire::Qpn;

use self::channel::SoftwareChannel;
use self::core::Core;
pub(crate) use self::queue::Watcher;

/// Calls `watcher` at each event of a channel, if it is a software provider's. `None` ends that. Returns whether it is.
pub(crate) fn watch(channel: &dyn CmChannel, watcher: Option<Arc<dyn Watcher>>) -> bool {
    SoftwareChannel::watch(channel, watcher)
}

/// Settings of the software provider.
///
/// [`configure_software`](crate::provider::configure_software) sets those of the provider that a process uses by itself.
/// [`SoftwareProvider::start`] starts another provider. The default does not read the environment:
/// [`trust`](crate::provider::trust) and [`local_memory`](crate::provider::local_memory) do.
///
/// ```
/// use portolan::provider::traits::Provider;
/// use portolan::software::{SoftwareConfig, SoftwareProvider};
///
/// let mut config = SoftwareConfig::default();
/// config.stack.group.port = 14_791; // UDP, instead of 4791
/// config.stack.group.name_prefix = "an-example".into();
/// # portolan::doc_group(&mut config);
/// config.stack.limits.max_qp = 100;
/// config.cm.max_cm_retries = 3; // an unreachable peer is given up sooner
/// let provider = SoftwareProvider::start(config)?;
/// assert_eq!(provider.devices()?[0].attr()?.max_qp, 100);
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SoftwareConfig {
    /// The software devices.
    pub stack: StackConfig,
    /// The connection protocol. `comm_id_block` is set by the provider.
    pub cm: portolan_cm::Config,
}

/// The current numbers of a software provider's objects; [`SoftwareProvider`] has an example.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Connection-manager ids, including those of queued connection requests.
    pub ids: usize,
    /// Half-open connections: peers have requested them and not yet confirmed.
    pub half_open: usize,
    /// Listening addresses. A wildcard of both IP versions counts as two.
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
///
/// Programs need it only to isolate themselves or to look into it: the [crate's](crate) calls start one when it is first
/// used ([`software_provider`](crate::provider::software_provider)).
///
/// ```
/// use portolan::software::{SoftwareConfig, SoftwareProvider, Way, WhySocket};
/// use portolan::{Connector, Listener};
///
/// let mut config = SoftwareConfig::default();
/// config.stack.group.port = 14_792;
/// config.stack.group.name_prefix = "another-example".into();
/// # portolan::doc_group(&mut config);
/// let provider = SoftwareProvider::start(config)?;
///
/// let listener = Listener::bind_on(provider.clone(), "127.0.0.1:0".parse().unwrap())?;
/// let (address, connector) = (listener.local_addr()?, Connector::new().provider(provider.clone()));
/// let client = std::thread::spawn(move || connector.connect_to(address));
/// let server = listener.accept()?.accept()?;
/// let client = client.join().unwrap()?;
///
/// assert_eq!(provider.usage().queue_pairs, 2);
/// let way = provider.way_of(client.qp_num());
/// assert_eq!(way, Some(Way::Socket(WhySocket::SameProcess)));
/// # drop(server);
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug)]
pub struct SoftwareProvider {
    core: Arc<Core>,
}

impl SoftwareProvider {
    /// Joins the processes that share the UDP port and starts the devices.
    ///
    /// # Errors
    /// `PortOwnedElsewhere` if another program holds the port, `GroupRefused`, or the error of a system call.
    pub fn start(config: SoftwareConfig) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            core: Core::start(config)?,
        }))
    }

    /// The current numbers of objects. Destroyed objects do not count.
    pub fn usage(&self) -> Usage {
        self.core.usage()
    }

    /// Shows every packet of this process to `tap`; `None` removes it.
    pub fn set_tap(&self, tap: Option<Arc<dyn Tap>>) {
        self.core.stack().set_tap(tap);
    }

    /// How a queue pair's packets are sent. `None` if the queue pair does not exist or is not connected.
    ///
    /// The first connection between two processes of a host creates the link through memory that all their connections use.
    /// The link is usually there when the connect returns, and otherwise about a millisecond later. Packets use the socket
    /// until then, with the same results. A program that measures, or that wants its first writes to be copies, waits for
    /// the link:
    ///
    /// ```
    /// use portolan::software::{SoftwareProvider, Way, WhySocket};
    /// use portolan::{Connection, Connector};
    /// use std::time::{Duration, Instant};
    ///
    /// /// Waits until the link is there, but not for long: without it everything works, too.
    /// fn settle(provider: &SoftwareProvider, connection: &Connection) -> Option<Way> {
    ///     let started = Instant::now();
    ///     loop {
    ///         let way = provider.way_of(connection.qp_num());
    ///         let is_coming = way == Some(Way::Socket(WhySocket::NotReady));
    ///         if !is_coming || started.elapsed() > Duration::from_millis(100) {
    ///             return way;
    ///         }
    ///         std::thread::sleep(Duration::from_micros(100));
    ///     }
    /// }
    /// # let mut config = portolan::software::SoftwareConfig::default();
    /// # config.stack.group.port = 14_793;
    /// # config.stack.group.name_prefix = "a-third-example".into();
    /// # let provider = SoftwareProvider::start(config)?;
    /// # let listener = portolan::Listener::bind_on(provider.clone(), "127.0.0.1:0".parse().unwrap())?;
    /// # let (address, connector) = (listener.local_addr()?, Connector::new().provider(provider.clone()));
    /// # let client = std::thread::spawn(move || connector.connect_to(address));
    /// # let server = listener.accept()?.accept()?;
    /// # let client = client.join().unwrap()?;
    ///
    /// let way = settle(&provider, &client);
    /// // Here both ends are in one process, which has no link to itself.
    /// assert_eq!(way, Some(Way::Socket(WhySocket::SameProcess)));
    /// # drop(server);
    /// # Ok::<(), portolan::Error>(())
    /// ```
    pub fn way_of(&self, qpn: Qpn) -> Option<Way> {
        self.core.stack().way_of(qpn)
    }
}

impl portolan_provider::sealed::Sealed for SoftwareProvider {}

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

    fn open_calling_channel(&self, notify: &Arc<dyn Notify>) -> Result<Option<Arc<dyn CmChannel>>> {
        self.core.stack().check_process(Step::OpenChannel)?;
        let channel = SoftwareChannel::calling(self.core.clone(), notify.clone());
        Ok(Some(Arc::new(channel)))
    }

    fn device_of(&self, ip: IpAddr) -> Result<(Arc<dyn Device>, u32)> {
        let stack = self.core.stack();
        let found = stack.device_of(ip, 0).or_else(|| {
            // The address may be new: read the interfaces.
            let _ = stack.refresh();
            stack.device_of(ip, 0)
        });
        found
            .map(|(device, index)| (device as Arc<dyn Device>, index))
            .ok_or_else(|| Error::new(Step::OpenDevice, self.core.no_device(ip)))
    }
}

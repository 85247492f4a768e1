//! What the devices, queue pairs and threads of a stack share.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::clock::Clock;
use super::config::{Limits, StackConfig};
use super::counters::Monitor;
use super::device::SoftDevice;
use super::fork::ForkGuard;
use super::gauge::Gauge;
use super::group::Group;
use super::heard::Heard;
use super::hotplug::Readings;
use super::multicast::Multicast;
use super::owed::Owed;
use super::progress::Progress;
use super::qp::QpCore;
use super::receive::Receiver;
use super::table::QpTable;
use super::timers::Timers;
use super::transmit::Transmitter;
use crate::engine::MemoryTable;

/// Everything that is one per stack. See the [module](super) for the order of the locks.
pub(super) struct Shared {
    pub(super) config: StackConfig,
    pub(super) clock: Clock,
    pub(super) fork: Arc<ForkGuard>,
    pub(super) monitor: Monitor,
    pub(super) gauges: Gauges,
    pub(super) group: Group,
    pub(super) transmitter: Transmitter,
    pub(super) receiver: Mutex<Receiver>,
    pub(super) qps: QpTable<QpCore>,
    /// Read while packets are built and placed.
    pub(super) memory: RwLock<MemoryTable>,
    pub(super) timers: Timers,
    pub(super) owed: Owed,
    pub(super) heard: Heard,
    pub(super) multicast: Multicast,
    pub(super) progress: Progress,
    pub(super) devices: RwLock<Vec<Arc<SoftDevice>>>,
    pub(super) readings: Readings,
    /// PSN of the next management datagram. QP1 gives it no meaning.
    pub(super) gsi_psn: AtomicU32,
}

/// How many objects of each kind there are.
#[derive(Debug)]
pub(super) struct Gauges {
    pub(super) pds: Arc<Gauge>,
    pub(super) cqs: Arc<Gauge>,
    pub(super) qps: Arc<Gauge>,
    pub(super) ahs: Arc<Gauge>,
    pub(super) mrs: Arc<Gauge>,
    pub(super) mws: Arc<Gauge>,
    pub(super) srqs: Arc<Gauge>,
}

impl Gauges {
    pub(super) fn new(limits: &Limits) -> Self {
        let qps = limits.max_qp.min(QpTable::<QpCore>::LIMIT as u32);
        Self {
            pds: Gauge::new("protection domains", limits.max_pd),
            cqs: Gauge::new("completion queues", limits.max_cq),
            qps: Gauge::new("queue pairs", qps),
            ahs: Gauge::new("address handles", limits.max_ah),
            mrs: Gauge::new("memory regions", limits.max_mr),
            mws: Gauge::new("memory windows", limits.max_mw),
            srqs: Gauge::new("shared receive queues", limits.max_srq),
        }
    }
}

impl Shared {
    /// The UDP port of the other end.
    pub(super) fn port(&self) -> u16 {
        self.config.group.port
    }

    /// The device that has an address, and the slot of its GID table. Of a link-local address the
    /// interface says which device is meant; without one (0) it must be the only device that has it.
    /// Any other address is one device's, whichever interface its packets come by.
    pub(super) fn device_of(&self, ip: IpAddr, interface: u32) -> Option<(Arc<SoftDevice>, u32)> {
        let ip = ip.to_canonical();
        let devices = self.devices.read().unwrap_or_else(PoisonError::into_inner);
        let mut having = devices.iter().filter_map(|device| {
            let index = device.core().gid_index(ip)?;
            Some((Arc::clone(device), index))
        });
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        match (is_link_local, interface) {
            (false, _) => having.next(),
            (true, 0) => having.next().filter(|_| having.next().is_none()),
            (true, _) => having.find(|(device, _)| device.core().interface() == interface),
        }
    }
}

/// Short: whatever holds a device holds this, and this holds the devices.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("port", &self.port())
            .field("block", &self.group.block())
            .finish_non_exhaustive()
    }
}

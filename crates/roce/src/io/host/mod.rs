//! The host of queue pairs: it locks them, passes packets to their engines, and executes what the engines request.
//!
//! [`Host`] contains the state that exists once per stack. Its methods are in files by topic: [`drive`] and
//! [`datagram`] move packets to and from queue pairs, [`hotplug`] follows the network interfaces, and [`membership`]
//! joins multicast groups.

pub(crate) mod async_events;
pub(crate) mod async_listener;
mod atomic;
mod busy_look;
pub(crate) mod completion_channel;
pub(crate) mod completion_queue;
mod copying;
pub(crate) mod datagram;
pub(crate) mod datagram_memory;
pub(crate) mod datagram_wait;
pub(crate) mod device;
mod direct;
pub(crate) mod drive;
pub(crate) mod entry;
pub(crate) mod errors;
mod event_queue;
pub(crate) mod gauge;
pub(crate) mod hotplug;
pub(crate) mod identity;
mod link_wait;
mod long_copy;
pub(crate) mod mapping;
pub(crate) mod membership;
pub(crate) mod memory_access;
pub(crate) mod multicast;
mod pieces;
mod placed;
mod post_direct;
mod post_send_only;
mod program_memory;
mod pull;
pub(crate) mod qp_table;
pub(crate) mod queue_pair;
pub(crate) mod readings;
pub(crate) mod ring_wait;
mod send_only;
pub(crate) mod settle;
pub(crate) mod shared_receive_queue;
mod stage;
pub(crate) mod way;
pub(crate) mod xrc_domain;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use portolan_provider::Result;
use portolan_threads::biased;
use portolan_threads::lock::{Mutex, RwLock};

use crate::engine::MemoryTable;
use crate::io::config::{Limits, StackConfig};
use crate::io::host::device::DeviceCore;
use crate::io::host::entry::Entry;
use crate::io::host::gauge::Gauge;
use crate::io::host::multicast::MulticastGroups;
use crate::io::host::qp_table::QpTable;
use crate::io::host::queue_pair::QpCore;
use crate::io::host::readings::Readings;
use crate::io::net::counters::Monitor;
use crate::io::net::receive;
use crate::io::net::shm::links::Links;
use crate::io::net::transmit::Transmitter;
use crate::io::polling::clock::Clock;
use crate::io::polling::deadlines::Deadlines;
use crate::io::polling::noted::Noted;
use crate::io::polling::progress::Progress;
use portolan_port_sharing::PortGroup;
use portolan_wire::Qpn;

/// How long [`Host::refresh_interfaces`] waits for the progress thread.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the sockets and rings for this stack's queue pairs.
pub(crate) type Receiver = receive::Receiver<QpCore>;

/// The state that exists once per stack. See [`io`](crate::io) for the order of the locks.
pub(crate) struct Host {
    pub(crate) config: StackConfig,
    pub(crate) clock: Clock,
    pub(crate) entry: Arc<Entry>,
    pub(crate) monitor: Monitor,
    pub(crate) gauges: Gauges,
    pub(crate) group: PortGroup,
    pub(crate) transmitter: Transmitter,
    /// Links through memory to other processes of this host; `None` if they are turned off.
    pub(crate) links: Option<Links>,
    pub(crate) receiver: biased::Mutex<Receiver>,
    /// A queue pair was destroyed, and the receiver may still refer to it.
    pub(crate) recent_gone: AtomicBool,
    pub(crate) qps: QpTable<QpCore>,
    /// Locked for reading while packets are built and placed.
    pub(crate) memory: biased::RwLock<MemoryTable>,
    pub(crate) deadlines: Deadlines,
    /// Queue pairs that owe their peers an acknowledgement, or hold back the last packets of a stream.
    ///
    /// A poller gets arrived data at once, and the program's own answer is sent before the acknowledgement. So a
    /// polled queue pair delays its acknowledgement until its owner posts or polls again; the progress thread limits
    /// the delay. Likewise the last few packets of a stream wait, because they may form one datagram with those that
    /// are posted next.
    pub(crate) deferred_acks: Noted,
    /// When the first of them began to, nanoseconds.
    pub(crate) deferred_at_ns: AtomicU64,
    /// Until when a link is expected to be made, nanoseconds.
    pub(crate) link_wanted_until_ns: AtomicU64,
    /// Queue pairs that copy a long request, or respond to long reads, in turns.
    pub(crate) copying: Noted,
    /// Queue pairs that have asked their peers to copy.
    pub(crate) pulling: Mutex<Vec<Qpn>>,
    /// Queue pairs that received a packet before the connection manager established them. The progress thread
    /// notifies it, because a thread that receives packets holds locks that forbid the call.
    pub(crate) comm_est: Noted,
    pub(crate) multicast: MulticastGroups,
    pub(crate) progress: Progress,
    pub(crate) devices: RwLock<Vec<Arc<DeviceCore>>>,
    pub(crate) readings: Readings,
    /// The PSN of the next management datagram. QP1 ignores PSNs.
    pub(crate) gsi_psn: AtomicU32,
}

/// The number of objects of each kind.
#[derive(Debug)]
pub(crate) struct Gauges {
    pub(crate) pds: Arc<Gauge>,
    pub(crate) cqs: Arc<Gauge>,
    pub(crate) qps: Arc<Gauge>,
    pub(crate) ahs: Arc<Gauge>,
    pub(crate) mrs: Arc<Gauge>,
    pub(crate) mws: Arc<Gauge>,
    pub(crate) srqs: Arc<Gauge>,
}

impl Gauges {
    pub(crate) fn new(limits: &Limits) -> Self {
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

impl Host {
    /// The UDP port that peers use.
    pub(crate) fn port(&self) -> u16 {
        self.config.group.port
    }

    /// The device that has an address, and the address's slot in its GID table.
    ///
    /// A link-local address needs the interface index. If the index is 0, exactly one device must have the address.
    /// Any other address belongs to one device, whichever interface its packets arrive at.
    pub(crate) fn device_of(&self, ip: IpAddr, interface: u32) -> Option<(Arc<DeviceCore>, u32)> {
        let ip = ip.to_canonical();
        let devices = self.devices.read();
        let mut having = devices.iter().filter_map(|device| {
            let index = device.gid_index(ip)?;
            Some((Arc::clone(device), index))
        });
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        match (is_link_local, interface) {
            (false, _) => having.next(),
            (true, 0) => having.next().filter(|_| having.next().is_none()),
            (true, _) => having.find(|(device, _)| device.interface() == interface),
        }
    }
}

impl Host {
    /// Waits until the progress thread has read the machine's interfaces, or failed to. Other threads call it.
    ///
    /// # Errors
    /// `TimedOut` if the progress thread does not run for a second.
    pub(crate) fn refresh_interfaces(&self) -> Result<()> {
        let number = self.readings.ask();
        self.progress.reading_asked();
        self.readings.wait(number, REFRESH_TIMEOUT)
    }

    /// Notifies the progress thread if the current thread panics, so that the owners of the queue pairs that it has
    /// locked get an error.
    #[inline]
    pub(crate) fn watch_for_panics(&self) -> PanicWatch<'_> {
        PanicWatch(&self.progress)
    }
}

/// See [`Host::watch_for_panics`].
pub(crate) struct PanicWatch<'a>(&'a Progress);

impl Drop for PanicWatch<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panicked();
        }
    }
}

/// One line, because every verbs object contains this.
impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("port", &self.port())
            .field("block", &self.group.block())
            .finish_non_exhaustive()
    }
}

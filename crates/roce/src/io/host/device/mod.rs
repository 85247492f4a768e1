//! Devices as queue pairs see them. Each network interface with an address is a device.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use portolan_provider::address::gid_to_ip;
use portolan_provider::verbs::{AhAttr, AsyncEvent, Cqn, Instance, Mtu, Srqn};
use portolan_provider::{Error, Result, Step};
use portolan_threads::lock::{Mutex, RwLock};

use crate::engine::QpCounters;
use crate::io::host::async_events::AsyncEvents;
use crate::io::host::identity::{device_name, node_guid};
use crate::io::net::interfaces::Interface;
use crate::io::net::path::Path;

/// The one port of a software device.
pub(crate) const PORT: u8 = 1;
/// Slots of the GID table: an address vector's index is one byte.
pub(crate) const GID_TABLE_LEN: usize = 256;
/// A device. Its GID table is the interface's addresses.
#[derive(Debug)]
pub(crate) struct DeviceCore {
    name: String,
    interface: u32,
    instance: Instance,
    node_guid: u64,
    /// The largest path MTU, as IBTA's number.
    max_mtu: AtomicU8,
    active: AtomicBool,
    /// Whether the interface is gone.
    removed: AtomicBool,
    mac: Mutex<Option<[u8; 6]>>,
    /// An address keeps its slot while the device exists.
    gids: RwLock<Vec<Option<IpAddr>>>,
    /// Addresses of the interface for which the table has no room.
    left_out: RwLock<Vec<IpAddr>>,
    events: AsyncEvents,
    /// The sums over destroyed queue pairs.
    retired: Mutex<QpCounters>,
}

impl DeviceCore {
    /// Creates a device for an interface. Returns `None` if the interface's MTU leaves no room for the smallest
    /// packet. Its event queue holds `max_events` events.
    pub(crate) fn new(
        interface: &Interface,
        others: &[Arc<Self>],
        max_events: usize,
    ) -> Option<Arc<Self>> {
        // An existing device may have this name or GUID, if its interface was renamed or got another hardware
        // address.
        let is_name_taken = |name: &str| others.iter().any(|other| other.name == name);
        let is_guid_taken = |guid| others.iter().any(|other| other.node_guid == guid);
        let core = Self {
            name: device_name(interface, is_name_taken),
            interface: interface.index,
            instance: Instance::new(),
            node_guid: node_guid(interface, is_guid_taken),
            max_mtu: AtomicU8::new(Mtu::for_interface(interface.mtu)? as u8),
            active: AtomicBool::new(interface.running),
            removed: AtomicBool::new(false),
            mac: Mutex::new(interface.mac),
            gids: RwLock::default(),
            left_out: RwLock::default(),
            events: AsyncEvents::new(max_events),
            retired: Mutex::default(),
        };
        core.update(interface);
        Some(Arc::new(core))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn instance(&self) -> Instance {
        self.instance
    }

    pub(crate) fn node_guid(&self) -> u64 {
        self.node_guid
    }

    /// Whether the interface is running.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    pub(crate) fn addresses(&self) -> Vec<(usize, IpAddr)> {
        let gids = self.gids.read();
        let used = gids.iter().enumerate();
        used.filter_map(|(index, ip)| Some((index, (*ip)?)))
            .collect()
    }

    pub(crate) fn events(&self) -> &AsyncEvents {
        &self.events
    }

    /// The counters of destroyed queue pairs.
    pub(crate) fn retired(&self) -> QpCounters {
        *self.retired.lock()
    }

    /// The index of the interface.
    pub(crate) fn interface(&self) -> u32 {
        self.interface
    }

    pub(crate) fn max_mtu(&self) -> Mtu {
        let number = self.max_mtu.load(Ordering::Relaxed);
        Mtu::from_number(number).unwrap_or(Mtu::Mtu256)
    }

    pub(crate) fn check_port(&self, step: Step, port_num: u8) -> Result<()> {
        match port_num {
            PORT => Ok(()),
            _ => Err(Error::invalid(step, "port_num", PORT, port_num)),
        }
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::SeqCst)
    }

    /// Marks the interface as gone, and removes its addresses.
    pub(crate) fn mark_removed(&self) {
        self.removed.store(true, Ordering::SeqCst);
        self.active.store(false, Ordering::Relaxed);
        let mut gids = self.gids.write();
        gids.clear();
        self.left_out.write().clear();
    }

    /// Copies the state of the interface. Returns what changed.
    pub(crate) fn update(&self, interface: &Interface) -> Updated {
        // An MTU too small for any packet becomes the smallest, as in rdma_rxe. No packet fits the interface then.
        let mtu = Mtu::for_interface(interface.mtu).unwrap_or(Mtu::Mtu256);
        self.max_mtu.store(mtu as u8, Ordering::Relaxed);
        let was_active = self.active.swap(interface.running, Ordering::Relaxed);
        let mut mac = self.mac.lock();
        let old_mac = std::mem::replace(&mut *mac, interface.mac);
        Updated {
            gids: self.update_gids(interface),
            active: (was_active != interface.running).then_some(interface.running),
            hardware_address: old_mac != interface.mac,
        }
    }

    /// Updates the GID table. Existing addresses keep their slots; new ones get the first free slots.
    ///
    /// Returns whether an address was added or removed.
    fn update_gids(&self, interface: &Interface) -> bool {
        let mut changed = false;
        let mut left_out = Vec::new();
        let mut gids = self.gids.write();
        for slot in gids.iter_mut() {
            let gone = slot.take_if(|ip| !interface.addresses.contains(ip));
            changed |= gone.is_some();
        }
        for ip in &interface.addresses {
            if gids.contains(&Some(*ip)) {
                continue;
            }
            if let Some(free) = gids.iter_mut().find(|slot| slot.is_none()) {
                *free = Some(*ip);
            } else if gids.len() < GID_TABLE_LEN {
                gids.push(Some(*ip));
            } else {
                tracing::warn!(device = self.name, %ip, "the GID table is full: the address has no slot");
                left_out.push(*ip);
                continue;
            }
            changed = true;
        }
        *self.left_out.write() = left_out;
        changed
    }

    /// Whether the interface has an address for which the GID table has no room.
    pub(crate) fn leaves_out(&self, ip: IpAddr) -> bool {
        self.left_out.read().contains(&ip)
    }

    pub(crate) fn gid_index(&self, ip: IpAddr) -> Option<u32> {
        let gids = self.gids.read();
        gids.iter()
            .position(|slot| *slot == Some(ip))
            .map(|index| index as u32)
    }

    /// The path to a host, from an address vector and a UDP port.
    pub(crate) fn path(&self, step: Step, ah: &AhAttr, port: u16) -> Result<Path> {
        let path = self.path_to_any(step, ah, port)?;
        if path.remote.ip().is_multicast() {
            let expected = "a unicast address";
            return Err(Error::invalid(step, "ah_attr.dgid", expected, ah.dgid));
        }
        Ok(path)
    }

    /// The path to a host or multicast group, from an address vector and a UDP port.
    pub(crate) fn path_to_any(&self, step: Step, ah: &AhAttr, port: u16) -> Result<Path> {
        let slot = {
            let gids = self.gids.read();
            gids.get(usize::from(ah.sgid_index)).copied().flatten()
        };
        let local = slot.ok_or_else(|| {
            let expected = "a used slot of the GID table";
            Error::invalid(step, "ah_attr.sgid_index", expected, ah.sgid_index)
        })?;
        let remote = match gid_to_ip(ah.dgid) {
            IpAddr::V6(ip) if ip.is_unicast_link_local() || ip.is_multicast() => {
                SocketAddrV6::new(ip, port, 0, self.interface).into()
            }
            ip => SocketAddr::new(ip, port),
        };
        let (traffic_class, hop_limit) = (ah.traffic_class, ah.hop_limit);
        let needs_interface = remote.ip().is_multicast()
            || matches!(remote, SocketAddr::V6(v6) if v6.scope_id() != 0);
        let path = Path {
            local,
            remote,
            interface: if needs_interface { self.interface } else { 0 },
            traffic_class,
            hop_limit,
        };
        if remote.ip().is_unspecified() {
            let expected = "the address of a host or group";
            return Err(Error::invalid(step, "ah_attr.dgid", expected, ah.dgid));
        }
        if path.version().is_none() {
            let expected = format_args!("an address of the same IP version as {local}");
            return Err(Error::invalid(step, "ah_attr.dgid", expected, ah.dgid));
        }
        Ok(path)
    }

    /// Queues an event for the device's owner.
    ///
    /// Returns false if the queue is full. The event is then lost, and counted.
    pub(crate) fn push_async_event(&self, event: AsyncEvent) -> bool {
        self.events.push(event)
    }

    /// Removes the events of a destroyed queue pair.
    pub(crate) fn forget(&self, qpn: portolan_wire::Qpn) {
        self.events.forget(|event| match event {
            AsyncEvent::QpFatal(of)
            | AsyncEvent::QpReqErr(of)
            | AsyncEvent::QpAccessErr(of)
            | AsyncEvent::CommEst(of)
            | AsyncEvent::SqDrained(of)
            | AsyncEvent::QpLastWqeReached(of) => *of == qpn,
            _ => false,
        });
    }

    /// Removes the events of a destroyed completion queue.
    pub(crate) fn forget_cq(&self, number: Cqn) {
        let gone = AsyncEvent::CqErr(number);
        self.events.forget(|event| *event == gone);
    }

    /// Removes the events of a destroyed shared receive queue.
    pub(crate) fn forget_srq(&self, number: Srqn) {
        let gone = AsyncEvent::SrqLimitReached(number);
        self.events.forget(|event| *event == gone);
    }

    /// Adds the counters of a destroyed queue pair.
    pub(crate) fn retire(&self, counters: &QpCounters) {
        let mut retired = self.retired.lock();
        retired.add(counters);
    }
}

/// What changed in a device when it was updated from its interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Updated {
    /// Addresses were added or removed.
    pub(crate) gids: bool,
    /// The port's new state, if it changed.
    pub(crate) active: Option<bool>,
    /// The hardware address changed.
    pub(crate) hardware_address: bool,
}

impl Drop for DeviceCore {
    fn drop(&mut self) {
        tracing::debug!(device = self.name, "device gone");
    }
}

#[cfg(test)]
mod tests;

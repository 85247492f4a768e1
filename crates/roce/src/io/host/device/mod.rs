//! Devices as queue pairs know them: one per network interface that has an address.

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
/// Slots of the GID table: as many as an address vector's index can name.
pub(crate) const GID_TABLE_LEN: usize = 256;
/// A device. Its GID table is the interface's addresses.
#[derive(Debug)]
pub(crate) struct DeviceCore {
    name: String,
    interface: u32,
    instance: Instance,
    node_guid: u64,
    /// The number of the largest path MTU.
    max_mtu: AtomicU8,
    active: AtomicBool,
    /// Its interface is gone.
    removed: AtomicBool,
    /// The interface's hardware address.
    mac: Mutex<Option<[u8; 6]>>,
    /// A slot keeps its number for as long as the device lives.
    gids: RwLock<Vec<Option<IpAddr>>>,
    events: AsyncEvents,
    /// The sums over queue pairs that are gone.
    retired: Mutex<QpCounters>,
}

impl DeviceCore {
    /// A device for an interface beside `others`, unless its MTU leaves no room for the smallest
    /// packet. `max_events` of its events may wait.
    pub(crate) fn new(
        interface: &Interface,
        others: &[Arc<Self>],
        max_events: usize,
    ) -> Option<Arc<Self>> {
        // Both may be those of an interface that was renamed, or given another hardware address,
        // and is still there.
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

    /// Whether its interface runs.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Its addresses with their slots.
    pub(crate) fn addresses(&self) -> Vec<(usize, IpAddr)> {
        let gids = self.gids.read();
        let used = gids.iter().enumerate();
        used.filter_map(|(index, ip)| Some((index, (*ip)?)))
            .collect()
    }

    pub(crate) fn events(&self) -> &AsyncEvents {
        &self.events
    }

    /// What its queue pairs that are gone have counted.
    pub(crate) fn retired(&self) -> QpCounters {
        *self.retired.lock()
    }

    /// Number of its interface.
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

    /// Whether the interface is gone.
    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::SeqCst)
    }

    /// The interface is gone, and its addresses with it.
    pub(crate) fn mark_removed(&self) {
        self.removed.store(true, Ordering::SeqCst);
        self.active.store(false, Ordering::Relaxed);
        let mut gids = self.gids.write();
        gids.clear();
    }

    /// Takes over the state of the interface; returns the changes.
    pub(crate) fn update(&self, interface: &Interface) -> Updated {
        // An MTU too small for any packet is the smallest here, as rdma_rxe has it: nothing arrives.
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

    /// Addresses that stay keep their slots; new ones take the first free slots. Whether any came or
    /// went.
    fn update_gids(&self, interface: &Interface) -> bool {
        let mut changed = false;
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
                tracing::warn!(device = self.name, %ip, "GID table full: address left out");
                continue;
            }
            changed = true;
        }
        changed
    }

    /// The slot of an address.
    pub(crate) fn gid_index(&self, ip: IpAddr) -> Option<u32> {
        let gids = self.gids.read();
        gids.iter()
            .position(|slot| *slot == Some(ip))
            .map(|index| index as u32)
    }

    /// The path to a host that an address vector describes, to UDP port `port`.
    pub(crate) fn path(&self, step: Step, ah: &AhAttr, port: u16) -> Result<Path> {
        let path = self.path_to_any(step, ah, port)?;
        if path.remote.ip().is_multicast() {
            let expected = "a unicast address";
            return Err(Error::invalid(step, "ah_attr.dgid", expected, ah.dgid));
        }
        Ok(path)
    }

    /// The path to a host or group that an address vector describes, to UDP port `port`.
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

    /// Queues an event for the device's owner. False if events are not taken and as many wait as
    /// may: then the event is lost, and counted.
    pub(crate) fn push_async_event(&self, event: AsyncEvent) -> bool {
        self.events.push(event)
    }

    /// Forgets the events of a queue pair that is gone.
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

    /// Forgets the events of a completion queue that is gone.
    pub(crate) fn forget_cq(&self, number: Cqn) {
        let gone = AsyncEvent::CqErr(number);
        self.events.forget(|event| *event == gone);
    }

    /// Forgets the events of a shared receive queue that is gone.
    pub(crate) fn forget_srq(&self, number: Srqn) {
        let gone = AsyncEvent::SrqLimitReached(number);
        self.events.forget(|event| *event == gone);
    }

    /// Keeps what a queue pair that is gone has counted.
    pub(crate) fn retire(&self, counters: &QpCounters) {
        let mut retired = self.retired.lock();
        retired.add(counters);
    }
}

/// What a device took over of its interface that is new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Updated {
    /// Addresses came or went.
    pub(crate) gids: bool,
    /// Whether the port is active now, if it was otherwise.
    pub(crate) active: Option<bool>,
    /// The hardware address is another.
    pub(crate) hardware_address: bool,
}

impl Drop for DeviceCore {
    fn drop(&mut self) {
        tracing::debug!(device = self.name, "device gone");
    }
}

#[cfg(test)]
mod tests;

//! Software devices: one per network interface that has an address.

use std::any::Any;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use portolan_provider::address::{gid_to_ip, ip_to_gid};
use portolan_provider::traits::{CompChannel, Cq, Device, Pd};
use portolan_provider::verbs::{
    AhAttr, AsyncEvent, AtomicCap, Counter, Cqn, DeviceAttr, GidEntry, LinkLayer, Mtu, PortAttr,
    Srqn,
};
use portolan_provider::{Cause, Error, Result, Step};

use super::async_events::AsyncEvents;
use super::async_listener::AsyncListener;
use super::channel::SoftChannel;
use super::cq::SoftCq;
use super::hotplug::removed;
use super::interfaces::Interface;
use super::path::Path;
use super::pd::SoftPd;
use super::shared::Shared;
use crate::engine::QpCounters;

mod identity;

pub(super) use identity::{device_name, node_guid};

/// The one port of a software device.
pub(super) const PORT: u8 = 1;
/// Slots of the GID table: as many as an address vector's index can name.
pub(super) const GID_TABLE_LEN: usize = 256;
/// P_Keys: the default one.
const PKEY_TABLE_LEN: u16 = 1;
/// Linux's rxe reports this for itself; the CM adds it to its acknowledgement timeouts.
const LOCAL_CA_ACK_DELAY: u8 = 15;

/// A RoCEv2 device over a network interface: `sw_eth0` over `eth0`. Its GID table is the interface's
/// addresses.
#[derive(Debug)]
pub struct SoftDevice {
    core: Arc<DeviceCore>,
    shared: Arc<Shared>,
}

/// What a device is, without what it works with: queue pairs hold this.
#[derive(Debug)]
pub(super) struct DeviceCore {
    name: String,
    interface: u32,
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

impl SoftDevice {
    /// A device for an interface beside `others`, unless its MTU leaves no room for the smallest
    /// packet.
    pub(super) fn new(
        interface: &Interface,
        others: &[Arc<Self>],
        shared: Arc<Shared>,
    ) -> Option<Self> {
        // Both may be those of an interface that was renamed, or given another hardware address,
        // and is still there.
        let is_name_taken = |name: &str| others.iter().any(|other| other.core.name == name);
        let is_guid_taken = |guid| others.iter().any(|other| other.core.node_guid == guid);
        let core = DeviceCore {
            name: device_name(interface, is_name_taken),
            interface: interface.index,
            node_guid: node_guid(interface, is_guid_taken),
            max_mtu: AtomicU8::new(Mtu::for_interface(interface.mtu)? as u8),
            active: AtomicBool::new(interface.running),
            removed: AtomicBool::new(false),
            mac: Mutex::new(interface.mac),
            gids: RwLock::default(),
            events: AsyncEvents::new(shared.config.limits.max_async_events),
            retired: Mutex::default(),
        };
        core.update(interface);
        Some(Self {
            core: Arc::new(core),
            shared,
        })
    }

    pub(super) fn core(&self) -> &Arc<DeviceCore> {
        &self.core
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The largest path MTU of its interface.
    pub fn mtu(&self) -> Mtu {
        self.core.max_mtu()
    }

    /// Has a listener of its own for the events that `wants` picks, which nobody else takes then. `wants`
    /// is called with locks held: it may lock nothing but a leaf, and call nothing of this crate.
    ///
    /// # Errors
    /// `Os` if the process has no descriptor left; `Unsupported` in a forked child.
    pub fn listen_async(
        &self,
        wants: impl Fn(&AsyncEvent) -> bool + Send + Sync + 'static,
    ) -> Result<Arc<AsyncListener>> {
        self.shared.fork.check(Step::Query)?;
        let limit = self.shared.config.limits.max_async_events;
        let listener = AsyncListener::new(limit, Box::new(wants), Arc::clone(&self.shared.fork));
        let listener = Arc::new(listener.map_err(|error| self.error(error))?);
        self.core.events.add_listener(&listener);
        Ok(listener)
    }

    /// Refuses what needs the interface when that is gone.
    fn check_present(&self, step: Step) -> Result<()> {
        match self.core.is_removed() {
            true => Err(removed(step, &self.core)),
            false => Ok(()),
        }
    }

    fn check_port(&self, step: Step, port_num: u8) -> Result<()> {
        let checked = self.core.check_port(step, port_num);
        checked.map_err(|error| self.error(error))
    }

    fn error(&self, error: Error) -> Error {
        error.on(&self.core.name, None)
    }
}

impl Device for SoftDevice {
    fn name(&self) -> &str {
        &self.core.name
    }

    /// The interface's index: Linux does not use it again for another.
    fn index(&self) -> u32 {
        self.core.interface
    }

    fn interface_index(&self) -> u32 {
        self.core.interface
    }

    fn attr(&self) -> Result<DeviceAttr> {
        let (limits, qp) = (&self.shared.config.limits, &self.shared.config.qp_limits);
        Ok(DeviceAttr {
            node_guid: self.core.node_guid,
            max_qp: limits.max_qp,
            max_qp_wr: qp.max_wr,
            max_sge: qp.max_sge,
            max_cq: limits.max_cq,
            max_cqe: limits.max_cqe,
            max_mr: limits.max_mr,
            max_mr_size: limits.max_mr_size,
            max_pd: limits.max_pd,
            max_mw: limits.max_mw,
            max_ah: limits.max_ah,
            max_srq: limits.max_srq,
            max_srq_wr: limits.max_srq_wr,
            max_mcast_grp: limits.max_mcast_grp,
            max_mcast_qp_attach: limits.max_mcast_qp_attach,
            atomic_cap: AtomicCap::Global,
            max_qp_rd_atom: qp.max_dest_rd_atomic,
            max_qp_init_rd_atom: qp.max_rd_atomic,
            max_inline_data: qp.max_inline_data,
            phys_port_cnt: PORT,
            local_ca_ack_delay: LOCAL_CA_ACK_DELAY,
        })
    }

    fn port_attr(&self, port_num: u8) -> Result<PortAttr> {
        self.check_port(Step::Query, port_num)?;
        Ok(PortAttr {
            active: self.core.active.load(Ordering::Relaxed),
            max_mtu: Mtu::Mtu4096,
            active_mtu: self.core.max_mtu(),
            gid_tbl_len: GID_TABLE_LEN as u32,
            pkey_tbl_len: PKEY_TABLE_LEN,
            link_layer: LinkLayer::Ethernet,
        })
    }

    fn gids(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        self.check_port(Step::Query, port_num)?;
        let gids = self
            .core
            .gids
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let used = gids
            .iter()
            .enumerate()
            .filter_map(|(index, ip)| Some((index, (*ip)?)));
        let entry = |(index, ip)| GidEntry {
            gid: ip_to_gid(ip),
            index: index as u32,
            port_num,
            interface_index: self.core.interface,
        };
        Ok(used.map(entry).collect())
    }

    fn alloc_pd(&self) -> Result<Arc<dyn Pd>> {
        self.shared.fork.check(Step::AllocPd)?;
        self.check_present(Step::AllocPd)?;
        Ok(Arc::new(
            SoftPd::new(self).map_err(|error| self.error(error))?,
        ))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>> {
        self.shared.fork.check(Step::CreateCq)?;
        self.check_present(Step::CreateCq)?;
        Ok(Arc::new(
            SoftChannel::new(Arc::clone(&self.shared.fork)).map_err(|error| self.error(error))?,
        ))
    }

    fn create_cq(
        &self,
        cqe: u32,
        channel: Option<&Arc<dyn CompChannel>>,
        cookie: u64,
    ) -> Result<Arc<dyn Cq>> {
        self.shared.fork.check(Step::CreateCq)?;
        self.check_present(Step::CreateCq)?;
        let cq = SoftCq::new(self, cqe, channel, cookie).map_err(|error| self.error(error))?;
        Ok(Arc::new(cq))
    }

    fn take_async_event(&self) -> Result<Option<AsyncEvent>> {
        // A forked child would take its parent's.
        self.shared.fork.check(Step::Query)?;
        Ok(self.core.events.take())
    }

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        self.shared.fork.check(Step::Query)?;
        self.core.events.fd().map_err(|error| self.error(error))
    }

    fn counters(&self) -> Result<Vec<Counter>> {
        self.shared.fork.check(Step::Query)?;
        let mut sum = *self
            .core
            .retired
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for qp in self.shared.qps.all() {
            if Arc::ptr_eq(&qp.device, &self.core) {
                let state = qp.lock();
                // One that was destroyed meanwhile is among the retired, now or the next time.
                if !state.closed {
                    sum.add(state.engine.counters());
                }
            }
        }
        let mut counters = sum.named();
        counters.push(Counter {
            name: "async_overflows".into(),
            value: self.core.events.lost(),
        });
        Ok(counters)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl DeviceCore {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Number of its interface.
    pub(super) fn interface(&self) -> u32 {
        self.interface
    }

    pub(super) fn max_mtu(&self) -> Mtu {
        let number = self.max_mtu.load(Ordering::Relaxed);
        Mtu::from_number(number).unwrap_or(Mtu::Mtu256)
    }

    pub(super) fn check_port(&self, step: Step, port_num: u8) -> Result<()> {
        match port_num {
            PORT => Ok(()),
            _ => Err(Error::invalid(step, "port_num", PORT, port_num)),
        }
    }

    /// Whether the interface is gone.
    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::SeqCst)
    }

    /// The interface is gone, and its addresses with it.
    pub(super) fn mark_removed(&self) {
        self.removed.store(true, Ordering::SeqCst);
        self.active.store(false, Ordering::Relaxed);
        let mut gids = self.gids.write().unwrap_or_else(PoisonError::into_inner);
        gids.clear();
    }

    /// Takes over the state of the interface; what is new of it.
    pub(super) fn update(&self, interface: &Interface) -> Updated {
        // An MTU too small for any packet is the smallest here, as rdma_rxe has it: nothing arrives.
        let mtu = Mtu::for_interface(interface.mtu).unwrap_or(Mtu::Mtu256);
        self.max_mtu.store(mtu as u8, Ordering::Relaxed);
        let was_active = self.active.swap(interface.running, Ordering::Relaxed);
        let mut mac = self.mac.lock().unwrap_or_else(PoisonError::into_inner);
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
        let mut gids = self.gids.write().unwrap_or_else(PoisonError::into_inner);
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
    pub(super) fn gid_index(&self, ip: IpAddr) -> Option<u32> {
        let gids = self.gids.read().unwrap_or_else(PoisonError::into_inner);
        gids.iter()
            .position(|slot| *slot == Some(ip))
            .map(|index| index as u32)
    }

    /// The path to a host that an address vector describes, to UDP port `port`.
    pub(super) fn path(&self, step: Step, ah: &AhAttr, port: u16) -> Result<Path> {
        let path = self.path_to_any(step, ah, port)?;
        if path.remote.ip().is_multicast() {
            let expected = "a unicast address";
            return Err(Error::invalid(step, "ah_attr.dgid", expected, ah.dgid));
        }
        Ok(path)
    }

    /// The path to a host or group that an address vector describes, to UDP port `port`.
    pub(super) fn path_to_any(&self, step: Step, ah: &AhAttr, port: u16) -> Result<Path> {
        let slot = {
            let gids = self.gids.read().unwrap_or_else(PoisonError::into_inner);
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

    /// Tells the owner of the device something. False if nobody takes its events and as many wait as
    /// may: then the event is lost, and counted.
    pub(super) fn push_async_event(&self, event: AsyncEvent) -> bool {
        self.events.push(event)
    }

    /// Forgets the events of a queue pair that is gone.
    pub(super) fn forget(&self, qpn: portolan_wire::Qpn) {
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
    pub(super) fn forget_cq(&self, number: Cqn) {
        let gone = AsyncEvent::CqErr(number);
        self.events.forget(|event| *event == gone);
    }

    /// Forgets the events of a shared receive queue that is gone.
    pub(super) fn forget_srq(&self, number: Srqn) {
        let gone = AsyncEvent::SrqLimitReached(number);
        self.events.forget(|event| *event == gone);
    }

    /// Keeps what a queue pair that is gone has counted.
    pub(super) fn retire(&self, counters: &QpCounters) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.add(counters);
    }
}

/// What a device took over of its interface that is new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Updated {
    /// Addresses came or went.
    pub(super) gids: bool,
    /// Whether the port is active now, if it was otherwise.
    pub(super) active: Option<bool>,
    /// The hardware address is another.
    pub(super) hardware_address: bool,
}

impl Drop for SoftDevice {
    fn drop(&mut self) {
        tracing::debug!(device = self.core.name, "device gone");
    }
}

/// The error for an object of another device or stack.
pub(super) fn foreign(step: Step, what: &'static str) -> Error {
    Error::new(step, Cause::NoSuchObject(what))
}

#[cfg(test)]
mod tests;

//! An open device. Every object created from it keeps it alive.

use portolan_threads::lock::Mutex;
use std::cell::LazyCell;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use portolan_abi_layout::{self as abi, ContextOps, Verbs};
use portolan_provider::address::ip_to_gid;
use portolan_provider::verbs::{AtomicCap, DeviceAttr, GidEntry, Instance};
use portolan_provider::{Cause, Error, Result, Step};
use rustix::fs::OFlags;

use super::async_events::AsyncEvents;
use super::outcome::{check, failed, made};
use super::windows::{Regions, Windows};
use crate::error::refused;
use crate::interfaces::Interfaces;
use crate::sys::fork::ForkGuard;

/// Maximum length of a GID table to read; the largest of today's devices have 1024 entries.
const GIDS_MAX: usize = 1 << 16;

/// A device of the kernel, closed when nothing uses it.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    pub(super) library: Arc<Verbs>,
    pub(super) context: NonNull<abi::Context>,
    name: String,
    index: u32,
    instance: Instance,
    /// Values that do not change, cached on first use: the interface, the limits and identity, and the total length of
    /// the GID tables of all ports. Connections only need the limits.
    interface_index: OnceLock<u32>,
    attr: OnceLock<DeviceAttr>,
    gid_slots: OnceLock<usize>,
    /// Windows and regions by their keys, which a provider uses to bind windows. Lock in this order.
    pub(super) windows: Mutex<Windows>,
    pub(super) regions: Mutex<Regions>,
    /// A leaf: nothing else is locked under it.
    pub(super) async_events: Mutex<AsyncEvents>,
    fork: ForkGuard,
}

// SAFETY: libibverbs may be called by any thread; the tables are behind locks.
unsafe impl Send for OpenDevice {}
// SAFETY: as above.
unsafe impl Sync for OpenDevice {}

/// An entry of a GID table, with data that a provider does not report.
struct Slot {
    entry: GidEntry,
    gid_type: u32,
}

impl OpenDevice {
    /// Takes over an open context.
    pub(super) fn of_context(
        library: &Arc<Verbs>,
        fork: ForkGuard,
        context: *mut abi::Context,
        name: String,
        index: u32,
    ) -> Result<Arc<Self>> {
        let device = Self {
            library: library.clone(),
            context: made(Step::OpenDevice, "ibv_open_device", context)?,
            name,
            index,
            instance: Instance::new(),
            interface_index: OnceLock::new(),
            attr: OnceLock::new(),
            gid_slots: OnceLock::new(),
            windows: Mutex::default(),
            regions: Mutex::default(),
            async_events: Mutex::default(),
            fork,
        };
        set_nonblocking(device.async_fd())?;
        Ok(Arc::new(device))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn instance(&self) -> Instance {
        self.instance
    }

    /// Functions of the context that need no call into the library. A driver omits those that its hardware lacks.
    pub(super) fn ops(&self) -> &ContextOps {
        // SAFETY: the context is open as long as `self` lives, and its functions do not change.
        unsafe { &(*self.context.as_ptr()).ops }
    }

    /// Readable while an asynchronous event waits.
    pub(super) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context, which is open as long as `self` lives.
        unsafe { BorrowedFd::borrow_raw((*self.context.as_ptr()).async_fd) }
    }

    /// The GID table entry that serves a local address; prefers RoCEv2.
    pub(crate) fn slot_of(&self, ip: IpAddr) -> Result<Option<u32>> {
        Ok(self.slots_of(ip)?.first().map(|entry| entry.index))
    }

    /// The GID table entries that serve a local address, RoCEv2 first.
    pub(super) fn slots_of(&self, ip: IpAddr) -> Result<Vec<GidEntry>> {
        let gid = ip_to_gid(ip);
        let interfaces = LazyCell::new(Interfaces::now);
        let mut slots = self.slots()?;
        slots.retain_mut(|slot| {
            if !self.is_by_hardware(slot) {
                return slot.entry.gid == gid;
            }
            let index = interfaces.index_with(slot.entry.gid, ip);
            slot.entry.interface_index = index.unwrap_or(slot.entry.interface_index);
            index.is_some()
        });
        let mut found = slots;
        found.sort_by_key(|slot| slot.gid_type != abi::GID_TYPE_ROCE_V2);
        Ok(found.into_iter().map(|slot| slot.entry).collect())
    }

    /// Whether its transport is iWARP.
    pub(super) fn is_iwarp(&self) -> bool {
        // SAFETY: the context is open as long as `self` lives, and its device is the one that the library opened.
        unsafe { (*(*self.context.as_ptr()).device).transport_type == abi::TRANSPORT_IWARP }
    }

    /// Whether the GID follows from hardware, on InfiniBand and iWARP, and contains no IP address.
    fn is_by_hardware(&self, slot: &Slot) -> bool {
        // Older kernels report another type for iWARP.
        slot.gid_type == abi::GID_TYPE_IB || self.is_iwarp()
    }

    /// The GID tables of all ports.
    pub(super) fn gids(&self) -> Result<impl Iterator<Item = GidEntry>> {
        Ok(self.slots()?.into_iter().map(|slot| slot.entry))
    }

    fn slots(&self) -> Result<Vec<Slot>> {
        self.check(Step::Query)?;
        let mut entries = vec![abi::GidEntry::zeroed(); self.gid_slots()?.min(GIDS_MAX)];
        // SAFETY: the array has as many entries of this size as passed.
        let count = unsafe {
            (self.library.query_gid_table)(
                self.context.as_ptr(),
                entries.as_mut_ptr(),
                entries.len(),
                0,
                size_of::<abi::GidEntry>(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            // Negative: an errno.
            let code = i32::try_from(-count).unwrap_or(-1);
            return Err(self.explain(failed(Step::Query, "ibv_query_gid_table", code)));
        };
        entries.truncate(count);
        let mut slots: Vec<_> = entries.iter().map(Slot::of).collect();
        // The kernel does not report the interfaces of InfiniBand ports, nor, if it is old, those of iWARP ports.
        let interfaces = LazyCell::new(Interfaces::now);
        for slot in &mut slots {
            if slot.entry.interface_index != 0 || !self.is_by_hardware(slot) {
                continue;
            }
            slot.entry.interface_index = interfaces.index_of(slot.entry.gid).unwrap_or(0);
        }
        Ok(slots)
    }

    fn gid_slots(&self) -> Result<usize> {
        if let Some(slots) = self.gid_slots.get() {
            return Ok(*slots);
        }
        let mut slots = 0;
        for port_num in 1..=self.attr()?.phys_port_cnt {
            let of_port = self.port_attr(port_num)?.gid_tbl_len;
            slots += usize::try_from(of_port).unwrap_or(0);
        }
        Ok(*self.gid_slots.get_or_init(|| slots))
    }

    /// Its limits and identity.
    pub(super) fn attr(&self) -> Result<DeviceAttr> {
        self.check(Step::Query)?;
        if let Some(attr) = self.attr.get() {
            return Ok(*attr);
        }
        let attr = device_attr(&self.raw_attr()?);
        Ok(*self.attr.get_or_init(|| attr))
    }

    fn raw_attr(&self) -> Result<abi::DeviceAttr> {
        self.check(Step::Query)?;
        let mut attr = abi::DeviceAttr::zeroed();
        // SAFETY: the context is open, and the library fills in the structure.
        let code = unsafe { (self.library.query_device)(self.context.as_ptr(), &mut attr) };
        check(Step::Query, "ibv_query_device", code).map_err(|error| self.explain(error))?;
        Ok(attr)
    }

    /// A port's attributes; fields that the library does not know are zero.
    pub(super) fn port_attr(&self, port_num: u8) -> Result<abi::PortAttr> {
        self.check(Step::Query)?;
        let mut attr = abi::PortAttr::zeroed();
        let context = self.context.as_ptr();
        // SAFETY: the context is open, and the library fills in the fields that it knows.
        let code = unsafe { (self.library.query_port)(context, port_num, &mut attr) };
        check(Step::Query, "ibv_query_port", code).map_err(|error| self.explain(error))?;
        Ok(attr)
    }

    /// The network interface of its first port; 0 if unknown.
    pub(super) fn interface_index(&self) -> u32 {
        if let Some(known) = self.interface_index.get() {
            return *known;
        }
        let first = self.gids().ok().and_then(|mut gids| gids.next());
        first.map_or(0, |gid| {
            *self.interface_index.get_or_init(|| gid.interface_index)
        })
    }

    /// The result of a verb that destroys an object without its own memory. The kernel destroys the objects of a
    /// removed device itself, so a failure is then ignored. A removed device is recognized because querying its
    /// attributes also fails.
    ///
    /// Not for regions and windows: the kernel refuses every verb before it destroys the objects, and until then the
    /// device may still write to memory. The kernel does not report when that is over.
    pub(super) fn ended(&self, step: Step, verb: &'static str, code: i32) -> Result<()> {
        let ended = check(step, verb, code).map_err(|error| self.explain(error));
        match ended {
            Err(error) if is_removal(&error) && self.raw_attr().is_err_and(|e| is_removal(&e)) => {
                tracing::debug!(
                    device = self.name,
                    verb,
                    "destroyed by the device's removal"
                );
                Ok(())
            }
            ended => ended,
        }
    }

    pub(super) fn explain(&self, error: Error) -> Error {
        error.on(&self.name, None)
    }

    /// Fails in a forked child, which only has copies of its parent's objects.
    #[inline]
    pub(super) fn check(&self, step: Step) -> Result<()> {
        self.fork.check(step)
    }

    /// Whether this process opened the device, so that it must close it and its objects.
    pub(super) fn is_own(&self) -> bool {
        self.fork.is_owner()
    }
}

impl Slot {
    fn of(raw: &abi::GidEntry) -> Self {
        let entry = GidEntry {
            gid: raw.gid.into(),
            index: raw.gid_index,
            port_num: u8::try_from(raw.port_num).unwrap_or(0),
            interface_index: raw.ndev_ifindex,
        };
        Self {
            entry,
            gid_type: raw.gid_type,
        }
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        if !self.is_own() {
            return;
        }
        // SAFETY: no object created from it exists, because each keeps it alive.
        let code = unsafe { (self.library.close_device)(self.context.as_ptr()) };
        if code != 0 {
            tracing::warn!(device = self.name, code, "not closed");
        }
    }
}

fn device_attr(raw: &abi::DeviceAttr) -> DeviceAttr {
    // Limits are not negative, but some exceed the provider's types.
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    let small = |value: i32| u8::try_from(value.max(0)).unwrap_or(u8::MAX);
    DeviceAttr {
        node_guid: u64::from_be(raw.node_guid),
        max_qp: count(raw.max_qp),
        max_qp_wr: count(raw.max_qp_wr),
        max_sge: count(raw.max_sge),
        max_cq: count(raw.max_cq),
        max_cqe: count(raw.max_cqe),
        max_mr: count(raw.max_mr),
        max_mr_size: raw.max_mr_size,
        max_pd: count(raw.max_pd),
        max_mw: count(raw.max_mw),
        max_ah: count(raw.max_ah),
        max_srq: count(raw.max_srq),
        max_srq_wr: count(raw.max_srq_wr),
        max_mcast_grp: count(raw.max_mcast_grp),
        max_mcast_qp_attach: count(raw.max_mcast_qp_attach),
        atomic_cap: match raw.atomic_cap {
            0 => AtomicCap::None,
            1 => AtomicCap::Hca,
            _ => AtomicCap::Global,
        },
        max_qp_rd_atom: small(raw.max_qp_rd_atom),
        max_qp_init_rd_atom: small(raw.max_qp_init_rd_atom),
        // libibverbs reports it for each queue pair after creation.
        max_inline_data: 0,
        phys_port_cnt: raw.phys_port_cnt,
        local_ca_ack_delay: raw.local_ca_ack_delay,
    }
}

fn is_removal(error: &Error) -> bool {
    matches!(error.cause, Cause::DeviceRemoved)
}

pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    let set = rustix::fs::fcntl_getfl(fd)
        .and_then(|flags| rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK));
    set.map_err(|errno| refused(Step::OpenDevice, "fcntl", errno))
}

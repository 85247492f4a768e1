//! An open device.

use std::any::Any;
use std::borrow::Cow;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use portolan_provider::address::ip_to_gid;
use portolan_provider::traits::{CompChannel, Cq, Device, Pd};
use portolan_provider::verbs::{
    AsyncEvent, AtomicCap, Counter, Cqn, DeviceAttr, GidEntry, LinkLayer, Mtu, PortAttr, Srqn,
};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::{Gid, Qpn};
use rustix::fs::OFlags;

use super::channel::KernelCompChannel;
use super::cq::KernelCq;
use super::library::Functions;
use super::mw::Windows;
use super::pd::KernelPd;
use super::{abi, check, failed, last_errno};
use crate::error::refused;
use crate::sys::fork::ForkGuard;

/// Longest GID table that is read; the largest of today's devices have 1024 slots.
const GIDS_MAX: usize = 1 << 16;
/// Where the kernel's counters of devices are.
const SYSFS: &str = "/sys/class/infiniband";

/// A device of the kernel's. It is closed when nothing uses it any more.
#[derive(Debug)]
pub(crate) struct KernelDevice {
    pub(super) library: Arc<Functions>,
    pub(super) context: NonNull<abi::Context>,
    name: String,
    index: u32,
    /// What does not change while it lives, once it was asked for: its interface, limits and identity, and the length
    /// of the GID tables of all ports together. Connections need none of it but the limits.
    interface_index: OnceLock<u32>,
    attr: OnceLock<DeviceAttr>,
    gid_slots: OnceLock<usize>,
    /// Windows and regions by their keys, which the seam names them by when a window is bound. Locked in
    /// this order.
    pub(super) windows: Mutex<Windows>,
    pub(super) regions: Mutex<HashMap<u32, RegionPointer>>,
    fork: ForkGuard,
    me: Weak<Self>,
}

/// A region that is registered for as long as it is in the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionPointer(pub(super) NonNull<abi::Mr>);

// SAFETY: libibverbs may be called by any thread; the tables are behind locks.
unsafe impl Send for KernelDevice {}
// SAFETY: as above.
unsafe impl Sync for KernelDevice {}

/// A slot of a GID table with what the seam does not tell of it.
struct Slot {
    entry: GidEntry,
    gid_type: u32,
}

impl KernelDevice {
    /// Takes over an open context.
    pub(super) fn of_context(
        library: &Arc<Functions>,
        fork: ForkGuard,
        context: *mut abi::Context,
        name: String,
        index: u32,
    ) -> Result<Arc<Self>> {
        let context = super::made(Step::OpenDevice, "ibv_open_device", context)?;
        let mut device = Self {
            library: library.clone(),
            context,
            name,
            index,
            interface_index: OnceLock::new(),
            attr: OnceLock::new(),
            gid_slots: OnceLock::new(),
            windows: Mutex::default(),
            regions: Mutex::default(),
            fork,
            me: Weak::new(),
        };
        // SAFETY: an open context; its descriptor is as good as it is.
        let asynchronous = unsafe { BorrowedFd::borrow_raw((*context.as_ptr()).async_fd) };
        set_nonblocking(asynchronous)?;
        Ok(Arc::new_cyclic(|me| {
            device.me = me.clone();
            device
        }))
    }

    /// The slot of the GID table that serves a local address: that of RoCEv2 where there are several.
    pub(crate) fn slot_of(&self, ip: IpAddr) -> Result<Option<u32>> {
        let gid = ip_to_gid(ip);
        let slots = self.slots()?.into_iter();
        let best = slots
            .filter(|slot| slot.entry.gid == gid)
            .max_by_key(|slot| slot.gid_type == abi::GID_TYPE_ROCE_V2);
        Ok(best.map(|slot| slot.entry.index))
    }

    fn slots(&self) -> Result<Vec<Slot>> {
        self.check(Step::Query)?;
        let empty = abi::GidEntry {
            gid: [0; 2],
            gid_index: 0,
            port_num: 0,
            gid_type: 0,
            ndev_ifindex: 0,
        };
        let mut entries = vec![empty; self.gid_slots()?.min(GIDS_MAX)];
        // SAFETY: the array has as many entries of this size as is said.
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
        Ok(entries.iter().map(Slot::of).collect())
    }

    fn gid_slots(&self) -> Result<usize> {
        if let Some(slots) = self.gid_slots.get() {
            return Ok(*slots);
        }
        let mut slots = 0;
        for port_num in 1..=self.attr()?.phys_port_cnt {
            let of_port = self.raw_port_attr(port_num)?.gid_tbl_len;
            slots += usize::try_from(of_port).unwrap_or(0);
        }
        Ok(*self.gid_slots.get_or_init(|| slots))
    }

    fn raw_attr(&self) -> Result<abi::DeviceAttr> {
        self.check(Step::Query)?;
        let mut attr = MaybeUninit::<abi::DeviceAttr>::zeroed();
        // SAFETY: room for the structure.
        let code = unsafe { (self.library.query_device)(self.context.as_ptr(), attr.as_mut_ptr()) };
        check(Step::Query, "ibv_query_device", code).map_err(|error| self.explain(error))?;
        // SAFETY: plain integers, zero where the library wrote none.
        Ok(unsafe { attr.assume_init() })
    }

    fn raw_port_attr(&self, port_num: u8) -> Result<abi::PortAttr> {
        self.check(Step::Query)?;
        let mut attr = MaybeUninit::<abi::PortAttr>::zeroed();
        let context = self.context.as_ptr();
        // SAFETY: room for the structure; the library writes what it knows of it.
        let code = unsafe { (self.library.query_port)(context, port_num, attr.as_mut_ptr()) };
        check(Step::Query, "ibv_query_port", code).map_err(|error| self.explain(error))?;
        // SAFETY: as above.
        Ok(unsafe { attr.assume_init() })
    }

    /// The outcome of a verb that ends an object without memory of its own. With a device that was removed the
    /// kernel ends its objects by itself: that the verb fails is no failure. That the device is gone shows in that
    /// it cannot be asked for its attributes either.
    ///
    /// It is not for regions and windows: the kernel refuses every verb before it ends the objects, and until then
    /// the device may still write to memory. How long that takes is not told.
    pub(super) fn ended(&self, step: Step, verb: &'static str, code: i32) -> Result<()> {
        let ended = check(step, verb, code).map_err(|error| self.explain(error));
        match ended {
            Err(error) if is_removal(&error) && self.raw_attr().is_err_and(|e| is_removal(&e)) => {
                tracing::debug!(device = self.name, verb, "ended by the device's removal");
                Ok(())
            }
            ended => ended,
        }
    }

    pub(super) fn explain(&self, error: Error) -> Error {
        error.on(&self.name, None)
    }

    /// Fails in a process that was forked off since: what it has are copies of its parent's.
    #[inline]
    pub(super) fn check(&self, step: Step) -> Result<()> {
        self.fork.check(step)
    }

    /// Whether the device and what was made of it are this process's, to be given back.
    pub(super) fn is_own(&self) -> bool {
        self.fork.is_owner()
    }

    pub(super) fn shared(&self) -> Result<Arc<Self>> {
        self.check(Step::OpenDevice)?;
        let gone = || super::foreign(Step::OpenDevice, "a device that is open");
        self.me.upgrade().ok_or_else(gone)
    }
}

impl Slot {
    fn of(raw: &abi::GidEntry) -> Self {
        let mut gid = [0; 16];
        for (bytes, word) in gid.chunks_exact_mut(8).zip(raw.gid) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        let entry = GidEntry {
            gid: Gid(gid),
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

impl Device for KernelDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn index(&self) -> u32 {
        self.index
    }

    fn interface_index(&self) -> u32 {
        if let Some(known) = self.interface_index.get() {
            return *known;
        }
        let first = self.slots().ok().and_then(|slots| slots.into_iter().next());
        first.map_or(0, |slot| {
            let of_slot = || slot.entry.interface_index;
            *self.interface_index.get_or_init(of_slot)
        })
    }

    fn attr(&self) -> Result<DeviceAttr> {
        self.check(Step::Query)?;
        if let Some(attr) = self.attr.get() {
            return Ok(*attr);
        }
        let raw = self.raw_attr()?;
        // Limits are not negative; some are larger than the seam's types hold.
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        let small = |value: i32| u8::try_from(value.max(0)).unwrap_or(u8::MAX);
        let attr = DeviceAttr {
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
            // libibverbs tells it of a queue pair, once that is made.
            max_inline_data: 0,
            phys_port_cnt: raw.phys_port_cnt,
            local_ca_ack_delay: raw.local_ca_ack_delay,
        };
        Ok(*self.attr.get_or_init(|| attr))
    }

    fn port_attr(&self, port_num: u8) -> Result<PortAttr> {
        let raw = self.raw_port_attr(port_num)?;
        let mtu = |number: u32| {
            let known = u8::try_from(number).ok().and_then(Mtu::from_number);
            let invalid = || Error::invalid(Step::Query, "MTU of a port", "1 to 5", number);
            known.ok_or_else(|| self.explain(invalid()))
        };
        Ok(PortAttr {
            active: raw.state == abi::PORT_ACTIVE,
            max_mtu: mtu(raw.max_mtu)?,
            active_mtu: mtu(raw.active_mtu)?,
            gid_tbl_len: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            pkey_tbl_len: raw.pkey_tbl_len,
            // Those that say nothing are from before there was anything else.
            link_layer: match raw.link_layer {
                abi::LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                _ => LinkLayer::InfiniBand,
            },
        })
    }

    fn gids(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        let entries = self.slots()?.into_iter().map(|slot| slot.entry);
        Ok(entries.filter(|entry| entry.port_num == port_num).collect())
    }

    fn alloc_pd(&self) -> Result<Arc<dyn Pd>> {
        Ok(Arc::new(KernelPd::new(self.shared()?)?))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>> {
        Ok(Arc::new(KernelCompChannel::new(self.shared()?)?))
    }

    fn create_cq(
        &self,
        cqe: u32,
        channel: Option<&Arc<dyn CompChannel>>,
        cookie: u64,
    ) -> Result<Arc<dyn Cq>> {
        Ok(Arc::new(KernelCq::new(
            self.shared()?,
            cqe,
            channel,
            cookie,
        )?))
    }

    fn take_async_event(&self) -> Result<Option<AsyncEvent>> {
        // A forked child shares the descriptor with its parent, whose event it would take.
        self.check(Step::Event)?;
        loop {
            let mut raw = abi::AsyncEvent {
                element: abi::Element {
                    qp: std::ptr::null_mut(),
                },
                event_type: 0,
            };
            let context = self.context.as_ptr();
            // SAFETY: room for the event.
            if unsafe { (self.library.get_async_event)(context, &mut raw) } != 0 {
                return match last_errno() {
                    rustix::io::Errno::AGAIN => Ok(None),
                    errno => {
                        let error = refused(Step::Event, "ibv_get_async_event", errno);
                        Err(self.explain(error))
                    }
                };
            }
            // SAFETY: the event was taken and is not acknowledged: what it is of is not destroyed.
            let event = unsafe { async_event(&raw) };
            // SAFETY: as above; its element is not used any more.
            unsafe { (self.library.ack_async_event)(&mut raw) };
            if event.is_some() {
                return Ok(event);
            }
            tracing::debug!(
                device = self.name,
                number = raw.event_type,
                "event passed over"
            );
        }
    }

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        // SAFETY: the descriptor is open for as long as the device is.
        Ok(unsafe { BorrowedFd::borrow_raw((*self.context.as_ptr()).async_fd) })
    }

    fn counters(&self) -> Result<Vec<Counter>> {
        let ports = Path::new(SYSFS).join(&self.name).join("ports");
        let mut all = Vec::new();
        for port_num in 1..=self.attr()?.phys_port_cnt {
            all.extend(counters_in(&ports.join(format!("{port_num}/hw_counters"))));
        }
        Ok(all)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for KernelDevice {
    fn drop(&mut self) {
        if !self.is_own() {
            return;
        }
        // SAFETY: nothing that was made of it is left, since all of that keeps it alive.
        let code = unsafe { (self.library.close_device)(self.context.as_ptr()) };
        if code != 0 {
            tracing::warn!(device = self.name, code, "not closed");
        }
    }
}

/// An event in the seam's words; `None` for one that it has no words for (subnet manager, partitions,
/// path migration).
///
/// # Safety
/// The event is not acknowledged yet.
unsafe fn async_event(raw: &abi::AsyncEvent) -> Option<AsyncEvent> {
    // SAFETY: of an event of a queue pair the element is the queue pair, which lives until the event is
    // acknowledged.
    let qpn = || unsafe { Qpn::new((*raw.element.qp).qp_num) };
    // SAFETY: as above, of a shared receive queue.
    let srqn = || unsafe { Srqn((*raw.element.srq).handle) };
    // SAFETY: as above, of a completion queue.
    let cqn = || unsafe { Cqn((*raw.element.cq).handle) };
    // SAFETY: as above, of a port; ports have numbers of eight bits.
    let port = || unsafe { raw.element.port_num as u8 };
    Some(match raw.event_type {
        0 => AsyncEvent::CqErr(cqn()),
        1 => AsyncEvent::QpFatal(qpn()),
        2 => AsyncEvent::QpReqErr(qpn()),
        3 => AsyncEvent::QpAccessErr(qpn()),
        4 => AsyncEvent::CommEst(qpn()),
        5 => AsyncEvent::SqDrained(qpn()),
        8 => AsyncEvent::DeviceFatal,
        9 => AsyncEvent::PortActive(port()),
        10 => AsyncEvent::PortErr(port()),
        15 => AsyncEvent::SrqLimitReached(srqn()),
        16 => AsyncEvent::QpLastWqeReached(qpn()),
        18 => AsyncEvent::GidChange(port()),
        _ => return None,
    })
}

/// The counters in a folder of sysfs; none where a driver has none.
fn counters_in(folder: &Path) -> Vec<Counter> {
    let Ok(files) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut all: Vec<_> = files
        .filter_map(|file| {
            let file = file.ok()?;
            let value = std::fs::read_to_string(file.path())
                .ok()?
                .trim()
                .parse()
                .ok()?;
            let name = file.file_name().into_string().ok()?;
            // A setting of sysfs, no counter.
            (name != "lifespan").then_some(Counter {
                name: Cow::Owned(name),
                value,
            })
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn is_removal(error: &Error) -> bool {
    matches!(error.cause, Cause::DeviceRemoved)
}

pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    let set = rustix::fs::fcntl_getfl(fd)
        .and_then(|flags| rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK));
    set.map_err(|errno| refused(Step::OpenDevice, "fcntl", errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_the_numbers_of_a_folder_by_name() {
        let folder = std::env::temp_dir().join(format!("portolan-hw-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in [
            ("sent_pkts", "7\n"),
            ("lifespan", "10\n"),
            ("rcvd_pkts", "9\n"),
            ("odd", "x\n"),
        ] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let found = counters_in(&folder);
        let found: Vec<_> = found.iter().map(|c| (&*c.name, c.value)).collect();
        assert_eq!(found, [("rcvd_pkts", 9), ("sent_pkts", 7)]);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(counters_in(&folder).is_empty());
    }
}

//! The provider's devices.

use std::any::Any;
use std::borrow::Cow;
use std::ffi::c_int;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use portolan_abi_layout::{self as abi, async_event_type as event_type};
use portolan_provider::traits::{CompChannel, Cq, Device, Pd};
use portolan_provider::verbs::{
    AsyncEvent, Counter, Cqn, DeviceAttr, GidEntry, Instance, LinkLayer, Mtu, PortAttr, Refusal,
    Srqn,
};
use portolan_provider::{Error, Result, Step};
use portolan_wire::addr::Qpn;

use super::channel::KernelCompChannel;
use super::cq::KernelCq;
use super::open::OpenDevice;
use super::outcome::last_errno;
use super::pd::KernelPd;
use crate::error::refused;

/// Where the kernel's counters of devices are.
const SYSFS: &str = "/sys/class/infiniband";

/// A device of the kernel, open while it or any object created from it is used.
#[derive(Debug)]
pub(crate) struct KernelDevice(pub(crate) Arc<OpenDevice>);

impl portolan_provider::sealed::Sealed for KernelDevice {}

impl Device for KernelDevice {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn index(&self) -> u32 {
        self.0.index()
    }

    fn instance(&self) -> Instance {
        self.0.instance()
    }

    fn interface_index(&self) -> u32 {
        self.0.interface_index()
    }

    fn attr(&self) -> Result<DeviceAttr> {
        self.0.attr()
    }

    fn port_attr(&self, port_num: u8) -> Result<PortAttr> {
        let raw = self.0.port_attr(port_num)?;
        let mtu = |number: u32| {
            let known = u8::try_from(number).ok().and_then(Mtu::from_number);
            let invalid = || Error::invalid(Step::Query, "MTU of a port", "1 to 5", number);
            known.ok_or_else(|| self.0.explain(invalid()))
        };
        Ok(PortAttr {
            active: raw.state == abi::PORT_ACTIVE,
            max_mtu: mtu(raw.max_mtu)?,
            active_mtu: mtu(raw.active_mtu)?,
            gid_tbl_len: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            pkey_tbl_len: raw.pkey_tbl_len,
            // Drivers that report nothing predate other link layers.
            link_layer: match raw.link_layer {
                abi::LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                _ => LinkLayer::InfiniBand,
            },
            lid: raw.lid,
        })
    }

    fn gids(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        let entries = self.0.gids()?;
        Ok(entries.filter(|entry| entry.port_num == port_num).collect())
    }

    fn gids_of(&self, ip: IpAddr) -> Result<Vec<GidEntry>> {
        self.0.slots_of(ip)
    }

    fn is_iwarp(&self) -> bool {
        self.0.is_iwarp()
    }

    fn alloc_pd(&self) -> Result<Arc<dyn Pd>> {
        self.0.check(Step::OpenDevice)?;
        Ok(Arc::new(KernelPd::new(self.0.clone())?))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>> {
        self.0.check(Step::OpenDevice)?;
        Ok(Arc::new(KernelCompChannel::new(self.0.clone())?))
    }

    fn create_cq(
        &self,
        cqe: u32,
        channel: Option<&Arc<dyn CompChannel>>,
        cookie: u64,
    ) -> Result<Arc<dyn Cq>> {
        self.0.check(Step::OpenDevice)?;
        Ok(Arc::new(KernelCq::new(
            self.0.clone(),
            cqe,
            channel,
            cookie,
        )?))
    }

    fn take_async_event(&self) -> Result<Option<AsyncEvent>> {
        let mut events = self.0.async_events.lock();
        events.set_reader();
        if let Some(kept) = events.take_kept() {
            return Ok(Some(kept));
        }
        let event = self.0.next_async_event()?;
        if let Some(event) = event {
            events.note(event);
        }
        Ok(event)
    }

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        self.0.async_events.lock().set_reader();
        Ok(self.0.async_fd())
    }

    fn counters(&self) -> Result<Vec<Counter>> {
        let ports = Path::new(SYSFS).join(self.name()).join("ports");
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

impl OpenDevice {
    /// The request of the peer that a queue pair refused, as far as the device reports it.
    pub(super) fn refusal(&self, qpn: Qpn) -> Result<Option<Refusal>> {
        let mut events = self.async_events.lock();
        if !events.has_reader() {
            while let Some(event) = self.next_async_event()? {
                events.note(event);
                events.keep(event);
            }
        }
        Ok(events.refusal(qpn))
    }

    /// Takes the next event from the device; `None` if there is none.
    fn next_async_event(&self) -> Result<Option<AsyncEvent>> {
        // A forked child shares the descriptor with its parent and would take its events.
        self.check(Step::Event)?;
        loop {
            let mut raw = abi::AsyncEvent::zeroed();
            let context = self.context.as_ptr();
            // SAFETY: the context is open, and there is room for the event.
            if unsafe { (self.library.get_async_event)(context, &mut raw) } != 0 {
                return match last_errno() {
                    rustix::io::Errno::AGAIN => Ok(None),
                    errno => {
                        let error = refused(Step::Event, "ibv_get_async_event", errno);
                        Err(self.explain(error))
                    }
                };
            }
            // SAFETY: the event was taken and is not acknowledged, so its object is not destroyed.
            let event = unsafe { async_event(&raw) };
            // SAFETY: the library filled in the event; its element is not used afterwards.
            unsafe { (self.library.ack_async_event)(&mut raw) };
            if event.is_some() {
                return Ok(event);
            }
            tracing::debug!(
                device = self.name(),
                number = raw.event_type,
                "event passed over"
            );
        }
    }
}

/// Converts an event to the provider's type; `None` for one that the provider's types lack (subnet manager, partitions,
/// path migration).
///
/// # Safety
/// The event comes from the library and is not acknowledged yet.
unsafe fn async_event(raw: &abi::AsyncEvent) -> Option<AsyncEvent> {
    let of_qp = |event: fn(Qpn) -> AsyncEvent| {
        // SAFETY: the element of a queue pair's event is the queue pair, which lives until the event is acknowledged.
        event(Qpn::new(unsafe { (*raw.element.cast::<abi::Qp>()).qp_num }))
    };
    let of_port = |event: fn(u8) -> AsyncEvent| {
        // SAFETY: the element is a union; a port's event uses its `int`. Port numbers have eight bits.
        event(unsafe { (&raw const raw.element).cast::<c_int>().read() } as u8)
    };
    let cqn = || {
        // SAFETY: as for a queue pair, of a completion queue.
        Cqn(unsafe { (*raw.element.cast::<abi::Cq>()).handle })
    };
    let srqn = || {
        // SAFETY: as for a queue pair, of a shared receive queue.
        Srqn(unsafe { (*raw.element.cast::<abi::Srq>()).handle })
    };
    Some(match raw.event_type {
        event_type::CQ_ERR => AsyncEvent::CqErr(cqn()),
        event_type::SRQ_LIMIT_REACHED => AsyncEvent::SrqLimitReached(srqn()),
        event_type::QP_FATAL => of_qp(AsyncEvent::QpFatal),
        event_type::QP_REQ_ERR => of_qp(AsyncEvent::QpReqErr),
        event_type::QP_ACCESS_ERR => of_qp(AsyncEvent::QpAccessErr),
        event_type::COMM_EST => of_qp(AsyncEvent::CommEst),
        event_type::SQ_DRAINED => of_qp(AsyncEvent::SqDrained),
        event_type::QP_LAST_WQE_REACHED => of_qp(AsyncEvent::QpLastWqeReached),
        event_type::DEVICE_FATAL => AsyncEvent::DeviceFatal,
        event_type::PORT_ACTIVE => of_port(AsyncEvent::PortActive),
        event_type::PORT_ERR => of_port(AsyncEvent::PortErr),
        event_type::GID_CHANGE => of_port(AsyncEvent::GidChange),
        _ => return None,
    })
}

/// The counters in a sysfs folder; empty if the driver has none.
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
            // This file is a setting, not a counter.
            (name != "lifespan").then_some(Counter {
                name: Cow::Owned(name),
                value,
            })
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::os::fd::IntoRawFd;

    use portolan_abi_layout::Verbs;
    use portolan_provider::verbs::WcStatus;

    use super::*;
    use crate::sys::fork::ForkGuard;

    thread_local! {
        /// The events that the test's library reports: type and queue pair.
        static WAITING: RefCell<VecDeque<(u32, u32)>> = const { RefCell::new(VecDeque::new()) };
    }

    unsafe extern "C" fn get_async_event(
        _: *mut abi::Context,
        event: *mut abi::AsyncEvent,
    ) -> c_int {
        let Some((event_type, number)) = WAITING.with_borrow_mut(VecDeque::pop_front) else {
            would_block();
            return -1;
        };
        let mut qp = abi::Qp::zeroed();
        qp.qp_num = number;
        // SAFETY: the caller passes room for an event.
        unsafe {
            (*event).event_type = event_type;
            (*event).element = Box::into_raw(Box::new(qp)).cast();
        }
        0
    }

    unsafe extern "C" fn ack_async_event(event: *mut abi::AsyncEvent) {
        // SAFETY: the element is a queue pair from `get_async_event`.
        drop(unsafe { Box::from_raw((*event).element.cast::<abi::Qp>()) });
    }

    unsafe extern "C" fn close_device(_: *mut abi::Context) -> c_int {
        0
    }

    /// Sets errno to EAGAIN, by a read that would block.
    fn would_block() {
        let (reader, _writer) = std::io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::NONBLOCK).unwrap();
        let mut byte = 0u8;
        let into = (&raw mut byte).cast();
        // SAFETY: the descriptor is open, and there is room for a byte.
        let taken = unsafe { libc::read(std::os::fd::AsRawFd::as_raw_fd(&reader), into, 1) };
        assert_eq!(taken, -1);
    }

    fn device() -> KernelDevice {
        let library = Verbs {
            get_async_event,
            ack_async_event,
            close_device,
            ..Verbs::aborting()
        };
        let (asynchronous, _) = std::io::pipe().unwrap();
        let context = Box::leak(Box::new(abi::Context::zeroed()));
        context.async_fd = asynchronous.into_raw_fd();
        let fork = ForkGuard::new();
        let name = "told0".into();
        KernelDevice(OpenDevice::of_context(&Arc::new(library), fork, context, name, 0).unwrap())
    }

    fn arrive(event_type: u32, qpn: u32) {
        WAITING.with_borrow_mut(|waiting| waiting.push_back((event_type, qpn)));
    }

    #[test]
    fn a_refused_request_is_known_by_its_queue_pair_and_the_events_are_kept_for_the_program() {
        let device = device();
        let [first, second, third] = [7, 8, 9].map(Qpn::new);
        arrive(event_type::COMM_EST, 8);
        arrive(event_type::QP_ACCESS_ERR, 7);
        arrive(event_type::QP_REQ_ERR, 8);
        let status = |qpn| device.0.refusal(qpn).unwrap().map(|refusal| refusal.status);
        assert_eq!(status(first), Some(WcStatus::RemAccessErr));
        assert_eq!(status(second), Some(WcStatus::RemInvReqErr));
        assert_eq!(status(third), None);
        let all = std::iter::from_fn(|| device.take_async_event().unwrap());
        let expected = [
            AsyncEvent::CommEst(second),
            AsyncEvent::QpAccessErr(first),
            AsyncEvent::QpReqErr(second),
        ];
        assert_eq!(all.collect::<Vec<_>>(), expected);
        device.0.async_events.lock().forget(first);
        assert_eq!(status(first), None, "its number may be reused");
    }

    #[test]
    fn a_program_that_reads_the_events_gets_each_once_and_the_refusals_are_known_from_its_reads() {
        let device = device();
        device.async_fd().unwrap();
        arrive(event_type::QP_ACCESS_ERR, 7);
        let qpn = Qpn::new(7);
        assert_eq!(
            device.0.refusal(qpn).unwrap(),
            None,
            "the event is the program's"
        );
        assert_eq!(
            device.take_async_event().unwrap(),
            Some(AsyncEvent::QpAccessErr(qpn))
        );
        assert_eq!(device.take_async_event().unwrap(), None);
        let refusal = device.0.refusal(qpn).unwrap();
        assert_eq!(refusal, Some(Refusal::new(WcStatus::RemAccessErr, None)));
    }

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

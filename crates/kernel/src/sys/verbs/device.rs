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
    AsyncEvent, Counter, Cqn, DeviceAttr, GidEntry, Instance, LinkLayer, Mtu, PortAttr, Srqn,
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
        // A forked child shares the descriptor with its parent and would take its events.
        self.0.check(Step::Event)?;
        loop {
            let mut raw = abi::AsyncEvent::zeroed();
            let context = self.0.context.as_ptr();
            // SAFETY: the context is open, and there is room for the event.
            if unsafe { (self.0.library.get_async_event)(context, &mut raw) } != 0 {
                return match last_errno() {
                    rustix::io::Errno::AGAIN => Ok(None),
                    errno => {
                        let error = refused(Step::Event, "ibv_get_async_event", errno);
                        Err(self.0.explain(error))
                    }
                };
            }
            // SAFETY: the event was taken and is not acknowledged, so its object is not destroyed.
            let event = unsafe { async_event(&raw) };
            // SAFETY: the library filled in the event; its element is not used afterwards.
            unsafe { (self.0.library.ack_async_event)(&mut raw) };
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

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
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

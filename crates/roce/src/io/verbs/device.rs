//! Software devices: one for each network interface that has an address.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use portolan_provider::address::ip_to_gid;
use portolan_provider::traits::{CompChannel, Cq, Device, Notify, Pd, Xrcd};
use portolan_provider::verbs::{
    AsyncEvent, AtomicCap, Counter, DeviceAttr, GidEntry, Instance, LinkLayer, Mtu, PortAttr,
};
use portolan_provider::{Error, Result, Step};

use crate::io::host::Host;
use crate::io::host::async_listener::AsyncListener;
use crate::io::host::completion_queue::CqEvent;
use crate::io::host::device::{DeviceCore, GID_TABLE_LEN, PORT};
use crate::io::host::errors::removed;
use crate::io::polling::clock::{Clock, as_nanos};
use crate::io::verbs::channel::SoftChannel;
use crate::io::verbs::cq::SoftCq;
use crate::io::verbs::pd::SoftPd;
use crate::io::verbs::xrcd::SoftXrcd;

/// Only the default P_Key.
const PKEY_TABLE_LEN: u16 = 1;
/// Linux's rxe reports the same. The CM adds it to its acknowledgement timeouts.
const LOCAL_CA_ACK_DELAY: u8 = 15;

/// A RoCEv2 device over a network interface: `sw_eth0` over `eth0`. Its GID table contains the interface's addresses.
#[derive(Debug)]
pub struct SoftDevice {
    core: Arc<DeviceCore>,
    host: Arc<Host>,
}

impl SoftDevice {
    pub(crate) fn new(core: Arc<DeviceCore>, host: Arc<Host>) -> Self {
        Self { core, host }
    }

    pub(crate) fn core(&self) -> &Arc<DeviceCore> {
        &self.core
    }

    /// The largest path MTU of its interface.
    pub fn mtu(&self) -> Mtu {
        self.core.max_mtu()
    }

    /// Adds a listener for the events that `wants` selects. The owner does not get them.
    ///
    /// `wants` is called under locks: it may lock only a leaf, and call nothing of this crate.
    ///
    /// # Errors
    /// `Os` if the process has no descriptor left; `Unsupported` in a forked child.
    pub fn listen_async(
        &self,
        wants: impl Fn(&AsyncEvent) -> bool + Send + Sync + 'static,
    ) -> Result<Arc<AsyncListener>> {
        self.host.entry.check(Step::Query)?;
        let limit = self.host.config.limits.max_async_events;
        let listener = AsyncListener::new(limit, Box::new(wants), Arc::clone(&self.host.entry));
        let listener = Arc::new(listener.map_err(|error| self.error(error))?);
        self.core.events().add_listener(&listener);
        Ok(listener)
    }

    /// Fails if the interface is gone.
    fn check_present(&self, step: Step) -> Result<()> {
        match self.core.is_removed() {
            true => Err(removed(step, &self.core)),
            false => Ok(()),
        }
    }

    fn make_cq(
        &self,
        cqe: u32,
        event: Option<CqEvent>,
        stamps: Option<Clock>,
    ) -> Result<Arc<dyn Cq>> {
        self.host.entry.check(Step::CreateCq)?;
        self.check_present(Step::CreateCq)?;
        let cq = SoftCq::new(&self.host, &self.core, cqe, event, stamps)
            .map_err(|error| self.error(error))?;
        Ok(Arc::new(cq))
    }

    fn check_port(&self, step: Step, port_num: u8) -> Result<()> {
        let checked = self.core.check_port(step, port_num);
        checked.map_err(|error| self.error(error))
    }

    fn error(&self, error: Error) -> Error {
        error.on(self.core.name(), None)
    }
}

/// Events that are queued on a channel, if there is one.
fn queued(channel: Option<&Arc<dyn CompChannel>>, cookie: u64) -> Result<Option<CqEvent>> {
    channel
        .map(|channel| Ok(CqEvent::Queue(SoftChannel::core_of(channel)?, cookie)))
        .transpose()
}

impl portolan_provider::sealed::Sealed for SoftDevice {}

impl Device for SoftDevice {
    fn name(&self) -> &str {
        self.core.name()
    }

    /// The interface's index. Linux does not reuse it.
    fn index(&self) -> u32 {
        self.core.interface()
    }

    fn instance(&self) -> Instance {
        self.core.instance()
    }

    fn interface_index(&self) -> u32 {
        self.core.interface()
    }

    fn attr(&self) -> Result<DeviceAttr> {
        let (limits, qp) = (&self.host.config.limits, &self.host.config.qp_limits);
        Ok(DeviceAttr {
            node_guid: self.core.node_guid(),
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
            active: self.core.is_active(),
            max_mtu: Mtu::Mtu4096,
            active_mtu: self.core.max_mtu(),
            gid_tbl_len: GID_TABLE_LEN as u32,
            pkey_tbl_len: PKEY_TABLE_LEN,
            link_layer: LinkLayer::Ethernet,
            lid: 0,
        })
    }

    fn gids(&self, port_num: u8) -> Result<Vec<GidEntry>> {
        self.check_port(Step::Query, port_num)?;
        let entry = |(index, ip)| GidEntry {
            gid: ip_to_gid(ip),
            index: index as u32,
            port_num,
            interface_index: self.core.interface(),
        };
        Ok(self.core.addresses().into_iter().map(entry).collect())
    }

    fn alloc_pd(&self) -> Result<Arc<dyn Pd>> {
        self.host.entry.check(Step::AllocPd)?;
        self.check_present(Step::AllocPd)?;
        Ok(Arc::new(
            SoftPd::new(&self.host, &self.core).map_err(|error| self.error(error))?,
        ))
    }

    fn create_comp_channel(&self) -> Result<Arc<dyn CompChannel>> {
        self.host.entry.check(Step::CreateCq)?;
        self.check_present(Step::CreateCq)?;
        Ok(Arc::new(
            SoftChannel::new(Arc::clone(&self.host)).map_err(|error| self.error(error))?,
        ))
    }

    fn create_cq(
        &self,
        cqe: u32,
        channel: Option<&Arc<dyn CompChannel>>,
        cookie: u64,
    ) -> Result<Arc<dyn Cq>> {
        self.make_cq(cqe, queued(channel, cookie)?, None)
    }

    fn create_calling_cq(&self, cqe: u32, notify: &Arc<dyn Notify>) -> Result<Option<Arc<dyn Cq>>> {
        let event = CqEvent::Call(notify.clone());
        self.make_cq(cqe, Some(event), None).map(Some)
    }

    fn open_xrcd(&self) -> Result<Arc<dyn Xrcd>> {
        self.host.entry.check(Step::AllocPd)?;
        self.check_present(Step::AllocPd)?;
        let xrcd = SoftXrcd::new(&self.host, &self.core).map_err(|error| self.error(error))?;
        Ok(Arc::new(xrcd))
    }

    fn create_stamping_cq(
        &self,
        cqe: u32,
        channel: Option<&Arc<dyn CompChannel>>,
        cookie: u64,
    ) -> Result<Arc<dyn Cq>> {
        self.make_cq(cqe, queued(channel, cookie)?, Some(self.host.clock))
    }

    fn clock_ns(&self) -> Result<u64> {
        Ok(as_nanos(self.host.clock.now()))
    }

    fn take_async_event(&self) -> Result<Option<AsyncEvent>> {
        // A forked child would take its parent's event.
        self.host.entry.check(Step::Query)?;
        Ok(self.core.events().take())
    }

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        self.host.entry.check(Step::Query)?;
        self.core.events().fd().map_err(|error| self.error(error))
    }

    fn counters(&self) -> Result<Vec<Counter>> {
        self.host.entry.check(Step::Query)?;
        let mut sum = self.core.retired();
        for qp in self.host.qps.all() {
            if Arc::ptr_eq(&qp.device, &self.core) {
                let state = qp.lock();
                // A queue pair destroyed meanwhile is counted among the retired, now or next time.
                if !state.closed {
                    sum.add(state.engine.counters());
                }
            }
        }
        let mut counters = sum.named();
        counters.push(Counter {
            name: "async_overflows".into(),
            value: self.core.events().lost(),
        });
        Ok(counters)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

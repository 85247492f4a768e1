//! Protection domains.

#![allow(unsafe_code, reason = "registering memory is unsafe by contract")]

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use portolan_provider::traits::{Cq, HostMemory, Mr, Mw, Pd, Qp, Srq, Xrcd};
use portolan_provider::verbs::{Access, Ah, AhAttr, MrRange, MwType, QpInit, SrqAttr};
use portolan_provider::{Result, Step};

use crate::engine::{PdId, Region};
use crate::io::host::Host;
use crate::io::host::device::DeviceCore;
use crate::io::host::errors::removed;
use crate::io::host::gauge::Permit;
use crate::io::verbs::ah::SoftAh;
use crate::io::verbs::mr::SoftMr;
use crate::io::verbs::mw::SoftMw;
use crate::io::verbs::qp::SoftQp;
use crate::io::verbs::srq::SoftSrq;
use crate::io::verbs::xrcd::SoftXrcd;

/// A protection domain: memory regions and queue pairs that may be used together.
#[derive(Debug)]
pub struct SoftPd {
    id: PdId,
    device: Arc<DeviceCore>,
    host: Arc<Host>,
    _permit: Permit,
}

impl SoftPd {
    pub(crate) fn new(host: &Arc<Host>, device: &Arc<DeviceCore>) -> Result<Self> {
        let permit = host.gauges.pds.take(Step::AllocPd)?;
        // All devices share the stack's memory table, so they share these numbers. Numbers repeat after 2^32, long
        // after the first owner is gone.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = PdId(NEXT.fetch_add(1, Ordering::Relaxed));
        Ok(Self {
            id,
            device: Arc::clone(device),
            host: Arc::clone(host),
            _permit: permit,
        })
    }

    /// Fails if the device's interface is gone.
    fn check_present(&self, step: Step) -> Result<()> {
        match self.device.is_removed() {
            true => Err(removed(step, &self.device)),
            false => Ok(()),
        }
    }
}

impl portolan_provider::sealed::Sealed for SoftPd {}

impl Pd for SoftPd {
    /// The range is verified by this call (see [`crate::io`] about memory that is unmapped while registered).
    unsafe fn register(&self, addr: u64, length: u64, access: Access) -> Result<Arc<dyn Mr>> {
        // SAFETY: as the caller promises.
        unsafe { self.register_at(addr, length, addr, access) }
    }

    unsafe fn register_at(
        &self,
        addr: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<dyn Mr>> {
        self.host.entry.check(Step::RegisterMemory)?;
        self.check_present(Step::RegisterMemory)?;
        let region = Region {
            pd: self.id,
            iova,
            addr,
            length,
            access,
        };
        let region = SoftMr::register(&self.host, region, None)
            .map_err(|error| error.on(self.device.name(), None))?;
        Ok(Arc::new(region))
    }

    fn alloc_memory(&self, length: usize) -> Option<Arc<dyn HostMemory>> {
        self.host.entry.check(Step::RegisterMemory).ok()?;
        let links = self.host.links.as_ref()?;
        links.rights().let_go();
        let pages: Arc<dyn HostMemory> = links.files().alloc(length)?;
        Some(pages)
    }

    unsafe fn register_memory(
        &self,
        memory: &Arc<dyn HostMemory>,
        access: Access,
    ) -> Result<Arc<dyn Mr>> {
        self.host.entry.check(Step::RegisterMemory)?;
        self.check_present(Step::RegisterMemory)?;
        let region = Region {
            pd: self.id,
            iova: memory.addr(),
            addr: memory.addr(),
            length: memory.len() as u64,
            access,
        };
        let pages = Arc::clone(memory).as_arc_any().downcast().ok();
        let region = SoftMr::register(&self.host, region, pages)
            .map_err(|error| error.on(self.device.name(), None))?;
        Ok(Arc::new(region))
    }

    unsafe fn reregister(
        &self,
        mr: &Arc<dyn Mr>,
        range: Option<MrRange>,
        access: Option<Access>,
    ) -> Result<()> {
        self.host.entry.check(Step::RegisterMemory)?;
        self.check_present(Step::RegisterMemory)?;
        SoftMr::behind(mr, &self.host)?
            .reregister(self.id, range, access)
            .map_err(|error| error.on(self.device.name(), None))
    }

    fn create_qp(
        &self,
        init: &QpInit,
        send_cq: &Arc<dyn Cq>,
        recv_cq: &Arc<dyn Cq>,
        srq: Option<&Arc<dyn Srq>>,
    ) -> Result<Arc<dyn Qp>> {
        self.host.entry.check(Step::CreateQp)?;
        let cqs = [send_cq, recv_cq];
        let qp = SoftQp::new(&self.host, &self.device, self.id, init, cqs, srq)
            .map_err(|error| error.on(self.device.name(), None))?;
        Ok(Arc::new(qp))
    }

    fn create_ah(&self, attr: &AhAttr) -> Result<Arc<dyn Ah>> {
        self.host.entry.check(Step::CreateAh)?;
        let ah = SoftAh::new(&self.host, &self.device, attr)
            .map_err(|error| error.on(self.device.name(), None))?;
        Ok(Arc::new(ah))
    }

    fn alloc_mw(&self, mw_type: MwType) -> Result<Arc<dyn Mw>> {
        self.host.entry.check(Step::AllocMw)?;
        self.check_present(Step::AllocMw)?;
        let mw = SoftMw::alloc(&self.host, self.id, mw_type)
            .map_err(|error| error.on(self.device.name(), None))?;
        Ok(Arc::new(mw))
    }

    fn create_srq(&self, attr: &SrqAttr) -> Result<Arc<dyn Srq>> {
        self.host.entry.check(Step::CreateSrq)?;
        self.check_present(Step::CreateSrq)?;
        let srq = SoftSrq::new(&self.host, &self.device, self.id, attr)
            .map_err(|error| error.on(self.device.name(), None))?;
        Ok(Arc::new(srq))
    }

    fn create_xrc_srq(
        &self,
        attr: &SrqAttr,
        xrcd: &Arc<dyn Xrcd>,
        cq: &Arc<dyn Cq>,
    ) -> Result<Arc<dyn Srq>> {
        self.host.entry.check(Step::CreateSrq)?;
        self.check_present(Step::CreateSrq)?;
        let domain = SoftXrcd::domain_of(xrcd, &self.host)?;
        let srq = SoftSrq::in_domain(&self.host, &self.device, self.id, attr, domain, cq)
            .map_err(|error| error.on(self.device.name(), None))?;
        Ok(Arc::new(srq))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

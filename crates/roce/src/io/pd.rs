//! Protection domains.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use portolan_provider::traits::{Cq, Mr, Mw, Pd, Qp, Srq};
use portolan_provider::verbs::{Access, Ah, AhAttr, MwType, QpInit, SrqAttr};
use portolan_provider::{Result, Step};

use super::ah::SoftAh;
use super::device::{DeviceCore, SoftDevice};
use super::gauge::Permit;
use super::hotplug::removed;
use super::mr::SoftMr;
use super::mw::SoftMw;
use super::qp::SoftQp;
use super::shared::Shared;
use super::srq::SoftSrq;
use crate::engine::PdId;

/// A protection domain: memory regions and queue pairs that may work together.
#[derive(Debug)]
pub struct SoftPd {
    id: PdId,
    device: Arc<DeviceCore>,
    shared: Arc<Shared>,
    _permit: Permit,
}

impl SoftPd {
    pub(super) fn new(device: &SoftDevice) -> Result<Self> {
        let shared = Arc::clone(device.shared());
        let permit = shared.gauges.pds.take(Step::AllocPd)?;
        // The memory table is the stack's, so protection domains of all devices share the numbers.
        // After 2^32 of them a number comes again: its first owner is long gone.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = PdId(NEXT.fetch_add(1, Ordering::Relaxed));
        Ok(Self {
            id,
            device: Arc::clone(device.core()),
            shared,
            _permit: permit,
        })
    }

    /// Refuses what needs the device when its interface is gone.
    fn check_present(&self, step: Step) -> Result<()> {
        match self.device.is_removed() {
            true => Err(removed(step, &self.device)),
            false => Ok(()),
        }
    }
}

impl Pd for SoftPd {
    /// The range is verified now (see [`crate::io`] about memory that is unmapped while registered).
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
        self.shared.fork.check(Step::RegisterMemory)?;
        self.check_present(Step::RegisterMemory)?;
        let region = SoftMr::register(&self.shared, self.id, [addr, iova], length, access)
            .map_err(|error| error.on(self.device.name(), None))?;
        Ok(Arc::new(region))
    }

    fn create_qp(
        &self,
        init: &QpInit,
        send_cq: &Arc<dyn Cq>,
        recv_cq: &Arc<dyn Cq>,
        srq: Option<&Arc<dyn Srq>>,
    ) -> Result<Arc<dyn Qp>> {
        self.shared.fork.check(Step::CreateQp)?;
        let cqs = [send_cq, recv_cq];
        let qp = SoftQp::new(&self.shared, &self.device, self.id, init, cqs, srq)
            .map_err(|error| error.on(self.device.name(), None))?;
        Ok(Arc::new(qp))
    }

    fn create_ah(&self, attr: &AhAttr) -> Result<Arc<dyn Ah>> {
        self.shared.fork.check(Step::CreateAh)?;
        let ah = SoftAh::new(&self.shared, &self.device, attr)
            .map_err(|error| error.on(self.device.name(), None))?;
        Ok(Arc::new(ah))
    }

    fn alloc_mw(&self, mw_type: MwType) -> Result<Arc<dyn Mw>> {
        self.shared.fork.check(Step::AllocMw)?;
        self.check_present(Step::AllocMw)?;
        let mw = SoftMw::alloc(&self.shared, self.id, mw_type)
            .map_err(|error| error.on(self.device.name(), None))?;
        Ok(Arc::new(mw))
    }

    fn create_srq(&self, attr: &SrqAttr) -> Result<Arc<dyn Srq>> {
        self.shared.fork.check(Step::CreateSrq)?;
        self.check_present(Step::CreateSrq)?;
        let srq = SoftSrq::new(&self.shared, &self.device, self.id, attr)
            .map_err(|error| error.on(self.device.name(), None))?;
        Ok(Arc::new(srq))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

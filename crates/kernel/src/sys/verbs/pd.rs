//! Protection domains.

use std::any::Any;
use std::sync::Arc;

use portolan_provider::traits::{Cq, Mr, Mw, Pd, Qp, Srq};
use portolan_provider::verbs::{Access, Ah, AhAttr, MwType, QpInit, SrqAttr};
use portolan_provider::{Result, Step};

use super::ah::KernelAh;
use super::domain::Domain;
use super::mr::KernelMr;
use super::mw::KernelMw;
use super::open::OpenDevice;
use super::qp::KernelQp;
use super::srq::KernelSrq;

/// A protection domain of the kernel's.
#[derive(Debug)]
pub(super) struct KernelPd {
    shared: Arc<Domain>,
}

impl KernelPd {
    pub(super) fn new(device: Arc<OpenDevice>) -> Result<Self> {
        let shared = Domain::new(device)?;
        Ok(Self { shared })
    }
}

impl portolan_provider::sealed::Sealed for KernelPd {}

impl Pd for KernelPd {
    unsafe fn register(&self, addr: u64, length: u64, access: Access) -> Result<Arc<dyn Mr>> {
        self.shared.device.check(Step::RegisterMemory)?;
        // SAFETY: the caller's promise is the same.
        let mr = unsafe { KernelMr::register(self.shared.clone(), addr, length, access)? };
        Ok(Arc::new(mr))
    }

    fn create_qp(
        &self,
        init: &QpInit,
        send_cq: &Arc<dyn Cq>,
        recv_cq: &Arc<dyn Cq>,
        srq: Option<&Arc<dyn Srq>>,
    ) -> Result<Arc<dyn Qp>> {
        self.shared.device.check(Step::CreateQp)?;
        let qp = KernelQp::new(self.shared.clone(), init, send_cq, recv_cq, srq)?;
        Ok(Arc::new(qp))
    }

    fn create_ah(&self, attr: &AhAttr) -> Result<Arc<dyn Ah>> {
        self.shared.device.check(Step::CreateAh)?;
        Ok(Arc::new(KernelAh::new(self.shared.clone(), attr)?))
    }

    fn alloc_mw(&self, mw_type: MwType) -> Result<Arc<dyn Mw>> {
        self.shared.device.check(Step::AllocMw)?;
        Ok(Arc::new(KernelMw::new(self.shared.clone(), mw_type)?))
    }

    fn create_srq(&self, attr: &SrqAttr) -> Result<Arc<dyn Srq>> {
        self.shared.device.check(Step::CreateSrq)?;
        Ok(Arc::new(KernelSrq::new(self.shared.clone(), attr)?))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

//! Shared receive queues: their verbs, and their use by queue pairs.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use portolan_provider::traits::{Cq, Srq};
use portolan_provider::verbs::{RecvWr, SrqAttr, Srqn};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::lock::MutexGuard;

use crate::engine::{PdId, SharedReceiveQueue};
use crate::io::host::Host;
use crate::io::host::device::DeviceCore;
use crate::io::host::errors::foreign;
use crate::io::host::shared_receive_queue::{SrqCore, SrqUse};
use crate::io::host::xrc_domain::XrcDomain;
use crate::io::verbs::cq::SoftCq;

/// A shared receive queue. Queue pairs that use it keep it alive when it is dropped.
#[derive(Debug)]
pub struct SoftSrq {
    core: Arc<SrqCore>,
    /// Set for an XRC shared receive queue.
    domain: Option<Arc<XrcDomain>>,
    host: Arc<Host>,
}

impl SoftSrq {
    pub(crate) fn new(
        host: &Arc<Host>,
        device: &Arc<DeviceCore>,
        pd: PdId,
        attr: &SrqAttr,
    ) -> Result<Self> {
        // Numbers repeat after 2^32, long after the first owner is gone.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let permit = host.gauges.srqs.take(Step::CreateSrq)?;
        let number = Srqn(NEXT.fetch_add(1, Ordering::Relaxed));
        let config = &host.config;
        let max_wr = config.limits.max_srq_wr;
        let queue = SharedReceiveQueue::new(number, pd, attr, max_wr, &config.qp_limits)?;
        let core = SrqCore::new(number, pd, device, queue, permit);
        Ok(Self {
            core: Arc::new(core),
            domain: None,
            host: Arc::clone(host),
        })
    }

    /// Creates a queue in an XRC domain. Its receives complete on `cq`.
    pub(crate) fn in_domain(
        host: &Arc<Host>,
        device: &Arc<DeviceCore>,
        pd: PdId,
        attr: &SrqAttr,
        domain: Arc<XrcDomain>,
        cq: &Arc<dyn Cq>,
    ) -> Result<Self> {
        let cq = SoftCq::core_of(cq, host)?;
        let srq = Self::new(host, device, pd, attr)?;
        if srq.number().0 > Srqn::WIRE_MAX {
            let (what, limit) = (
                "shared receive queues since the start",
                Srqn::WIRE_MAX.into(),
            );
            let cause = Cause::LimitReached { what, limit };
            return Err(Error::new(Step::CreateSrq, cause));
        }
        domain.insert(&srq.core, cq);
        Ok(Self {
            domain: Some(domain),
            ..srq
        })
    }

    /// Counts a new queue pair as a user of the queue behind a trait object, if it belongs to the same stack and
    /// exists.
    pub(crate) fn claim(srq: &Arc<dyn Srq>, host: &Arc<Host>) -> Result<SrqUse> {
        let srq = srq.as_any().downcast_ref::<Self>();
        let core = srq
            .filter(|srq| Arc::ptr_eq(&srq.host, host))
            .map(|srq| &srq.core)
            .ok_or_else(|| foreign(Step::CreateQp, "shared receive queue of this device"))?;
        core.claim()
    }

    fn open(&self, step: Step) -> Result<MutexGuard<'_, SharedReceiveQueue>> {
        self.host.entry.check(step)?;
        self.core.open(step)
    }

    fn explain(&self, error: Error) -> Error {
        error.on(self.core.device().name(), None)
    }
}

impl portolan_provider::sealed::Sealed for SoftSrq {}

impl Srq for SoftSrq {
    fn number(&self) -> Srqn {
        self.core.number()
    }

    fn post_recv(&self, wr: &RecvWr<'_>) -> Result<()> {
        let posted = self.open(Step::PostReceive)?.post(wr);
        posted.map_err(|error| self.explain(error))
    }

    fn modify(&self, max_wr: Option<u32>, srq_limit: Option<u32>) -> Result<()> {
        let modified = self.open(Step::ModifySrq)?.modify(max_wr, srq_limit);
        modified.map_err(|error| self.explain(error))
    }

    fn query(&self) -> Result<SrqAttr> {
        Ok(self.open(Step::Query)?.query())
    }

    fn destroy(&self) -> Result<()> {
        self.host.entry.check(Step::ModifySrq)?;
        self.core.close().map_err(|error| self.explain(error))?;
        if let Some(domain) = &self.domain {
            domain.remove(self.core.number());
            // A thread that found it before holds the table's lock until its copies are done.
            drop(self.host.memory.write());
        }
        self.core.device().forget_srq(self.core.number());
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

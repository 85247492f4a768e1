//! Shared receive queues: the verbs on one, and how queue pairs share it.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_provider::traits::Srq;
use portolan_provider::verbs::{AsyncEvent, RecvWr, Sge, SrqAttr, Srqn};
use portolan_provider::{Cause, Error, Result, Step};

use super::device::{DeviceCore, foreign};
use super::gauge::Permit;
use super::shared::Shared;
use crate::engine::{PdId, ReceiveEntry, ReceiveSource, SharedReceiveQueue};

/// A shared receive queue. Dropping it leaves it to its queue pairs.
#[derive(Debug)]
pub struct SoftSrq {
    core: Arc<SrqCore>,
    shared: Arc<Shared>,
}

/// A shared receive queue as its queue pairs know it.
#[derive(Debug)]
pub(super) struct SrqCore {
    number: Srqn,
    pd: PdId,
    device: Arc<DeviceCore>,
    queue: Mutex<SharedReceiveQueue>,
    /// Queue pairs that draw on it.
    users: AtomicU32,
    closed: AtomicBool,
    _permit: Permit,
}

/// A queue pair's claim on a shared receive queue: while there is one, it cannot be destroyed.
#[derive(Debug)]
pub(super) struct SrqUse(Arc<SrqCore>);

impl SoftSrq {
    pub(super) fn new(
        shared: &Arc<Shared>,
        device: &Arc<DeviceCore>,
        pd: PdId,
        attr: &SrqAttr,
    ) -> Result<Self> {
        // After 2^32 of them a number comes again: its first owner is long gone.
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let permit = shared.gauges.srqs.take(Step::CreateSrq)?;
        let number = Srqn(NEXT.fetch_add(1, Ordering::Relaxed));
        let config = &shared.config;
        let max_wr = config.limits.max_srq_wr;
        let queue = SharedReceiveQueue::new(number, pd, attr, max_wr, &config.qp_limits)?;
        let core = SrqCore {
            number,
            pd,
            device: Arc::clone(device),
            queue: Mutex::new(queue),
            users: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            _permit: permit,
        };
        Ok(Self {
            core: Arc::new(core),
            shared: Arc::clone(shared),
        })
    }

    /// The claim of a new queue pair on the queue behind a trait object, if it belongs to the same
    /// stack and lives.
    pub(super) fn claim(srq: &Arc<dyn Srq>, shared: &Arc<Shared>) -> Result<SrqUse> {
        let srq = srq.as_any().downcast_ref::<Self>();
        let core = srq
            .filter(|srq| Arc::ptr_eq(&srq.shared, shared))
            .map(|srq| &srq.core)
            .ok_or_else(|| foreign(Step::CreateQp, "shared receive queue of this device"))?;
        // Under the lock, as the check in `destroy` is.
        let _queue = core.lock();
        core.check_open(Step::CreateQp)?;
        core.users.fetch_add(1, Ordering::Relaxed);
        Ok(SrqUse(Arc::clone(core)))
    }

    fn open(&self, step: Step) -> Result<MutexGuard<'_, SharedReceiveQueue>> {
        self.shared.fork.check(step)?;
        let queue = self.core.lock();
        self.core.check_open(step)?;
        Ok(queue)
    }

    fn explain(&self, error: Error) -> Error {
        error.on(self.core.device.name(), None)
    }
}

impl Srq for SoftSrq {
    fn number(&self) -> Srqn {
        self.core.number
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
        self.shared.fork.check(Step::ModifySrq)?;
        let queue = self.core.lock();
        let users = self.core.users.load(Ordering::Relaxed);
        if users > 0 {
            let cause = Cause::InUse {
                what: "shared receive queue",
                by: "queue pairs",
                count: users.into(),
            };
            return Err(self.explain(Error::new(Step::ModifySrq, cause)));
        }
        self.core.closed.store(true, Ordering::Relaxed);
        drop(queue);
        self.core.device.forget_srq(self.core.number);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl SrqUse {
    /// What a queue pair's engine draws on.
    pub(super) fn source(&self) -> Arc<dyn ReceiveSource> {
        Arc::clone(&self.0) as Arc<dyn ReceiveSource>
    }
}

impl Drop for SrqUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SrqCore {
    fn check_open(&self, step: Step) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::new(
                step,
                Cause::NoSuchObject("shared receive queue"),
            ));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, SharedReceiveQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReceiveSource for SrqCore {
    fn pd(&self) -> PdId {
        self.pd
    }

    fn take(&self, spare: Vec<Sge>) -> Option<ReceiveEntry> {
        let (entry, limit_reached) = {
            let mut queue = self.lock();
            (queue.take(spare), queue.take_limit_event())
        };
        if limit_reached {
            let event = AsyncEvent::SrqLimitReached(self.number);
            // One that is lost is counted by the device.
            let _ = self.device.push_async_event(event);
        }
        entry
    }
}

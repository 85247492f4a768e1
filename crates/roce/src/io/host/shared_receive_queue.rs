//! Shared receive queues as queue pairs see them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use portolan_provider::verbs::{AsyncEvent, Sge, Srqn};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::lock::{Mutex, MutexGuard};

use crate::engine::{PdId, ReceiveEntry, ReceiveSource, SharedReceiveQueue};
use crate::io::host::device::DeviceCore;
use crate::io::host::gauge::Permit;

#[derive(Debug)]
pub(crate) struct SrqCore {
    number: Srqn,
    pd: PdId,
    device: Arc<DeviceCore>,
    queue: Mutex<SharedReceiveQueue>,
    /// The number of queue pairs that use it.
    users: AtomicU32,
    closed: AtomicBool,
    _permit: Permit,
}

/// A queue pair's use of a shared receive queue. While one exists, the queue cannot be destroyed.
#[derive(Debug)]
pub(crate) struct SrqUse(Arc<SrqCore>);

impl SrqUse {
    /// The source of receives for a queue pair's engine.
    pub(crate) fn source(&self) -> Arc<dyn ReceiveSource> {
        Arc::clone(&self.0) as Arc<dyn ReceiveSource>
    }
}

impl Drop for SrqUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SrqCore {
    /// Creates a queue that `permit` counts.
    pub(crate) fn new(
        number: Srqn,
        pd: PdId,
        device: &Arc<DeviceCore>,
        queue: SharedReceiveQueue,
        permit: Permit,
    ) -> Self {
        Self {
            number,
            pd,
            device: Arc::clone(device),
            queue: Mutex::new(queue),
            users: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            _permit: permit,
        }
    }

    pub(crate) fn number(&self) -> Srqn {
        self.number
    }

    pub(crate) fn device(&self) -> &DeviceCore {
        &self.device
    }

    /// Counts a new queue pair as a user.
    pub(crate) fn claim(self: &Arc<Self>) -> Result<SrqUse> {
        // Under the lock, like the check in `close`.
        let _queue = self.open(Step::CreateQp)?;
        self.users.fetch_add(1, Ordering::Relaxed);
        Ok(SrqUse(Arc::clone(self)))
    }

    /// Locks the queue for a verb. Fails if it is destroyed.
    pub(crate) fn open(&self, step: Step) -> Result<MutexGuard<'_, SharedReceiveQueue>> {
        let queue = self.queue.lock();
        self.check_open(step)?;
        Ok(queue)
    }

    /// Destroys the queue unless queue pairs use it.
    pub(crate) fn close(&self) -> Result<()> {
        let _queue = self.queue.lock();
        let users = self.users.load(Ordering::Relaxed);
        if users > 0 {
            let cause = Cause::InUse {
                what: "shared receive queue",
                by: "queue pairs",
                count: users.into(),
            };
            return Err(Error::new(Step::ModifySrq, cause));
        }
        self.closed.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn check_open(&self, step: Step) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::new(
                step,
                Cause::NoSuchObject("shared receive queue"),
            ));
        }
        Ok(())
    }
}

impl ReceiveSource for SrqCore {
    fn pd(&self) -> PdId {
        self.pd
    }

    fn take(&self, spare: Vec<Sge>) -> Option<ReceiveEntry> {
        let (entry, limit_reached) = {
            let mut queue = self.queue.lock();
            (queue.take(spare), queue.take_limit_event())
        };
        if limit_reached {
            let event = AsyncEvent::SrqLimitReached(self.number);
            // The device counts a lost event.
            let _ = self.device.push_async_event(event);
        }
        entry
    }
}

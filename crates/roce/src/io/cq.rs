//! Completion queues.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_provider::Step;
use portolan_provider::traits::{CompChannel, Cq};
use portolan_provider::verbs::{Cqn, WorkCompletion};
use portolan_wire::Qpn;

use super::channel::{ChannelCore, SoftChannel};
use super::counters::Cell;
use super::device::{DeviceCore, SoftDevice, foreign};
use super::gauge::Permit;
use super::shared::Shared;
use crate::engine::{Completion, CompletionQueue};

/// A completion queue. Polling it when it is empty drives the device.
#[derive(Debug)]
pub struct SoftCq {
    core: Arc<CqCore>,
    device: Arc<DeviceCore>,
    shared: Arc<Shared>,
    _permit: Permit,
}

/// A completion queue as queue pairs know it.
#[derive(Debug)]
pub(super) struct CqCore {
    id: u64,
    queue: Mutex<CompletionQueue>,
    event: Option<(Arc<ChannelCore>, u64)>,
}

/// A completion queue lost a completion.
pub(super) struct Overflowed;

impl SoftCq {
    pub(super) fn new(
        device: &SoftDevice,
        cqe: u32,
        channel: Option<&Arc<dyn CompChannel>>,
        cookie: u64,
    ) -> portolan_provider::Result<Self> {
        let shared = Arc::clone(device.shared());
        let queue = CompletionQueue::new(cqe, shared.config.limits.max_cqe)?;
        let event = match channel {
            Some(channel) => Some((SoftChannel::core_of(channel)?, cookie)),
            None => None,
        };
        let permit = shared.gauges.cqs.take(Step::CreateCq)?;
        let core = CqCore {
            id: next_id(),
            queue: Mutex::new(queue),
            event,
        };
        Ok(Self {
            core: Arc::new(core),
            device: Arc::clone(device.core()),
            shared,
            _permit: permit,
        })
    }

    /// The queue behind a trait object, if it belongs to the same stack.
    pub(super) fn core_of(
        cq: &Arc<dyn Cq>,
        shared: &Arc<Shared>,
    ) -> portolan_provider::Result<Arc<CqCore>> {
        cq.as_any()
            .downcast_ref::<Self>()
            .filter(|cq| Arc::ptr_eq(&cq.shared, shared))
            .map(|cq| Arc::clone(&cq.core))
            .ok_or_else(|| foreign(Step::CreateQp, "completion queue of this device"))
    }
}

impl Cq for SoftCq {
    fn number(&self) -> Cqn {
        self.core.number()
    }

    #[inline]
    fn poll(&self, out: &mut [WorkCompletion]) -> portolan_provider::Result<usize> {
        self.shared.fork.check(Step::PollCq)?;
        let taken = self.core.lock().poll(out);
        if taken > 0 || out.is_empty() {
            return Ok(taken);
        }
        self.shared.drive();
        let (taken, is_armed) = {
            let mut queue = self.core.lock();
            (queue.poll(out), queue.is_armed())
        };
        if taken == 0 && is_armed {
            // The look after arming, which misses nothing: now the owner sleeps.
            self.shared.owed.settle(&self.shared);
            self.shared.progress.poller_leaves(&self.shared.group);
        }
        Ok(taken)
    }

    fn arm(&self, solicited_only: bool) -> portolan_provider::Result<()> {
        self.shared.fork.check(Step::PollCq)?;
        self.core.arm(solicited_only);
        // Whoever arms is about to sleep: the progress thread takes over now rather than when it
        // notices that nobody polls.
        self.shared.owed.settle(&self.shared);
        self.shared.progress.poller_leaves(&self.shared.group);
        Ok(())
    }

    fn capacity(&self) -> u32 {
        self.core.lock().capacity()
    }

    fn resize(&self, cqe: u32) -> portolan_provider::Result<()> {
        self.shared.fork.check(Step::ResizeCq)?;
        let limit = self.shared.config.limits.max_cqe;
        self.core.lock().resize(cqe, limit)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftCq {
    fn drop(&mut self) {
        // A forked child shares the descriptor with its parent, whose event it would take; and the
        // lock may have been held at the fork.
        if self.shared.fork.check(Step::PollCq).is_err() {
            return;
        }
        if let Some((channel, _)) = &self.core.event {
            channel.forget(self.core.id);
        }
        self.device.forget_cq(self.core.number());
    }
}

impl CqCore {
    /// After 2^32 of them numbers begin anew.
    pub(super) fn number(&self) -> Cqn {
        Cqn(self.id as u32)
    }

    /// Adds a completion, and raises an event if one was asked for. If the queue is full it is lost,
    /// which `lost` counts.
    ///
    /// # Errors
    /// The queue has lost a completion, this one or an earlier one.
    pub(super) fn deliver(&self, completion: &Completion, lost: &Cell) -> Result<(), Overflowed> {
        let mut queue = self.lock();
        if queue.push(completion.wc, completion.solicited).is_err() {
            lost.up();
        }
        self.notify_if_due(&mut queue);
        if queue.is_overflowed() {
            Err(Overflowed)
        } else {
            Ok(())
        }
    }

    /// Forgets the completions of a queue pair that is destroyed.
    pub(super) fn forget(&self, qpn: Qpn) {
        self.lock().forget(qpn);
    }

    fn arm(&self, solicited_only: bool) {
        let mut queue = self.lock();
        queue.arm(solicited_only);
        self.notify_if_due(&mut queue);
    }

    fn notify_if_due(&self, queue: &mut CompletionQueue) {
        if queue.take_notification()
            && let Some((channel, cookie)) = &self.event
        {
            channel.notify(self.id, *cookie);
        }
    }

    fn lock(&self) -> MutexGuard<'_, CompletionQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

//! Completion queues.

use std::any::Any;
use std::sync::Arc;

use portolan_provider::Step;
use portolan_provider::traits::{Cq, DeviceWait};
use portolan_provider::verbs::{Cqn, WorkCompletion};

use crate::engine::CompletionQueue;
use crate::io::host::Host;
use crate::io::host::completion_queue::{CqCore, CqEvent};
use crate::io::host::device::DeviceCore;
use crate::io::host::errors::foreign;
use crate::io::host::gauge::Permit;
use crate::io::host::ring_wait::RingWait;
use crate::io::polling::clock::Clock;

/// A completion queue. Polling it when it is empty drives the device.
#[derive(Debug)]
pub struct SoftCq {
    core: Arc<CqCore>,
    device: Arc<DeviceCore>,
    host: Arc<Host>,
    _permit: Permit,
}

impl SoftCq {
    pub(crate) fn new(
        host: &Arc<Host>,
        device: &Arc<DeviceCore>,
        cqe: u32,
        event: Option<CqEvent>,
        stamps: Option<Clock>,
    ) -> portolan_provider::Result<Self> {
        let queue = CompletionQueue::new(cqe, host.config.limits.max_cqe)?;
        let permit = host.gauges.cqs.take(Step::CreateCq)?;
        let core = CqCore::new(queue, event, stamps);
        if core.calls() {
            host.progress.ring_waiter().add_place();
        }
        Ok(Self {
            core,
            device: Arc::clone(device),
            host: Arc::clone(host),
            _permit: permit,
        })
    }

    /// The queue behind a trait object, if it belongs to the same stack.
    pub(crate) fn core_of(
        cq: &Arc<dyn Cq>,
        host: &Arc<Host>,
    ) -> portolan_provider::Result<Arc<CqCore>> {
        cq.as_any()
            .downcast_ref::<Self>()
            .filter(|cq| Arc::ptr_eq(&cq.host, host))
            .map(|cq| Arc::clone(&cq.core))
            .ok_or_else(|| foreign(Step::CreateQp, "completion queue of this device"))
    }

    #[cold]
    fn check_and_poll(&self, out: &mut [WorkCompletion]) -> portolan_provider::Result<usize> {
        self.host.entry.check(Step::PollCq)?;
        Ok(self.poll_checked(out))
    }

    #[inline(always)]
    fn poll_checked(&self, out: &mut [WorkCompletion]) -> usize {
        match self.core.is_quiet() && !out.is_empty() {
            true => self.poll_device(out, false),
            false => self.poll_queue(out),
        }
    }

    /// Takes completions. Drives the device if there are none.
    #[inline(never)]
    fn poll_queue(&self, out: &mut [WorkCompletion]) -> usize {
        let (taken, is_armed) = self.core.poll(out);
        match taken > 0 || out.is_empty() {
            true => taken,
            false => self.poll_device(out, is_armed),
        }
    }

    /// Drives the device, and then takes completions. The queue was empty.
    #[inline(never)]
    fn poll_device(&self, out: &mut [WorkCompletion], is_armed: bool) -> usize {
        let (taken, is_armed) = match self.host.drive(false) || is_armed {
            true => self.core.poll(out),
            false => (0, false),
        };
        if taken == 0 && self.host.progress.last_polls().is_one(is_armed) {
            self.owner_leaves(is_armed);
        }
        taken
    }

    /// The thread that has armed this queue, or another one, is about to sleep. The progress thread takes over now, and
    /// need not find out that no thread polls.
    fn owner_leaves(&self, is_armed: bool) {
        self.host.settle_deferred();
        if !(is_armed && self.is_followed_by_call()) {
            self.host.poller_leaves();
        }
    }

    /// Whether the thread is expected to wait for the rings itself, in a call for an event. Nobody else waits for them
    /// meanwhile.
    fn is_followed_by_call(&self) -> bool {
        let waiter = self.host.progress.ring_waiter();
        waiter.is_expected()
            && !waiter.rests()
            && !self.host.progress.needs_sockets()
            && waiter.has_one_place()
            && self.core.has_one_thread()
            && !self.host.copying.any()
    }
}

impl portolan_provider::sealed::Sealed for SoftCq {}

impl Cq for SoftCq {
    fn number(&self) -> Cqn {
        self.core.number()
    }

    #[inline]
    fn poll(&self, out: &mut [WorkCompletion]) -> portolan_provider::Result<usize> {
        match self.host.entry.is_plain() {
            true => Ok(self.poll_checked(out)),
            false => self.check_and_poll(out),
        }
    }

    #[inline]
    fn take(&self, out: &mut [WorkCompletion]) -> portolan_provider::Result<usize> {
        self.host.entry.check(Step::PollCq)?;
        Ok(self.core.poll(out).0)
    }

    #[inline]
    fn may_have_completions(&self) -> bool {
        !self.core.is_quiet() || self.host.entry.check(Step::PollCq).is_err()
    }

    #[inline]
    fn drive(&self) {
        if self.host.entry.check(Step::PollCq).is_ok() {
            self.host.drive_briefly();
        }
    }

    #[inline]
    fn drive_polling(&self, expects_answer: bool) {
        if self.host.entry.check(Step::PollCq).is_err() {
            return;
        }
        self.host.drive(expects_answer);
        if self.core.is_quiet() && self.host.progress.last_polls().is_one(false) {
            self.owner_leaves(false);
        }
    }

    fn wait_for_device(&self) -> Option<Box<dyn DeviceWait>> {
        self.host.entry.check(Step::PollCq).ok()?;
        let wait = RingWait::begin(&self.host)?;
        Some(Box::new(wait))
    }

    fn arm_and_poll(&self) -> portolan_provider::Result<()> {
        self.host.entry.check(Step::PollCq)?;
        self.core.arm(false);
        Ok(())
    }

    fn arm(&self, solicited_only: bool) -> portolan_provider::Result<()> {
        self.host.entry.check(Step::PollCq)?;
        self.core.arm(solicited_only);
        self.host.progress.last_polls().begin();
        self.owner_leaves(true);
        Ok(())
    }

    fn capacity(&self) -> u32 {
        self.core.capacity()
    }

    fn resize(&self, cqe: u32) -> portolan_provider::Result<()> {
        self.host.entry.check(Step::ResizeCq)?;
        let limit = self.host.config.limits.max_cqe;
        self.core.resize(cqe, limit)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftCq {
    fn drop(&mut self) {
        if self.core.calls() {
            self.host.progress.ring_waiter().remove_place();
        }
        // A forked child shares the descriptor with its parent, and would take the parent's event. Also, the lock may
        // have been held at the fork.
        if self.host.entry.check(Step::PollCq).is_err() {
            return;
        }
        self.core.forget_event();
        self.device.forget_cq(self.core.number());
    }
}

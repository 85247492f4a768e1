//! Completion channels: a descriptor that reports which completion queue has completions.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use portolan_provider::traits::{CompChannel, DeviceWait as _, SleepAt};
use portolan_provider::{Result, Step};
use portolan_threads::spin::Spin;

use crate::io::host::Host;
use crate::io::host::completion_channel::ChannelCore;
use crate::io::host::errors::foreign;
use crate::io::host::ring_wait::{Rest, RingWait};

/// A completion channel. Its descriptor is readable exactly while an event is queued.
#[derive(Debug)]
pub struct SoftChannel {
    core: Arc<ChannelCore>,
    host: Arc<Host>,
    /// If this channel's threads wait for the rings of the process themselves, until it is destroyed.
    wait: OnceLock<RingWait>,
    /// A call sleeps, or has slept, at the descriptor.
    sleeps_at_descriptor: AtomicBool,
    /// Turns of a call that have driven the device without an event.
    turns: AtomicU32,
    /// How long a call polls before it sleeps.
    spin: Spin,
}

/// How often a call drives the device while more and more arrives, but no event. After that, it sleeps: it must end by a
/// signal.
const TURNS_MAX: u32 = 8;
/// How often a call polls before it sleeps, also on a slow machine.
const POLLS_MIN: u32 = 128;

impl SoftChannel {
    pub(crate) fn new(host: Arc<Host>) -> Result<Self> {
        let core = Arc::new(ChannelCore::new()?);
        host.progress.ring_waiter().add_place();
        Ok(Self {
            core,
            host,
            wait: OnceLock::new(),
            sleeps_at_descriptor: AtomicBool::new(false),
            turns: AtomicU32::new(0),
            spin: Spin::at_least(POLLS_MIN),
        })
    }

    /// The wait for the rings, if no other channel or stream has it.
    fn wait(&self) -> Option<&RingWait> {
        if self.wait.get().is_none() {
            let begun = RingWait::begin(&self.host)?;
            // A process has one waiter, so no other thread has set it.
            let _ = self.wait.set(begun);
        }
        self.wait.get()
    }

    /// A call ends with an event.
    fn was_taken(&self) {
        self.turns.store(0, Ordering::Relaxed);
        self.sleeps_at_descriptor.store(false, Ordering::Relaxed);
    }

    /// An event was there when the program called for it. If it need not wait elsewhere, it can wait for the rings itself.
    fn was_there(&self) {
        let progress = &self.host.progress;
        let has_slept = self.sleeps_at_descriptor.load(Ordering::Relaxed);
        if !has_slept && !progress.needs_sockets() && progress.ring_waiter().has_one_place() {
            progress.ring_waiter().find();
        }
    }

    /// Polls for an event for a short time, because to wake a thread takes several times as long as a message through a
    /// ring. Nobody rings for what arrives meanwhile.
    fn poll(&self) -> Option<u64> {
        if self.host.progress.needs_sockets() || self.host.copying.any() {
            return None;
        }
        let mut polling = self.spin.start();
        if !self.spin.goes_on(&mut polling) {
            return None;
        }
        loop {
            let taken = self.core.take_after(|| self.host.drive_briefly());
            if taken.is_some() {
                self.was_taken();
                self.host.progress.ring_waiter().expect();
                self.host.make_way(true);
                return taken;
            }
            if !self.spin.goes_on(&mut polling) {
                return None;
            }
            // Not while the channel is quiet. The next turn looks for the answer before it judges the time: a thread
            // that shares this processor may have sent it meanwhile.
            self.host.make_way(false);
            std::hint::spin_loop();
        }
    }

    /// The channel behind a trait object.
    pub(crate) fn core_of(channel: &Arc<dyn CompChannel>) -> Result<Arc<ChannelCore>> {
        let channel = channel.as_any().downcast_ref::<Self>();
        channel
            .map(|channel| Arc::clone(&channel.core))
            .ok_or_else(|| foreign(Step::CreateCq, "completion channel of this device"))
    }
}

impl portolan_provider::sealed::Sealed for SoftChannel {}

impl CompChannel for SoftChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.as_fd()
    }

    fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.core.descriptor()
    }

    fn take_event(&self) -> Result<Option<u64>> {
        // A forked child shares the descriptor with its parent, and would take the parent's event.
        self.host.entry.check(Step::PollCq)?;
        let event = match self.wait.get() {
            // This thread has slept in the place of the progress thread, so it does its work.
            Some(wait) if self.core.end_sleep() => self.core.take_after(|| wait.drive()),
            wait => {
                let event = self.core.take();
                if event.is_some() && wait.is_some() {
                    self.was_there();
                }
                event
            }
        };
        if event.is_some() {
            self.was_taken();
        }
        Ok(event)
    }

    fn sleep_at(&self) -> Result<SleepAt<'_>> {
        self.host.entry.check(Step::PollCq)?;
        let own = self.core.descriptor()?;
        let at_descriptor = || {
            self.sleeps_at_descriptor.store(true, Ordering::Relaxed);
            Ok(SleepAt::Descriptor(own))
        };
        let Some(wait) = self.wait() else {
            return at_descriptor();
        };
        // Once a call: after that it may have to end by a signal.
        if self.turns.load(Ordering::Relaxed) == 0
            && let Some(cookie) = self.poll()
        {
            return Ok(SleepAt::Event(cookie));
        }
        if !self.core.begin_sleep(&self.host) {
            self.host.settle_deferred();
            self.host.poller_leaves();
            return at_descriptor();
        }
        let rest = match wait.rest_in_call() {
            Rest::Busy if self.turns.fetch_add(1, Ordering::Relaxed) < TURNS_MAX => {
                return Ok(SleepAt::Nothing);
            }
            Rest::Busy => wait.rest_elsewhere(),
            rest => rest,
        };
        self.turns.store(0, Ordering::Relaxed);
        match rest {
            Rest::AtBell(bell) => Ok(SleepAt::Bell(bell)),
            _ => {
                self.core.end_sleep();
                at_descriptor()
            }
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftChannel {
    fn drop(&mut self) {
        self.host.progress.ring_waiter().remove_place();
        // A forked child has a copy.
        if self.host.entry.is_owner() {
            self.core.wake_sleeper();
        }
    }
}

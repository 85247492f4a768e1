//! Destroys ids and moves them to other channels; both wait for acknowledgements.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use portolan_provider::cm::UserId;
use portolan_provider::{Result, Step};

use super::queue_pair::fail;
use super::{CmId, IdShared};
use crate::cm::channel::EventChannel;
use crate::deadline;

impl CmId {
    /// Moves the id to another channel with its queued events, in order (`rdma_migrate_id(3)`).
    /// Waits at most for `timeout` until the events already taken are acknowledged. A synchronous
    /// id becomes asynchronous.
    ///
    /// # Errors
    /// The id is gone, or the channels belong to different providers. `TimedOut` if events stayed
    /// unacknowledged; the id is moved anyway.
    pub fn migrate(&self, to: &EventChannel, timeout: Duration) -> Result<()> {
        self.move_to(to)?;
        self.set_synchronous(None);
        self.counts().wait_acknowledged(Step::Event, timeout)
    }

    /// Moves it to another channel, without waiting for acknowledgements.
    pub(crate) fn move_to(&self, to: &EventChannel) -> Result<()> {
        let mut channel = self.shared.channel.lock();
        // Enroll at the new channel before events arrive there. Stay enrolled at the old one, whose
        // last event another thread may be delivering.
        let members: Vec<UserId> = self.shared.memberships.lock().keys().copied().collect();
        let names = || members.iter().copied().chain([self.shared.uid]);
        names().for_each(|uid| to.shared.enroll(uid, &self.shared));
        let moved = to
            .shared
            .channel
            .migrate_id(&*channel.channel, self.number());
        if Arc::ptr_eq(&to.shared, &channel) {
            return moved.map(|_| ());
        }
        if let Err(error) = moved {
            names().for_each(|uid| to.shared.forget(uid));
            return Err(error);
        }
        let left = std::mem::replace(&mut *channel, to.shared.clone());
        let mut former = self.shared.former.lock();
        former.retain(|known| known.strong_count() > 0 && known.as_ptr() != Arc::as_ptr(&left));
        former.push(Arc::downgrade(&left));
        Ok(())
    }

    /// Destroys the id (`rdma_destroy_id(3)`, `rdma_destroy_ep(3)`). Waits at most for `timeout`
    /// until all events taken are acknowledged. Other clones of the id fail from then on.
    ///
    /// # Errors
    /// `TimedOut` if events stayed unacknowledged; the id is destroyed anyway.
    pub fn destroy(self, timeout: Duration) -> Result<()> {
        self.shared.release()?;
        let step = Step::DestroyId;
        let deadline = deadline::after(timeout);
        self.counts().wait_acknowledged(step, timeout)?;
        for membership in self.memberships() {
            let left = deadline::left(deadline);
            membership.counts().wait_acknowledged(step, left)?;
        }
        Ok(())
    }

    /// Whether the program has destroyed it. Its queue pair fails after this is so.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.shared.released.load(Ordering::Acquire)
    }
}

impl IdShared {
    /// Destroys the id at its provider, once. The queue pair is destroyed after it, so that the
    /// peer learns of the end before its packets go unanswered. A private one is only failed: its
    /// creator still waits for its work, and destroys it.
    pub(super) fn release(&self) -> Result<()> {
        if self.released.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.close_lookup();
        let qp = self.queue_pair.lock().take();
        // Before the work is flushed, so that its waiters know the reason.
        let owner = qp.as_ref().and_then(|own| own.owner.as_ref()?.upgrade());
        if let Some(owner) = owner {
            owner.id_is_destroyed();
        }
        let channel = self.channel.lock().clone();
        self.forget(self.uid);
        self.memberships
            .lock()
            .keys()
            .for_each(|uid| self.forget(*uid));
        let destroyed = channel.channel.destroy_id(self.number);
        match qp {
            Some(own) if own.is_private => fail(&*own.qp),
            Some(own) => own.qp.destroy()?,
            None => {}
        }
        destroyed.map(|_| ())
    }

    /// Ends the delivery of events with a number, on all channels.
    pub(super) fn forget(&self, uid: UserId) {
        self.channel.lock().forget(uid);
        let former = self.former.lock();
        let former = former.iter().filter_map(Weak::upgrade);
        former.for_each(|channel| channel.forget(uid));
    }
}

//! The end of an id, and its move to another channel: both wait for acknowledgements.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_provider::cm::UserId;
use portolan_provider::{Result, Step};

use super::{CmId, IdShared};
use crate::cm::channel::EventChannel;
use crate::{deadline, lock};

impl CmId {
    /// Moves the id to another channel with its queued events, in their order (`rdma_migrate_id(3)`),
    /// and waits until those that were taken before are acknowledged, for `timeout` at most. A
    /// synchronous id is none any more.
    ///
    /// # Errors
    /// The id is gone, or the channels belong to different providers; `TimedOut` when events stayed
    /// unacknowledged: the id is moved all the same.
    pub fn migrate(&self, to: &EventChannel, timeout: Duration) -> Result<()> {
        self.move_to(to)?;
        self.set_synchronous(None);
        self.counts().wait_acknowledged(Step::Event, timeout)
    }

    fn move_to(&self, to: &EventChannel) -> Result<()> {
        let mut channel = lock(&self.shared.channel);
        // With the new channel before events come there; with the old one until none come there.
        let members: Vec<UserId> = lock(&self.shared.memberships).keys().copied().collect();
        let names = || members.iter().copied().chain([self.shared.uid]);
        names().for_each(|uid| to.shared.enroll(uid, &self.shared));
        let moved = to
            .shared
            .channel
            .migrate_id(&*channel.channel, self.number());
        let left = match &moved {
            Ok(_) => std::mem::replace(&mut *channel, to.shared.clone()),
            Err(_) => to.shared.clone(),
        };
        if !Arc::ptr_eq(&left, &channel) {
            names().for_each(|uid| left.forget(uid));
        }
        moved.map(|_| ())
    }

    /// Destroys the id (`rdma_destroy_id(3)`, `rdma_destroy_ep(3)`): waits until every event of it that
    /// was taken is acknowledged, for `timeout` at most. Other clones find the id gone.
    ///
    /// # Errors
    /// `TimedOut` when events stayed unacknowledged; the id is destroyed all the same.
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
}

impl IdShared {
    /// Takes the id from its provider, once. Its queue pair goes after it, so that the peer of a
    /// connection hears of the end before its packets go unanswered.
    pub(super) fn release(&self) -> Result<()> {
        if self.released.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.close_lookup();
        let qp = lock(&self.queue_pair).take();
        let channel = lock(&self.channel).clone();
        channel.forget(self.uid);
        lock(&self.memberships)
            .keys()
            .for_each(|uid| channel.forget(*uid));
        let destroyed = channel.channel.destroy_id(self.number);
        if let Some(own) = qp {
            own.qp.destroy()?;
        }
        destroyed.map(|_| ())
    }
}

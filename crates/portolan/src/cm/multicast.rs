//! Joining and leaving multicast groups (`rdma_join_multicast(3)`).

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portolan_provider::cm::{EventType, JoinKind, UserId};
use portolan_provider::{Cause, Error, Result, Step};

use super::id::{CmId, next_uid};
use super::membership::{Held, Membership};

impl CmId {
    /// Starts to join a multicast group (`rdma_join_multicast_ex(3)`); ends in `MulticastJoin` or
    /// `MulticastError`, which carry the membership. After `MulticastJoin` the id's queue pair
    /// receives the group's datagrams, unless the id joined only to send.
    ///
    /// # Errors
    /// The id is not for datagrams or not bound to a device, or the group cannot be joined; no
    /// event follows.
    pub fn join_multicast(
        &self,
        group: IpAddr,
        kind: JoinKind,
        context: u64,
    ) -> Result<Membership> {
        let uid = next_uid();
        let membership = Membership::new(group, kind, context);
        let held = Held {
            membership: membership.clone(),
            number: None,
        };
        // Insert it before the provider joins: another thread may take its event at once.
        self.shared.memberships.lock().insert(uid, held);
        self.enroll(uid);
        let joined =
            self.channel()
                .join_multicast(self.number(), uid, SocketAddr::new(group, 0), kind);
        match joined {
            Ok(number) => {
                if let Some(held) = self.shared.memberships.lock().get_mut(&uid) {
                    held.number = Some(number);
                }
            }
            Err(error) => {
                self.forget_membership(uid);
                return Err(error);
            }
        }
        let ends = [EventType::MulticastJoin, EventType::MulticastError];
        self.complete(Step::JoinMulticast, &ends)?;
        Ok(membership)
    }

    /// Leaves a group (`rdma_leave_multicast(3)`). Waits at most for `timeout` until the
    /// membership's taken events are acknowledged. If the group has several memberships, this ends
    /// one.
    ///
    /// # Errors
    /// `NotJoined`. `TimedOut` if events stayed unacknowledged; the group is left anyway.
    pub fn leave_multicast(&self, group: IpAddr, timeout: Duration) -> Result<()> {
        let found = {
            let memberships = self.shared.memberships.lock();
            let mut all = memberships.iter();
            all.find(|(_, held)| held.membership.group() == group)
                .and_then(|(uid, held)| Some((*uid, held.membership.clone(), held.number?)))
        };
        let step = Step::LeaveMulticast;
        let missing = || self.explain(Error::new(step, Cause::NotJoined(group)));
        let (uid, membership, number) = found.ok_or_else(missing)?;
        self.channel().leave_multicast(self.number(), number)?;
        self.forget_membership(uid);
        self.detach(&membership)?;
        membership.counts().wait_acknowledged(step, timeout)
    }

    /// The memberships, in no particular order.
    pub fn memberships(&self) -> Vec<Membership> {
        let memberships = self.shared.memberships.lock();
        let held = memberships.values();
        held.map(|held| held.membership.clone()).collect()
    }

    pub(super) fn membership(&self, uid: UserId) -> Option<Membership> {
        let memberships = self.shared.memberships.lock();
        memberships.get(&uid).map(|held| held.membership.clone())
    }

    /// Detaches the queue pair from the group, unless another membership still needs it.
    fn detach(&self, membership: &Membership) -> Result<()> {
        let group = membership.group();
        let mut others = self.memberships().into_iter();
        if others.any(|other| other.group() == group && other.is_attached()) {
            return Ok(());
        }
        membership.detach()
    }

    fn forget_membership(&self, uid: UserId) {
        self.disenroll(uid);
        self.shared.memberships.lock().remove(&uid);
    }
}

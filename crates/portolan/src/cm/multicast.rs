//! Multicast groups that an id belongs to (`rdma_join_multicast(3)`).

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portolan_provider::address::ip_to_gid;
use portolan_provider::cm::{EventType, JoinKind, MembershipNumber, UserId};
use portolan_provider::traits::Qp;
use portolan_provider::{Cause, Error, Result, Step};

use super::counts::Counts;
use super::id::{CmId, next_uid};
use crate::lock;

/// An id's membership of a multicast group. It ends with [`CmId::leave_multicast`] or with the id, not
/// when it is dropped.
#[derive(Clone, Debug)]
pub struct Membership {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    group: IpAddr,
    kind: JoinKind,
    context: u64,
    counts: Arc<Counts>,
    /// The queue pair that receives what is sent to the group.
    attached: Mutex<Option<Arc<dyn Qp>>>,
}

/// A membership with the provider's number, as the id keeps it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) membership: Membership,
    number: Option<MembershipNumber>,
}

impl Membership {
    /// The group's address.
    pub fn group(&self) -> IpAddr {
        self.shared.group
    }

    /// To send and receive, or only to send.
    pub fn kind(&self) -> JoinKind {
        self.shared.kind
    }

    /// The owner's name for it, as it was given when joining (`context`; in C the events' private
    /// data).
    pub fn context(&self) -> u64 {
        self.shared.context
    }

    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.shared.counts
    }

    /// Has the id's queue pair receive what is sent to the group, unless it only sends.
    pub(super) fn attach(&self, id: &CmId) -> Result<()> {
        let qp = match self.kind() {
            JoinKind::FullMember => id.queue_pair(),
            JoinKind::SendOnlyFullMember => None,
        };
        if let Some(qp) = qp {
            qp.attach_mcast(&ip_to_gid(self.group()))?;
            *lock(&self.shared.attached) = Some(qp);
        }
        Ok(())
    }

    fn is_attached(&self) -> bool {
        lock(&self.shared.attached).is_some()
    }
}

impl CmId {
    /// Starts to join a multicast group (`rdma_join_multicast_ex(3)`): `MulticastJoin` or
    /// `MulticastError`, with the membership. Upon the former the id's queue pair receives what is sent
    /// to the group, unless the id joined only to send.
    ///
    /// # Errors
    /// The id is not for datagrams, not bound to a device, or the group is none that can be joined; no
    /// event comes then.
    pub fn join_multicast(
        &self,
        group: IpAddr,
        kind: JoinKind,
        context: u64,
    ) -> Result<Membership> {
        let uid = next_uid();
        let shared = Shared {
            group,
            kind,
            context,
            counts: Arc::default(),
            attached: Mutex::default(),
        };
        let membership = Membership {
            shared: Arc::new(shared),
        };
        let held = Held {
            membership: membership.clone(),
            number: None,
        };
        // Known before the provider is: its event may be taken by another thread at once.
        lock(&self.shared.memberships).insert(uid, held);
        self.enroll(uid);
        let joined =
            self.channel()
                .join_multicast(self.number(), uid, SocketAddr::new(group, 0), kind);
        match joined {
            Ok(number) => {
                if let Some(held) = lock(&self.shared.memberships).get_mut(&uid) {
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

    /// Leaves a group (`rdma_leave_multicast(3)`), and waits until the events of the membership that
    /// were taken are acknowledged, for `timeout` at most. Of several memberships of one group it ends
    /// one.
    ///
    /// # Errors
    /// `NotJoined`; `TimedOut` when events stayed unacknowledged: the group is left all the same.
    pub fn leave_multicast(&self, group: IpAddr, timeout: Duration) -> Result<()> {
        let found = {
            let memberships = lock(&self.shared.memberships);
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

    /// The memberships, in no order.
    pub fn memberships(&self) -> Vec<Membership> {
        let memberships = lock(&self.shared.memberships);
        let held = memberships.values();
        held.map(|held| held.membership.clone()).collect()
    }

    pub(super) fn membership(&self, uid: UserId) -> Option<Membership> {
        let memberships = lock(&self.shared.memberships);
        memberships.get(&uid).map(|held| held.membership.clone())
    }

    /// Has the queue pair receive no more of the group, unless it does so for another membership.
    fn detach(&self, membership: &Membership) -> Result<()> {
        let group = membership.group();
        let mut others = self.memberships().into_iter();
        if others.any(|other| other.group() == group && other.is_attached()) {
            return Ok(());
        }
        match lock(&membership.shared.attached).take() {
            Some(qp) => qp.detach_mcast(&ip_to_gid(group)),
            None => Ok(()),
        }
    }

    fn forget_membership(&self, uid: UserId) {
        self.disenroll(uid);
        lock(&self.shared.memberships).remove(&uid);
    }
}

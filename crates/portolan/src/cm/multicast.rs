//! An id's multicast memberships (`rdma_join_multicast(3)`).

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

/// An id's membership of a multicast group. It ends with [`CmId::leave_multicast`] or with the id;
/// dropping this value does not end it.
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
    /// The queue pair that receives the group's datagrams.
    attached: Mutex<Option<Arc<dyn Qp>>>,
}

/// A membership with the provider's number, as stored in the id.
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

    /// Whether the membership sends and receives or only sends.
    pub fn kind(&self) -> JoinKind {
        self.shared.kind
    }

    /// The caller's context from joining (`context`; in C the events' private data).
    pub fn context(&self) -> u64 {
        self.shared.context
    }

    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.shared.counts
    }

    /// Attaches the id's queue pair to the group, unless the membership only sends.
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
    /// Starts to join a multicast group (`rdma_join_multicast_ex(3)`); ends in `MulticastJoin` or
    /// `MulticastError`, which carry the membership. After `MulticastJoin` the id's queue pair
    /// receives the group's datagrams, unless the id joined only to send.
    ///
    /// # Errors
    /// The id is not for datagrams or not bound to a device, or the group cannot be joined; no
    /// event follows.
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
        // Insert it before the provider joins: another thread may take its event at once.
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

    /// Leaves a group (`rdma_leave_multicast(3)`). Waits at most for `timeout` until the
    /// membership's taken events are acknowledged. If the group has several memberships, this ends
    /// one.
    ///
    /// # Errors
    /// `NotJoined`. `TimedOut` if events stayed unacknowledged; the group is left anyway.
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

    /// The memberships, in no particular order.
    pub fn memberships(&self) -> Vec<Membership> {
        let memberships = lock(&self.shared.memberships);
        let held = memberships.values();
        held.map(|held| held.membership.clone()).collect()
    }

    pub(super) fn membership(&self, uid: UserId) -> Option<Membership> {
        let memberships = lock(&self.shared.memberships);
        memberships.get(&uid).map(|held| held.membership.clone())
    }

    /// Detaches the queue pair from the group, unless another membership still needs it.
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

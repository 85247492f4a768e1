//! Multicast groups: the memberships of ids, and the host's joins and leaves for them. A RoCE group is an IP group: the
//! host joins it on the interface, by IGMP or MLD.

use alloc::collections::VecDeque;
use core::net::IpAddr;
use core::time::Duration;

use portolan_provider::cm::{EventParam, EventType, IdNumber, JoinKind, UdParam, UserId};
use portolan_provider::error::errno::ENODEV;
use portolan_provider::error::{Cause, Error, Result, Step};
use portolan_provider::verbs::{AhAttr, QpType};
use portolan_wire::{Gid, QKey, Qpn};

use crate::engine::Cm;
use crate::hash::{Keyed, Map};
use crate::mutant::{Mutant, is_planted};
use crate::sidr::param_without_queue_pair;
use crate::state::Event;
use crate::types::{GroupQuery, Membership, MembershipNumber};

/// Hop limit of packets to a group (`IPV6_DEFAULT_HOPLIMIT`, which Linux uses for IPv4 too).
const GROUP_HOP_LIMIT: u8 = 64;

/// The memberships of all ids.
#[derive(Debug)]
pub(crate) struct Groups {
    next: u64,
    members: Map<MembershipNumber, Member>,
    queries: VecDeque<GroupQuery>,
}

#[derive(Debug)]
struct Member {
    membership: Membership,
    /// The owner's tag.
    uid: UserId,
    progress: Progress,
}

/// The state of a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The query is queued.
    Waiting,
    /// The query was taken and not answered yet.
    Asked,
    /// The host is a member and must leave later.
    Joined,
    /// The host could not join, or lost its membership.
    Failed,
}

impl Groups {
    pub(crate) fn new(hash: Keyed) -> Self {
        Self {
            next: 0,
            members: Map::with_hasher(hash),
            queries: VecDeque::new(),
        }
    }

    /// Number of memberships.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether the membership exists.
    pub(crate) fn contains(&self, number: MembershipNumber) -> bool {
        self.members.contains_key(&number)
    }

    /// Ends a membership; the host leaves if it was asked to join.
    fn remove(&mut self, number: MembershipNumber) {
        let Some(member) = self.members.remove(&number) else {
            return;
        };
        let is_told = match member.progress {
            Progress::Asked => !is_planted(Mutant::JoinNotTakenBack),
            Progress::Joined => true,
            Progress::Waiting | Progress::Failed => false,
        };
        if is_told {
            self.queries.push_back(GroupQuery::Leave(member.membership));
        }
    }
}

impl Cm {
    /// Joins a group (`rdma_join_multicast`). A [`GroupQuery::Join`] follows, and finally `MulticastJoin` or
    /// `MulticastError` with the tag `uid`. On the event, the owner attaches its queue pair to the group, unless it
    /// only sends. A group may be joined more than once; each membership is separate.
    ///
    /// # Errors
    /// `InvalidState` unless the id is bound to a device and its route is not resolved yet; `InvalidArgument` for an id
    /// that is not for datagrams, an address that is not a group, and a group of another IP version than the id's address;
    /// `NoSuchObject`, `LimitReached`. Linux cannot join IPv6 groups on RoCEv2.
    pub fn join(
        &mut self,
        _now: Duration,
        id: IdNumber,
        uid: UserId,
        group: IpAddr,
        kind: JoinKind,
    ) -> Result<MembershipNumber> {
        let step = Step::JoinMulticast;
        let limit = self.config.max_memberships as usize;
        let (members, waiting) = (self.groups.len(), self.groups.queries.len());
        let number = id;
        let id = self.ids.find_mut(id, step)?;
        id.command(Event::Join, step)?;
        let (Some(device), Some(local)) = (id.device, id.local) else {
            let (expected, found) = ("an id bound to a device", id.state.name());
            return Err(id.fail(step, Cause::InvalidState { expected, found }));
        };
        if id.service.qp_type != QpType::Ud {
            let found = id.service.qp_type;
            return Err(id.locate(Error::invalid(step, "queue pair type", "UD", found)));
        }
        let group = check_group(group, local.ip()).map_err(|error| id.locate(error))?;
        // Obsolete queries may still be queued, too.
        for (what, count, limit) in [
            ("multicast memberships", members, limit),
            ("group queries waiting to be taken", waiting, limit * 2),
        ] {
            if count >= limit {
                let limit = limit as u64;
                return Err(id.fail(step, Cause::LimitReached { what, limit }));
            }
        }
        let membership = Membership {
            number: MembershipNumber(self.groups.next),
            id: number,
            device,
            local: local.ip(),
            group,
            mgid: Gid::from(group),
            kind,
        };
        self.groups.next += 1;
        id.memberships.insert(membership.number);
        let member = Member {
            membership,
            uid,
            progress: Progress::Waiting,
        };
        self.groups.members.insert(membership.number, member);
        self.groups.queries.push_back(GroupQuery::Join(membership));
        Ok(membership.number)
    }

    /// Answers a [`GroupQuery::Join`]; an error is a positive errno. An answer for a membership that already ended has
    /// no effect: a [`GroupQuery::Leave`] was queued for it.
    ///
    /// # Errors
    /// `LimitReached`, after which the answer may be given again.
    pub fn group_joined(
        &mut self,
        now: Duration,
        membership: MembershipNumber,
        answer: core::result::Result<(), i32>,
    ) -> Result<()> {
        self.begin_report(now, Step::JoinMulticast)?;
        let member = self.groups.members.get_mut(&membership);
        let Some(member) = member.filter(|member| member.progress == Progress::Asked) else {
            return Ok(());
        };
        let (uid, joined) = (member.uid, member.membership);
        // `cma_make_mc_event`.
        let (progress, event, status, param) = match answer {
            Ok(()) => {
                let qkey = self.ids.get(joined.id).and_then(|id| id.qkey);
                let param = group_param(&joined, qkey.unwrap_or(QKey::RDMA_CM));
                (Progress::Joined, EventType::MulticastJoin, 0, param)
            }
            Err(errno) => {
                let param = param_without_queue_pair(&[]);
                let status = -errno.abs();
                (Progress::Failed, EventType::MulticastError, status, param)
            }
        };
        member.progress = progress;
        self.report_membership(&joined, uid, event, status, param);
        Ok(())
    }

    /// Leaves a group (`rdma_leave_multicast`). Discards events of the membership that were not taken.
    ///
    /// # Errors
    /// `NoSuchObject` for a membership that is not the id's.
    pub fn leave(
        &mut self,
        _now: Duration,
        id: IdNumber,
        membership: MembershipNumber,
    ) -> Result<()> {
        let step = Step::LeaveMulticast;
        let id = self.ids.find_mut(id, step)?;
        if !id.memberships.remove(&membership) {
            return Err(id.fail(step, Cause::NoSuchObject("multicast membership")));
        }
        self.groups.remove(membership);
        Ok(())
    }

    /// Takes the next query about groups. [`Cm::poll_query`] does not return these, because sockets answer them, not
    /// tables. A join that was cancelled before it was taken is skipped, and so is its leave.
    pub fn poll_group_query(&mut self) -> Option<GroupQuery> {
        while let Some(query) = self.groups.queries.pop_front() {
            let GroupQuery::Join(membership) = query else {
                return Some(query);
            };
            if let Some(member) = self.groups.members.get_mut(&membership.number) {
                member.progress = Progress::Asked;
                return Some(query);
            }
        }
        None
    }

    /// Reports `MulticastError` for each joined group of an id whose device was removed, because packets of the group
    /// can no longer arrive. The host leaves the groups. A membership whose join is pending gets its event with the
    /// host's answer.
    pub(crate) fn lose_groups(&mut self, number: IdNumber) {
        let memberships = self.ids.get(number).map(|id| id.memberships.clone());
        for membership in memberships.into_iter().flatten() {
            let member = self.groups.members.get_mut(&membership);
            let Some(member) = member.filter(|member| member.progress == Progress::Joined) else {
                continue;
            };
            member.progress = Progress::Failed;
            let (uid, lost) = (member.uid, member.membership);
            self.groups.queries.push_back(GroupQuery::Leave(lost));
            let param = param_without_queue_pair(&[]);
            self.report_membership(&lost, uid, EventType::MulticastError, -ENODEV, param);
        }
    }

    /// Leaves all groups of an id that is being destroyed (`destroy_mc`).
    pub(crate) fn leave_all(&mut self, number: IdNumber) {
        if is_planted(Mutant::MembershipsLeak) {
            return;
        }
        let Some(id) = self.ids.get_mut(number) else {
            return;
        };
        for membership in core::mem::take(&mut id.memberships) {
            self.groups.remove(membership);
        }
    }
}

/// Checks that the address is a group that datagrams from `local` can reach.
fn check_group(group: IpAddr, local: IpAddr) -> Result<IpAddr> {
    let step = Step::JoinMulticast;
    let group = group.to_canonical();
    if !group.is_multicast() {
        let expected = "the address of a multicast group";
        return Err(Error::invalid(step, "group", expected, group));
    }
    match (group, local.to_canonical()) {
        (IpAddr::V6(_), IpAddr::V4(_)) => {
            let expected = "an IPv4 group, because the id's address is IPv4";
            Err(Error::invalid(step, "group", expected, group))
        }
        (IpAddr::V4(_), IpAddr::V6(_)) => {
            let expected = "an IPv6 group, because the id's address is IPv6";
            Err(Error::invalid(step, "group", expected, group))
        }
        _ => Ok(group),
    }
}

/// The parameters for sending to the group (`ib_init_ah_from_mcmember`).
fn group_param(membership: &Membership, qkey: QKey) -> EventParam {
    EventParam::Ud(UdParam {
        private_data: [].into(),
        ah_attr: AhAttr {
            dgid: membership.mgid,
            sgid_index: membership.device.sgid_index,
            flow_label: 0,
            hop_limit: GROUP_HOP_LIMIT,
            traffic_class: 0,
            sl: 0,
            port_num: membership.device.port_num,
            local_route: None,
        },
        qp_num: Qpn::MULTICAST,
        qkey,
    })
}

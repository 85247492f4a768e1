//! Multicast groups: memberships of ids, and joining on the host's interfaces.

use std::net::IpAddr;

use portolan_addrinfo::route;
use portolan_cm::{GroupQuery, Membership};
use portolan_provider::cm::{IdNumber, JoinKind, MembershipNumber, UserId};
use portolan_provider::traits::Device;
use portolan_provider::{Cause, Error, Result, Step};

use super::core::Core;
use super::state::{Member, is_of_group};

impl Core {
    pub(super) fn join(
        &self,
        id: IdNumber,
        uid: UserId,
        group: IpAddr,
        kind: JoinKind,
    ) -> Result<MembershipNumber> {
        self.run_state(|state, now| {
            let number = state.cm.join(now, id, uid, group, kind)?;
            // Register it before the engine's question is answered: the answer emits an event at once.
            let member = Member { uid, reported: 0 };
            let entry = state.entry_mut(id, Step::JoinMulticast)?;
            entry.members.insert(number, member);
            Ok(number)
        })
    }

    /// Leaves the group. Returns the number of the membership's events that were taken.
    pub(super) fn leave(&self, id: IdNumber, membership: MembershipNumber) -> Result<u32> {
        let (member, queue) = self.run_state(|state, now| {
            state.cm.leave(now, id, membership)?;
            let entry = state.entry_mut(id, Step::LeaveMulticast)?;
            let missing = Error::new(
                Step::LeaveMulticast,
                Cause::NoSuchObject("multicast membership"),
            );
            let member = entry.members.remove(&membership).ok_or(missing)?;
            Ok((member, entry.queue.clone()))
        })?;
        queue
            .extract(|event| is_of_group(event.event) && event.id == id && event.uid == member.uid);
        Ok(member.reported)
    }

    /// Executes the engine's request to join or leave.
    pub(super) fn answer_group_query(&self, query: GroupQuery) {
        let membership = match query {
            GroupQuery::Join(membership) => membership,
            GroupQuery::Leave(membership) => return leave_host(self, membership.number),
        };
        let number = membership.number;
        let answer = match join_host(self, &membership) {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::debug!(%error, group = %membership.group, "group not joined");
                Err(error.errno())
            }
        };
        let told = self.run_state(|state, now| {
            state.cm.group_joined(now, number, answer)?;
            let entry = state.entry(membership.id, Step::JoinMulticast);
            Ok(entry.is_ok_and(|entry| entry.members.contains_key(&number)))
        });
        // The id left while the group was being joined, possibly before there was something to leave.
        match told {
            Ok(true) => {}
            Ok(false) => leave_host(self, number),
            Err(error) => tracing::warn!(%error, "a multicast join cannot be answered"),
        }
    }
}

/// Makes the interface receive the group, unless the member only sends.
///
/// Linux can join an IPv6 group to which it cannot send: the loopback interface has no multicast route by default.
fn join_host(core: &Core, membership: &Membership) -> Result<()> {
    if membership.kind == JoinKind::SendOnlyFullMember && membership.group.is_ipv4() {
        return Ok(());
    }
    let (device, _) = core
        .stack()
        .device_of(membership.local, membership.device.device_index)
        .ok_or_else(|| Error::new(Step::JoinMulticast, core.no_device(membership.local)))?;
    if membership.group.is_ipv6() {
        let way = route::Query {
            destination: membership.group,
            interface_index: Some(device.interface_index()),
            source: Some(membership.local),
        };
        route::lookup(&way).map_err(|cause| Error::new(Step::JoinMulticast, cause))?;
    }
    if membership.kind == JoinKind::SendOnlyFullMember {
        return Ok(());
    }
    let joined = core.stack().join_group(&device, membership.group)?;
    core.groups.lock().insert(membership.number, joined);
    Ok(())
}

fn leave_host(core: &Core, number: MembershipNumber) {
    let joined = core.groups.lock().remove(&number);
    // Dropping it closes a socket, so do it without the lock.
    drop(joined);
}

//! Memberships of multicast groups.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use portolan_abi_layout::pointers::In;
use portolan_kernel::raw::{CreateIdResp, DestroyId, EventsReported, Fields, JoinMcast, number};
use rustix::io::Errno;

use crate::address::SocketAddress;
use crate::event;
use crate::guard::{Result, check};
use crate::id::{self, Id, get};
use crate::layout::{JoinMcAttr, UdParam};
use crate::membership::Membership;
use crate::sync::{Left, begun};
use crate::verbs::verbs;

/// Bits of `enum rdma_cm_join_mc_attr_mask`.
const ATTR_ADDRESS: u32 = 1;
const ATTR_JOIN_FLAGS: u32 = 2;
const ATTRS_KNOWN: u32 = ATTR_ADDRESS | ATTR_JOIN_FLAGS;
/// `RDMA_MC_JOIN_FLAG_FULLMEMBER`.
const FULL_MEMBER: u32 = 0;
/// `RDMA_MC_JOIN_FLAG_RESERVED`: the first that is none.
const FLAGS_END: u32 = 2;

/// `rdma_join_multicast`.
///
/// # Errors
/// Those of the address and the kernel's.
pub(crate) fn join(id: &Id, group: SocketAddress, context: *mut c_void) -> Result<Left> {
    join_as(id, group, FULL_MEMBER, context)
}

/// `rdma_join_multicast_ex`.
///
/// # Errors
/// `EOPNOTSUPP` for attributes that are not known; `EINVAL` for those missing or without meaning.
pub(crate) fn join_with(id: &Id, attr: In<JoinMcAttr>, context: *mut c_void) -> Result<Left> {
    let attr = attr.required()?;
    if attr.comp_mask & !ATTRS_KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if attr.comp_mask != ATTRS_KNOWN || attr.join_flags >= FLAGS_END {
        return Err(Errno::INVAL);
    }
    // SAFETY: attributes that are whole have an address that is (`In`).
    let group = unsafe { SocketAddress::new(attr.addr) };
    join_as(id, group, attr.join_flags, context)
}

fn join_as(id: &Id, addr: SocketAddress, flags: u32, context: *mut c_void) -> Result<Left> {
    let (group, addr_size) = addr.required()?;
    let commands = id.commands()?;
    let membership = Membership::new(id::new_uid(), context, group, flags);
    let membership = Arc::new(membership);
    // Before the command: its event may be taken at once.
    id.state().memberships.push(membership.clone());
    id::enlist_membership(id, &membership);
    let join = JoinMcast {
        response: 0,
        uid: membership.uid,
        id: id.handle(),
        addr_size,
        join_flags: flags as u16,
        addr: group,
    };
    begun(id, |_| {
        let asked = commands.ask(number::JOIN_MCAST, join, &CreateIdResp::zeroed());
        match &asked {
            Ok(answer) => membership.set_handle(answer.id),
            Err(_) => {
                take_from_id(id, |each| each.uid == membership.uid);
                id::strike_membership(&membership);
            }
        }
        asked.map(drop)
    })
}

/// `rdma_leave_multicast`: waits until the membership's events are acknowledged.
///
/// # Errors
/// `EADDRNOTAVAIL` if the id is no member, or its join is not yet on its way; the kernel's.
pub(crate) fn leave(id: &Id, group: SocketAddress) -> Result<()> {
    let (group, _) = group.required()?;
    let membership = take_from_id(id, |each| each.is_of(&group)).ok_or(Errno::ADDRNOTAVAIL)?;
    detach(id, &membership);
    if id.is_sync() {
        // It may be the membership's; nothing else would acknowledge it.
        event::drop_kept(id);
    }
    let leave = DestroyId {
        id: membership.handle(),
        ..DestroyId::zeroed()
    };
    let commands = id.commands()?;
    let answer = commands.ask(number::LEAVE_MCAST, leave, &EventsReported::zeroed());
    // Its name stays until then: events that are taken meanwhile count for it.
    if let Ok(answer) = &answer {
        let reported = answer.events_reported;
        id.wait_completed(|_| membership.events_completed.load(Ordering::Relaxed) >= reported);
    }
    // The event that attaches may have been taken meanwhile.
    detach(id, &membership);
    id::strike_membership(&membership);
    answer.map(drop)
}

/// Forgets all memberships of an id that goes.
pub(crate) fn forget_all(id: &Id) {
    while let Some(membership) = take_from_id(id, |_| true) {
        id::strike_membership(&membership);
    }
}

fn take_from_id(id: &Id, is_it: impl Fn(&Membership) -> bool) -> Option<Arc<Membership>> {
    let mut state = id.state();
    let at = state.memberships.iter().position(|each| is_it(each))?;
    Some(state.memberships.remove(at))
}

/// The group is joined: the queue pair gets its packets, unless it only sends.
///
/// # Errors
/// The verb's.
pub(crate) fn joined(id: &Id, membership: &Membership, param: &UdParam) -> Result<()> {
    let qp = get!(id, qp);
    if qp.is_null() || membership.join_flags != FULL_MEMBER {
        return Ok(());
    }
    let (gid, lid) = (param.ah_attr.grh.dgid, param.ah_attr.dlid);
    // SAFETY: the id's queue pair.
    check(unsafe { (verbs()?.attach_mcast)(qp, &gid, lid) })?;
    *membership.attached.lock() = Some((gid, lid));
    Ok(())
}

fn detach(id: &Id, membership: &Membership) {
    let qp = get!(id, qp);
    let attached = membership.attached.lock().take();
    if let (Some((gid, lid)), Ok(verbs), false) = (attached, verbs(), qp.is_null()) {
        // What it says is nothing to a program that leaves.
        // SAFETY: the id's queue pair, which was attached to it.
        unsafe { (verbs.detach_mcast)(qp, &gid, lid) };
    }
}

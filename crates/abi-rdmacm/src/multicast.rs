//! Joins and leaves multicast groups.

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
/// `RDMA_MC_JOIN_FLAG_RESERVED`: the first invalid flag.
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
/// `EOPNOTSUPP` for unknown attributes; `EINVAL` for missing or invalid ones.
pub(crate) fn join_with(id: &Id, attr: In<JoinMcAttr>, context: *mut c_void) -> Result<Left> {
    let attr = attr.required()?;
    if attr.comp_mask & !ATTRS_KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if attr.comp_mask != ATTRS_KNOWN || attr.join_flags >= FLAGS_END {
        return Err(Errno::INVAL);
    }
    // SAFETY: valid attributes have a valid address (`In`).
    let group = unsafe { SocketAddress::new(attr.addr) };
    join_as(id, group, attr.join_flags, context)
}

fn join_as(id: &Id, addr: SocketAddress, flags: u32, context: *mut c_void) -> Result<Left> {
    let (group, addr_size) = addr.required()?;
    let commands = id.commands()?;
    let membership = Membership::new(id::new_uid(), context, group, flags);
    let membership = Arc::new(membership);
    // Before the command, because its event may be taken at once.
    id.state().memberships.push(membership.clone());
    id::register_membership(id, &membership);
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
                id::unregister_membership(&membership);
            }
        }
        asked.map(drop)
    })
}

/// `rdma_leave_multicast`: waits until the membership's events are acknowledged.
///
/// # Errors
/// `EADDRNOTAVAIL` if the id is not a member or its join has not started; the kernel's.
pub(crate) fn leave(id: &Id, group: SocketAddress) -> Result<()> {
    let (group, _) = group.required()?;
    let membership = take_from_id(id, |each| each.is_of(&group)).ok_or(Errno::ADDRNOTAVAIL)?;
    detach(id, &membership);
    if id.is_sync() {
        // The kept event may be the membership's, and nothing else would acknowledge it.
        event::drop_kept(id);
    }
    let leave = DestroyId {
        id: membership.handle(),
        ..DestroyId::zeroed()
    };
    let commands = id.commands()?;
    let answer = commands.ask(number::LEAVE_MCAST, leave, &EventsReported::zeroed());
    // The membership stays registered until then, because events taken meanwhile count for it.
    if let Ok(answer) = &answer {
        let reported = answer.events_reported;
        id.wait_completed(|_| membership.events_completed.load(Ordering::Relaxed) >= reported);
    }
    // The event that attaches the queue pair may have been taken meanwhile.
    detach(id, &membership);
    id::unregister_membership(&membership);
    answer.map(drop)
}

/// Removes all memberships of an id that is destroyed.
pub(crate) fn forget_all(id: &Id) {
    while let Some(membership) = take_from_id(id, |_| true) {
        id::unregister_membership(&membership);
    }
}

fn take_from_id(id: &Id, is_it: impl Fn(&Membership) -> bool) -> Option<Arc<Membership>> {
    let mut state = id.state();
    let at = state.memberships.iter().position(|each| is_it(each))?;
    Some(state.memberships.remove(at))
}

/// The group is joined: attaches the queue pair to it, unless the member only sends.
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
        // Ignore errors, because the program is leaving.
        // SAFETY: the id's queue pair, which was attached to it.
        unsafe { (verbs.detach_mcast)(qp, &gid, lid) };
    }
}

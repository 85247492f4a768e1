//! Memberships of multicast groups.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use libc::sockaddr;
use portolan_kernel::raw::{CreateIdResp, DestroyId, EventsReported, Fields, JoinMcast, number};
use rustix::io::Errno;

use crate::address::{self, Storage};
use crate::event::{self, Left};
use crate::guard::{Result, check};
use crate::id::{self, Id, get};
use crate::layout::{Gid, JoinMcAttr, UdParam};
use crate::lock;
use crate::verbs::verbs;

/// Bits of `enum rdma_cm_join_mc_attr_mask`.
const ATTR_ADDRESS: u32 = 1;
const ATTR_JOIN_FLAGS: u32 = 2;
const ATTRS_KNOWN: u32 = ATTR_ADDRESS | ATTR_JOIN_FLAGS;
/// `RDMA_MC_JOIN_FLAG_FULLMEMBER`.
const FULL_MEMBER: u32 = 0;
/// `RDMA_MC_JOIN_FLAG_RESERVED`: the first that is none.
const FLAGS_END: u32 = 2;

/// A number that the kernel gives to none.
const NO_HANDLE: u32 = u32::MAX;

/// A membership of an id.
pub(crate) struct Membership {
    pub(crate) id: Id,
    /// The program's word for it.
    pub(crate) context: *mut c_void,
    /// Changed under the lock of the id's state.
    pub(crate) events_completed: AtomicU32,
    uid: u64,
    group: Storage,
    join_flags: u32,
    /// The kernel's name for it; [`NO_HANDLE`] until it has answered.
    handle: AtomicU32,
    /// To what the queue pair was attached.
    attached: Mutex<Option<(Gid, u16)>>,
}

// SAFETY: the context is only handed back to the program.
unsafe impl Send for Membership {}
// SAFETY: as above.
unsafe impl Sync for Membership {}

/// `rdma_join_multicast`.
///
/// # Errors
/// Those of the address and the kernel's.
///
/// # Safety
/// The address is null or as long as its family's.
pub(crate) unsafe fn join(id: Id, group: *const sockaddr, context: *mut c_void) -> Result<Left> {
    // SAFETY: as the caller promises.
    unsafe { join_as(id, group, FULL_MEMBER, context) }
}

/// `rdma_join_multicast_ex`.
///
/// # Errors
/// `EOPNOTSUPP` for attributes that are not known; `EINVAL` for those missing or without meaning.
///
/// # Safety
/// The attributes are null or C's structure, with an address as for [`join`].
pub(crate) unsafe fn join_with(
    id: Id,
    attr: *const JoinMcAttr,
    context: *mut c_void,
) -> Result<Left> {
    // SAFETY: as the caller promises.
    let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
    if attr.comp_mask & !ATTRS_KNOWN != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if attr.comp_mask != ATTRS_KNOWN || attr.join_flags >= FLAGS_END {
        return Err(Errno::INVAL);
    }
    // SAFETY: as the caller promises.
    unsafe { join_as(id, attr.addr, attr.join_flags, context) }
}

unsafe fn join_as(id: Id, addr: *const sockaddr, flags: u32, context: *mut c_void) -> Result<Left> {
    // SAFETY: as the caller promises.
    let (group, addr_size) = unsafe { address::read(addr) }?;
    let commands = id.commands()?;
    let uid = id::new_uid();
    let membership = Arc::new(Membership {
        id,
        context,
        events_completed: AtomicU32::new(0),
        uid,
        group,
        join_flags: flags,
        handle: AtomicU32::new(NO_HANDLE),
        attached: Mutex::new(None),
    });
    // Before the kernel is told: its event may be taken at once.
    id.state().memberships.push(membership.clone());
    id::enlist_membership(uid, &membership);
    let join = JoinMcast {
        response: 0,
        uid,
        id: id.handle(),
        addr_size,
        join_flags: flags as u16,
        addr: group,
    };
    event::begun(id, |_| {
        let asked = commands.ask(number::JOIN_MCAST, join, &CreateIdResp::zeroed());
        match &asked {
            Ok(answer) => membership.handle.store(answer.id, Ordering::Release),
            Err(_) => {
                take_from_id(id, |each| each.uid == uid);
                id::strike_membership(uid);
            }
        }
        asked.map(drop)
    })
}

/// `rdma_leave_multicast`: waits until the membership's events are acknowledged.
///
/// # Errors
/// `EADDRNOTAVAIL` if the id is no member, or its join is not yet on its way; the kernel's.
///
/// # Safety
/// The address is null or as long as its family's.
pub(crate) unsafe fn leave(id: Id, group: *const sockaddr) -> Result<()> {
    // SAFETY: as the caller promises.
    let (group, _) = unsafe { address::read(group) }?;
    let membership = take_from_id(id, |each| each.is_of(&group)).ok_or(Errno::ADDRNOTAVAIL)?;
    membership.detach();
    if id.is_sync() {
        // It may be the membership's, and nobody else would acknowledge it.
        event::drop_kept(id);
    }
    let leave = DestroyId {
        id: membership.handle.load(Ordering::Acquire),
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
    membership.detach();
    id::strike_membership(membership.uid);
    answer.map(drop)
}

/// Forgets all memberships of an id that goes.
pub(crate) fn forget_all(id: Id) {
    while let Some(membership) = take_from_id(id, |_| true) {
        id::strike_membership(membership.uid);
    }
}

fn take_from_id(id: Id, is_it: impl Fn(&Membership) -> bool) -> Option<Arc<Membership>> {
    let mut state = id.state();
    let at = state.memberships.iter().position(|each| is_it(each))?;
    Some(state.memberships.remove(at))
}

impl Membership {
    /// Whether it can be left by this address: the kernel has named it.
    fn is_of(&self, group: &Storage) -> bool {
        self.group == *group && self.handle.load(Ordering::Acquire) != NO_HANDLE
    }

    /// The group is joined: the queue pair gets its packets, unless it only sends.
    pub(crate) fn joined(&self, param: &UdParam) -> Result<()> {
        let qp = get!(self.id, qp);
        if qp.is_null() || self.join_flags != FULL_MEMBER {
            return Ok(());
        }
        let (gid, lid) = (param.ah_attr.grh.dgid, param.ah_attr.dlid);
        // SAFETY: the id's queue pair.
        check(unsafe { (verbs()?.attach_mcast)(qp, &gid, lid) })?;
        *lock(&self.attached) = Some((gid, lid));
        Ok(())
    }

    fn detach(&self) {
        let qp = get!(self.id, qp);
        let attached = lock(&self.attached).take();
        if let (Some((gid, lid)), Ok(verbs), false) = (attached, verbs(), qp.is_null()) {
            // What it says is nothing to a program that leaves.
            // SAFETY: the id's queue pair, which was attached to it.
            unsafe { (verbs.detach_mcast)(qp, &gid, lid) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_can_be_left_once_the_kernel_has_named_the_membership() {
        let id = Id::new(std::ptr::null_mut(), false);
        let group = [7; 128];
        let membership = Membership {
            id,
            context: std::ptr::null_mut(),
            events_completed: AtomicU32::new(0),
            uid: id::new_uid(),
            group,
            join_flags: FULL_MEMBER,
            handle: AtomicU32::new(NO_HANDLE),
            attached: Mutex::new(None),
        };
        assert!(!membership.is_of(&group));
        // The kernel's first name.
        membership.handle.store(0, Ordering::Release);
        assert!(membership.is_of(&group));
        assert!(!membership.is_of(&[8; 128]));
        // SAFETY: nobody else has it.
        unsafe { id.free() };
    }
}

//! Memberships of ids in multicast groups.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use portolan_threads::lock::Mutex;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::address::Storage;
use crate::layout::Gid;

/// A number that the kernel never assigns.
const NO_HANDLE: u32 = u32::MAX;

/// A membership of an id.
pub(crate) struct Membership {
    /// Its number in events of the kernel.
    pub(crate) uid: u64,
    /// The program's context.
    pub(crate) context: *mut c_void,
    /// Changed only under the lock of the id's state.
    pub(crate) events_completed: AtomicU32,
    pub(crate) join_flags: u32,
    group: Storage,
    /// The kernel's number for it; [`NO_HANDLE`] until the kernel has answered.
    handle: AtomicU32,
    /// The GID and LID that the queue pair is attached to.
    pub(crate) attached: Mutex<Option<(Gid, u16)>>,
}

// SAFETY: the context is only returned to the program.
unsafe impl Send for Membership {}
// SAFETY: as above.
unsafe impl Sync for Membership {}

impl Membership {
    pub(crate) fn new(uid: u64, context: *mut c_void, group: Storage, join_flags: u32) -> Self {
        Self {
            uid,
            context,
            events_completed: AtomicU32::new(0),
            join_flags,
            group,
            handle: AtomicU32::new(NO_HANDLE),
            attached: Mutex::new(None),
        }
    }

    pub(crate) fn handle(&self) -> u32 {
        self.handle.load(Ordering::Acquire)
    }

    /// Stores the kernel's number.
    pub(crate) fn set_handle(&self, handle: u32) {
        self.handle.store(handle, Ordering::Release);
    }

    /// Whether it can be left by this address: the kernel knows it.
    pub(crate) fn is_of(&self, group: &Storage) -> bool {
        self.group == *group && self.handle() != NO_HANDLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_can_be_left_once_the_kernel_has_named_the_membership() {
        let group = [7; 128];
        let membership = Membership::new(1, std::ptr::null_mut(), group, 0);
        assert!(!membership.is_of(&group));
        // The first name that the kernel assigns.
        membership.set_handle(0);
        assert!(membership.is_of(&group));
        assert!(!membership.is_of(&[8; 128]));
    }
}

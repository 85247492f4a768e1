//! Ids: C's structure, whose fields the program accesses, followed by the library's own part.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use portolan_threads::lock::{Condvar, Mutex, MutexGuard};
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use rustix::io::Errno;

use crate::device::Device;
use crate::fork::{Known, absent};
use crate::guard::Result;
use crate::hold;
use crate::layout::{self, CmId, Ece, EventChannel, QPT_UD, QpInitAttr};
use crate::lookup::Lookup;
use crate::membership::Membership;

/// A counted reference to an id. The table holds one until the program destroys the id.
#[derive(Clone)]
pub(crate) struct Id(Arc<Object>);

/// A reference to an id that may be destroyed.
pub(crate) struct WeakId(Weak<Object>);

#[repr(C)]
struct Object {
    /// The program accesses this, too, so the library never creates a reference to it.
    c: UnsafeCell<CmId>,
    own: Own,
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: allocated by malloc, by the library or the program. The id has no other user.
        unsafe { layout::free(self.c.get_mut().route.path_rec) };
    }
}

/// The library's part of an id.
pub(crate) struct Own {
    /// Its number in events of the kernel.
    pub(crate) uid: u64,
    /// The kernel's number for it.
    handle: AtomicU32,
    /// Created without a channel: its calls wait for their events.
    sync: AtomicBool,
    state: Mutex<IdState>,
    /// The look-up of names for it.
    pub(crate) lookup: Lookup,
    /// Held while the id moves to another channel, and while its events are interpreted, which uses its channel. Locked before
    /// the look-up's lock.
    pub(crate) moving: Mutex<()>,
    /// Signalled when an event of it, or of a membership, is acknowledged.
    acknowledged: Condvar,
}

pub(crate) struct IdState {
    pub(crate) events_completed: u32,
    pub(crate) device: Option<Arc<Device>>,
    pub(crate) initiator_depth: u8,
    pub(crate) responder_resources: u8,
    /// Sent before the private data of the connect.
    pub(crate) connect: Vec<u8>,
    /// The attributes for queue pairs of a listener's connections.
    pub(crate) qp_init_attr: Option<QpInitAttr>,
    pub(crate) local_ece: Ece,
    pub(crate) remote_ece: Ece,
    /// The id failed while connecting. The peer's answer is not reported to the program.
    pub(crate) connect_failed: bool,
    pub(crate) memberships: Vec<Arc<Membership>>,
}

// SAFETY: the library's part has locks and atomics, and its pointers lead to C's objects, which libibverbs allows any
// thread to use. C's part is accessed field by field through pointers. librdmacm's contract with the program defines
// when the program and the library may write each field.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

/// No enhanced connection establishment.
pub(crate) const NO_ECE: Ece = Ece {
    vendor_id: 0,
    options: 0,
    comp_mask: 0,
};

/// Reads a field of C's part of an id.
macro_rules! get {
    ($id:expr, $($field:ident).+) => {{
        let id: &$crate::id::Id = $id;
        // SAFETY: the memory exists while `id` is borrowed, and was initialized at creation.
        #[allow(unused_unsafe, reason = "it may be used inside another unsafe block")]
        unsafe {
            (&raw const (*id.as_c()).$($field).+).read()
        }
    }};
}

/// Writes a field of C's part of an id.
macro_rules! set {
    ($id:expr, $($field:ident).+ = $value:expr) => {{
        let (id, value): (&$crate::id::Id, _) = ($id, $value);
        // SAFETY: the memory exists while `id` is borrowed.
        unsafe { (&raw mut (*id.as_c()).$($field).+).write(value) }
    }};
}

pub(crate) use {get, set};

/// All ids that the program has not destroyed, and the targets of events, by the kernel's numbers.
#[derive(Default)]
struct Table {
    by_address: HashMap<usize, Id>,
    by_uid: HashMap<u64, Target>,
    by_handle: HashMap<u32, Id>,
}

/// The object that an event belongs to.
#[derive(Clone)]
pub(crate) enum Target {
    Id(Id),
    Membership(Id, Arc<Membership>),
}

static TABLE: Known<Mutex<Table>> = Known::new();

/// The target of events with this number.
pub(crate) fn target(uid: u64) -> Option<Target> {
    TABLE.get().lock().by_uid.get(&uid).cloned()
}

/// The id with the kernel's number `handle`.
pub(crate) fn by_handle(handle: u32) -> Option<Id> {
    TABLE.get().lock().by_handle.get(&handle).cloned()
}

/// A number that was never used before. Not 0, which the kernel uses for none.
pub(crate) fn new_uid() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn register_membership(id: &Id, membership: &Arc<Membership>) {
    let target = Target::Membership(id.clone(), membership.clone());
    TABLE.get().lock().by_uid.insert(membership.uid, target);
}

pub(crate) fn unregister_membership(membership: &Membership) {
    let target = TABLE.get().lock().by_uid.remove(&membership.uid);
    // Drop it without the lock: it may be the last reference to the id.
    drop(target);
}

impl Target {
    pub(crate) fn id(&self) -> &Id {
        match self {
            Self::Id(id) | Self::Membership(id, _) => id,
        }
    }

    /// Counts an event as acknowledged. An event of a membership counts for its id, too.
    pub(crate) fn complete_event(&self) {
        let own = &self.id().0.own;
        let mut state = own.state.lock();
        if let Self::Membership(_, membership) = self {
            membership.events_completed.fetch_add(1, Ordering::Relaxed);
        }
        state.events_completed += 1;
        own.acknowledged.notify_all();
    }
}

impl Id {
    /// Creates an id that the kernel does not know yet.
    pub(crate) fn new(channel: *mut EventChannel, sync: bool) -> Self {
        let mut c = CmId::zeroed();
        c.channel = channel;
        let uid = new_uid();
        let own = Own {
            uid,
            handle: AtomicU32::new(u32::MAX),
            sync: AtomicBool::new(sync),
            state: Mutex::new(IdState {
                events_completed: 0,
                device: None,
                initiator_depth: 0,
                responder_resources: 0,
                connect: Vec::new(),
                qp_init_attr: None,
                local_ece: NO_ECE,
                remote_ece: NO_ECE,
                connect_failed: false,
                memberships: Vec::new(),
            }),
            lookup: Lookup::default(),
            moving: Mutex::new(()),
            acknowledged: Condvar::new(),
        };
        let c = UnsafeCell::new(c);
        let id = Self(Arc::new(Object { c, own }));
        let mut table = TABLE.get().lock();
        table.by_uid.insert(uid, Target::Id(id.clone()));
        table.by_address.insert(id.as_c().addr(), id.clone());
        drop(table);
        id
    }

    /// Looks up the id of the program's pointer, without reading the memory. After a failed call, some programs use
    /// an id that they have destroyed, or read a pointer from freed memory.
    ///
    /// # Errors
    /// `EINVAL` for null, and for a pointer that is not an id; `EOPNOTSUPP` if it may belong to the parent process.
    pub(crate) fn of(id: *mut CmId) -> Result<Self> {
        hold::note_call(id);
        Self::made(id)
    }

    /// As [`Id::of`], for a pointer of the library. It does not count as a call of the program.
    ///
    /// # Errors
    /// `EINVAL` for null, and if the id was destroyed meanwhile.
    pub(crate) fn made(id: *mut CmId) -> Result<Self> {
        let found = TABLE.get().lock().by_address.get(&id.addr()).cloned();
        found.ok_or_else(|| match id.is_null() {
            true => Errno::INVAL,
            false => absent(Errno::INVAL),
        })
    }

    /// The program's pointer to it. The memory exists until the id is unregistered and all references are dropped.
    pub(crate) fn as_c(&self) -> *mut CmId {
        self.0.c.get()
    }

    pub(crate) fn own(&self) -> &Own {
        &self.0.own
    }

    pub(crate) fn downgrade(&self) -> WeakId {
        WeakId(Arc::downgrade(&self.0))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, IdState> {
        self.0.own.state.lock()
    }

    pub(crate) fn handle(&self) -> u32 {
        self.0.own.handle.load(Ordering::Acquire)
    }

    /// Stores the kernel's number.
    pub(crate) fn set_handle(&self, handle: u32) {
        self.0.own.handle.store(handle, Ordering::Release);
        let former = TABLE.get().lock().by_handle.insert(handle, self.clone());
        drop(former);
    }

    pub(crate) fn is_sync(&self) -> bool {
        self.0.own.sync.load(Ordering::Acquire)
    }

    pub(crate) fn set_sync(&self, sync: bool) {
        self.0.own.sync.store(sync, Ordering::Release);
    }

    pub(crate) fn is_datagram(&self) -> bool {
        get!(self, qp_type) == QPT_UD
    }

    /// Waits until `is_enough` accepts the number of acknowledged events.
    pub(crate) fn wait_completed(&self, is_enough: impl Fn(&IdState) -> bool) {
        let own = &self.0.own;
        let mut state = own.state.lock();
        while !is_enough(&state) {
            state = own.acknowledged.wait(state);
        }
    }

    /// Removes it from the table, so that no pointer and no kernel number leads to it. The last reference frees the
    /// memory.
    pub(crate) fn unregister(&self) {
        let mut table = TABLE.get().lock();
        let by_address = table.by_address.remove(&self.as_c().addr());
        let by_uid = table.by_uid.remove(&self.0.own.uid);
        let handle = self.handle();
        // The kernel may have given the number to another id since.
        let is_own = table.by_handle.get(&handle).is_some_and(|id| id.is(self));
        let by_handle = is_own.then(|| table.by_handle.remove(&handle));
        drop(table);
        drop((by_address, by_uid, by_handle));
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl WeakId {
    pub(crate) fn upgrade(&self) -> Option<Id> {
        self.0.upgrade().map(Id)
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;

    #[test]
    fn a_destroyed_ids_pointer_is_refused_and_its_holders_can_still_use_it() {
        let id = Id::new(null_mut(), true);
        let pointer = id.as_c();
        set!(&id, port_num = 7);
        let kept = Id::of(pointer).unwrap();
        id.set_handle(3_000_000_000);
        id.unregister();
        drop(id);
        assert_eq!(Id::of(pointer).err(), Some(Errno::INVAL));
        assert_eq!(Id::of(null_mut()).err(), Some(Errno::INVAL));
        assert!(by_handle(3_000_000_000).is_none());
        assert!(kept.is_sync());
        assert_eq!(get!(&kept, port_num), 7);
        let weak = kept.downgrade();
        assert!(target(kept.own().uid).is_none());
        drop(kept);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn an_event_of_a_membership_counts_for_it_and_for_its_id() {
        let id = Id::new(null_mut(), false);
        let membership = Arc::new(Membership::new(new_uid(), null_mut(), [7; 128], 0));
        register_membership(&id, &membership);
        target(membership.uid).unwrap().complete_event();
        target(id.own().uid).unwrap().complete_event();
        assert_eq!(id.state().events_completed, 2);
        assert_eq!(membership.events_completed.load(Ordering::Relaxed), 1);
        unregister_membership(&membership);
        assert!(target(membership.uid).is_none());
        id.unregister();
    }
}

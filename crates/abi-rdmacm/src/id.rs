//! Ids: C's structure, which the program reaches into, with the library's own part behind it.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use crate::device::Device;
use crate::guard::Result;
use crate::layout::{CmId, Ece, EventChannel, QpInitAttr, SaPathRec};
use crate::lock;
use crate::lookup::Lookup;
use crate::multicast::Membership;

/// An id that exists: whoever hands it in promises so, as C programs do. Its own part may be used by any
/// thread; C's part is the program's as much as the library's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id(NonNull<Whole>);

#[repr(C)]
struct Whole {
    c: CmId,
    own: Own,
}

/// What the library knows of an id.
pub(crate) struct Own {
    /// Its name towards the kernel.
    pub(crate) uid: u64,
    /// The kernel's name for it.
    handle: AtomicU32,
    /// Made without a channel: its calls wait for their events.
    sync: AtomicBool,
    state: Mutex<State>,
    /// The names that are looked up for it.
    pub(crate) lookup: Arc<Lookup>,
    /// An event of it, or of a membership, was acknowledged.
    acknowledged: Condvar,
}

pub(crate) struct State {
    pub(crate) events_completed: u32,
    pub(crate) device: Option<Arc<Device>>,
    pub(crate) initiator_depth: u8,
    pub(crate) responder_resources: u8,
    /// Goes before the private data of the connect.
    pub(crate) connect: Vec<u8>,
    /// What a listener's connections get as queue pairs.
    pub(crate) qp_init_attr: Option<QpInitAttr>,
    pub(crate) local_ece: Ece,
    pub(crate) remote_ece: Ece,
    /// It failed while connecting: what the peer says to that is nothing to the program.
    pub(crate) connect_failed: bool,
    /// What C's `path_rec` points to.
    pub(crate) paths: Box<[SaPathRec]>,
    pub(crate) memberships: Vec<Arc<Membership>>,
}

// SAFETY: pointers within are C's objects, which libibverbs allows any thread to use, or the program's, which it
// is answerable for.
unsafe impl Send for State {}

/// No enhanced connection establishment.
pub(crate) const NO_ECE: Ece = Ece {
    vendor_id: 0,
    options: 0,
    comp_mask: 0,
};

/// Reads a field of C's part of an id.
macro_rules! get {
    ($id:expr, $($field:ident).+) => {{
        let id: $crate::id::Id = $id;
        // SAFETY: the id exists (`Id`).
        #[allow(unused_unsafe, reason = "it may be used among what is unsafe for other reasons")]
        unsafe {
            (&raw const (*id.as_c()).$($field).+).read()
        }
    }};
}

/// Writes a field of C's part of an id.
macro_rules! set {
    ($id:expr, $($field:ident).+ = $value:expr) => {{
        let value = $value;
        // SAFETY: the id exists (`Id`).
        unsafe { (&raw mut (*$id.as_c()).$($field).+).write(value) }
    }};
}

pub(crate) use {get, set};

/// What events can be of, by the names the kernel has for it; and every id there is, by its address.
#[derive(Default)]
struct Table {
    by_uid: HashMap<u64, Target>,
    by_handle: HashMap<u32, Id>,
    live: HashMap<usize, Use>,
}

/// Whether the program has called for an id since it was given to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Fresh,
    Used,
}

#[derive(Clone)]
pub(crate) enum Target {
    Id(Id),
    Membership(Arc<Membership>),
}

// SAFETY: an id's own part may be used by any thread; it leaves the table before it goes.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

/// A fresh id was used; with the lock of [`TABLE`].
static USED: Condvar = Condvar::new();

/// Waits until the program has called for the id at this address, which was fresh, or destroyed it; false if it does
/// not within `limit`.
pub(crate) fn wait_used(address: usize, limit: Duration) -> bool {
    let is_fresh = |table: &mut Table| table.live.get(&address) == Some(&Use::Fresh);
    let waited = USED.wait_timeout_while(lock(&TABLE), limit, is_fresh);
    let (_table, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
    !outcome.timed_out()
}

/// What events under this name are of.
pub(crate) fn target(uid: u64) -> Option<Target> {
    lock(&TABLE).by_uid.get(&uid).cloned()
}

/// The id that the kernel calls so.
pub(crate) fn by_handle(handle: u32) -> Option<Id> {
    lock(&TABLE).by_handle.get(&handle).copied()
}

/// A name that was never given before; the kernel's 0 is no name.
pub(crate) fn new_uid() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn enlist_membership(uid: u64, membership: &Arc<Membership>) {
    let target = Target::Membership(membership.clone());
    lock(&TABLE).by_uid.insert(uid, target);
}

pub(crate) fn strike_membership(uid: u64) {
    lock(&TABLE).by_uid.remove(&uid);
}

impl Id {
    /// An id without a name of the kernel's yet.
    pub(crate) fn new(channel: *mut EventChannel, sync: bool) -> Self {
        let mut c = CmId::zeroed();
        c.channel = channel;
        let uid = new_uid();
        let own = Own {
            uid,
            handle: AtomicU32::new(u32::MAX),
            sync: AtomicBool::new(sync),
            state: Mutex::new(State {
                events_completed: 0,
                device: None,
                initiator_depth: 0,
                responder_resources: 0,
                connect: Vec::new(),
                qp_init_attr: None,
                local_ece: NO_ECE,
                remote_ece: NO_ECE,
                connect_failed: false,
                paths: Box::default(),
                memberships: Vec::new(),
            }),
            lookup: Arc::default(),
            acknowledged: Condvar::new(),
        };
        let id = Self(NonNull::from(Box::leak(Box::new(Whole { c, own }))));
        let mut table = lock(&TABLE);
        table.by_uid.insert(uid, Target::Id(id));
        table.live.insert(id.as_c().addr(), Use::Used);
        drop(table);
        id
    }

    /// The id behind C's pointer. Some programs go on with one that they have destroyed, or read from memory that they
    /// have given back, after a call failed: it is refused.
    ///
    /// # Errors
    /// `EINVAL` for null, and for what is no id.
    ///
    /// # Safety
    /// It is not destroyed while this is used.
    pub(crate) unsafe fn of(id: *mut CmId) -> Result<Self> {
        let mut table = lock(&TABLE);
        let live = table.live.get_mut(&id.addr()).ok_or(Errno::INVAL)?;
        if std::mem::replace(live, Use::Used) == Use::Fresh {
            USED.notify_all();
        }
        NonNull::new(id.cast()).map(Self).ok_or(Errno::INVAL)
    }

    /// An id of the library's own making, which the program has not seen yet.
    ///
    /// # Safety
    /// It is null or exists.
    pub(crate) unsafe fn made(id: *mut CmId) -> Result<Self> {
        NonNull::new(id.cast()).map(Self).ok_or(Errno::INVAL)
    }

    /// The program is about to be given it, and has not called for it yet.
    pub(crate) fn set_fresh(self) {
        lock(&TABLE).live.insert(self.as_c().addr(), Use::Fresh);
    }

    pub(crate) fn as_c(self) -> *mut CmId {
        self.0.as_ptr().cast()
    }

    pub(crate) fn own(&self) -> &Own {
        // SAFETY: the id exists. Only its own part is referred to; the program has pointers to C's part.
        unsafe { &(*self.0.as_ptr()).own }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.own().state)
    }

    pub(crate) fn handle(self) -> u32 {
        self.own().handle.load(Ordering::Acquire)
    }

    /// The kernel has named it.
    pub(crate) fn set_handle(self, handle: u32) {
        self.own().handle.store(handle, Ordering::Release);
        lock(&TABLE).by_handle.insert(handle, self);
    }

    pub(crate) fn is_sync(self) -> bool {
        self.own().sync.load(Ordering::Acquire)
    }

    pub(crate) fn set_sync(self, sync: bool) {
        self.own().sync.store(sync, Ordering::Release);
    }

    pub(crate) fn is_datagram(self) -> bool {
        get!(self, qp_type) == crate::layout::QPT_UD
    }

    /// An event of it is done with.
    pub(crate) fn complete_event(self) {
        self.complete(&mut self.state());
    }

    /// An event of one of its memberships is done with: it counts for both.
    pub(crate) fn complete_membership_event(self, membership: &Membership) {
        let mut state = self.state();
        membership.events_completed.fetch_add(1, Ordering::Relaxed);
        self.complete(&mut state);
    }

    /// Whoever waits may free the id as soon as the state is unlocked, so it is told before.
    fn complete(self, state: &mut State) {
        state.events_completed += 1;
        self.own().acknowledged.notify_all();
    }

    /// Waits until as many events are done with as `is_enough` wants.
    pub(crate) fn wait_completed(self, is_enough: impl Fn(&State) -> bool) {
        let own = self.own();
        let state = lock(&own.state);
        let waited = own
            .acknowledged
            .wait_while(state, |state| !is_enough(state));
        drop(waited);
    }

    /// Gives its memory back.
    ///
    /// # Safety
    /// Nobody uses it any more.
    pub(crate) unsafe fn free(self) {
        let mut table = lock(&TABLE);
        table.live.remove(&self.as_c().addr());
        table.by_uid.remove(&self.own().uid);
        let handle = self.handle();
        // A number that the kernel gave again since is another's.
        if table.by_handle.get(&handle) == Some(&self) {
            table.by_handle.remove(&handle);
        }
        drop(table);
        // SAFETY: made by `new` from a box; the caller says that it was the last.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

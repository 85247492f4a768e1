//! The program's epoll instances, from their creation on.
//!
//! Duplicates of a descriptor are one instance. A runtime may add its sockets through one of them and wait on another, as
//! tokio does, so an instance must be known before it contains a stream.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use portolan_abi_layout::guard::Result;
use portolan_threads::ProcessCell;
use portolan_threads::fork::ForkGuard;
use portolan_threads::lock::Mutex;
use rustix::io::Errno;

use super::Set;
use crate::table::Table;

/// Epoll instances by descriptor number.
pub(crate) static INSTANCES: Table<Instance> = Table::new();

pub(crate) struct Instance {
    owner: ForkGuard,
    /// The kernel's waits on it are not this library's: it is in another instance, or was polled.
    has_outsiders: AtomicBool,
    /// Threads that began to wait when it had no streams.
    early: Arc<AtomicU32>,
    set: OnceLock<Arc<Set>>,
    /// Locked while a thread makes the set.
    making: Mutex<()>,
    /// A fork may have given it to another process.
    is_shared: Arc<AtomicBool>,
    /// The parent's set, which this process has inherited.
    parents: Option<Arc<Set>>,
}

impl Instance {
    fn new(has_outsiders: bool, parents: Option<Arc<Set>>) -> Self {
        Self {
            owner: ForkGuard::new(),
            has_outsiders: AtomicBool::new(has_outsiders),
            early: Arc::default(),
            set: OnceLock::new(),
            making: Mutex::default(),
            is_shared: Arc::default(),
            parents,
        }
    }

    /// That of a child of a fork.
    fn inherited(from: &Self) -> Self {
        let parents = from.set.get().or(from.parents.as_ref());
        let instance = Self::new(from.has_outsiders.load(Ordering::SeqCst), parents.cloned());
        instance.is_shared.store(true, Ordering::SeqCst);
        instance
    }

    /// The set. Makes it if the instance has had no streams.
    ///
    /// # Errors
    /// As for epoll_create1(2) and epoll_ctl(2).
    pub(super) fn set_or_make(&self, number: c_int) -> Result<Arc<Set>> {
        let _making = self.making.lock();
        let set = match self.set.get() {
            Some(set) => set.clone(),
            None => {
                let made = Set::make(number, self.early.clone(), self.is_shared.clone())?;
                if let Some(parents) = &self.parents {
                    made.inherit(parents);
                }
                self.set.get_or_init(|| made).clone()
            }
        };
        if self.has_outsiders.load(Ordering::SeqCst) {
            set.note_outsiders();
        }
        // Last, because it wakes threads, which look for the set.
        set.settle()?;
        Ok(set)
    }
}

/// The kernel has created an instance at a number.
pub(crate) fn created(number: c_int) {
    enter(number, Arc::new(Instance::new(false, None)));
}

/// Gives a number an instance. A former one is stale, or the parent's: then drops nothing of it.
fn enter(number: c_int, instance: Arc<Instance>) {
    forget_if_parents(INSTANCES.put(number, instance));
}

/// Gives the number `new`, a duplicate of `number`, its instance, if it has one.
pub(crate) fn duplicated(number: c_int, new: c_int) {
    if let Some(instance) = INSTANCES.get(number) {
        enter(new, instance);
    }
}

/// The number is being closed.
pub(crate) fn closed(number: c_int) {
    forget_if_parents(INSTANCES.take(number));
}

fn forget_if_parents(instance: Option<Arc<Instance>>) {
    if let Some(instance) = instance
        && !instance.owner.is_owner()
    {
        std::mem::forget(instance);
    }
}

/// The set of an instance that contains streams. A child of a fork makes one of its own, unless there is no descriptor left: then
/// the kernel's waits suffice.
pub(crate) fn known(number: c_int) -> Option<Arc<Set>> {
    let instance = INSTANCES.get(number)?;
    if instance.owner.is_owner() {
        return instance.set.get().cloned();
    }
    let has_set = instance.set.get().or(instance.parents.as_ref()).is_some();
    let make = || entered(number)?.set_or_make(number);
    has_set.then(make)?.ok()
}

/// Before a fork.
pub(crate) fn before_fork() {
    for number in INSTANCES.numbers(0, usize::MAX) {
        let instance = INSTANCES.get(number);
        let Some(instance) = instance.filter(|instance| instance.owner.is_owner()) else {
            continue;
        };
        if !instance.is_shared.swap(true, Ordering::SeqCst)
            && let Some(set) = instance.set.get()
        {
            set.share();
        }
    }
}

/// A thread that waits for an instance without streams, until this is dropped. If streams enter meanwhile, it is woken.
pub(crate) struct Early(Arc<Instance>);

impl Early {
    /// Begins the wait. `None` if the instance is unknown, or has streams.
    pub(crate) fn begin(number: c_int) -> Option<Self> {
        let mut instance = INSTANCES.get(number)?;
        if !instance.owner.is_owner() {
            instance = entered(number).ok()?;
        }
        instance.early.fetch_add(1, Ordering::SeqCst);
        let begun = Self(instance);
        begun.0.set.get().is_none().then_some(begun)
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        self.0.early.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A number is about to be polled. Returns whether it is that of an instance with streams of this process.
pub(crate) fn note_poll(number: c_int) -> bool {
    if !INSTANCES.has(number) {
        return false;
    }
    // Streams may enter while the kernel polls.
    note_member(number);
    known(number).is_some()
}

/// The instance of this process at a number.
///
/// # Errors
/// `EBADF` for a negative number; `EMFILE` if the number is beyond the table.
pub(super) fn entered(number: c_int) -> Result<Arc<Instance>> {
    static ENTERING: ProcessCell<Mutex<()>> = ProcessCell::new();
    if number < 0 {
        return Err(Errno::BADF);
    }
    if !Table::<Instance>::has_room(number) {
        return Err(Errno::MFILE);
    }
    let _entering = ENTERING.get_or_make(Mutex::default).lock();
    let Some(known) = INSTANCES.get(number) else {
        // Created without libc, or before an exec: nothing is known of it.
        let instance = Arc::new(Instance::new(true, None));
        enter(number, instance.clone());
        return Ok(instance);
    };
    if known.owner.is_owner() {
        return Ok(known);
    }
    let instance = Arc::new(Instance::inherited(&known));
    for other in INSTANCES.numbers(0, usize::MAX).collect::<Vec<_>>() {
        let its = INSTANCES.get(other);
        if its.is_some_and(|its| Arc::ptr_eq(&its, &known)) {
            enter(other, instance.clone());
        }
    }
    std::mem::forget(known);
    Ok(instance)
}

/// Notes that a descriptor, perhaps that of an instance, enters another instance or is polled.
pub(crate) fn note_member(number: c_int) {
    let Some(instance) = INSTANCES.get(number) else {
        return;
    };
    if instance.owner.is_owner() {
        let is_news = !instance.has_outsiders.swap(true, Ordering::SeqCst);
        if let Some(set) = instance.set.get().filter(|_| is_news) {
            set.note_outsiders();
        }
    }
}

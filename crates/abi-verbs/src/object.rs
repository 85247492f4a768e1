//! Objects that the library returns by pointer: the part that programs know, followed by our own.
//!
//! An object belongs to its process. A forked child has a copy, whose locks may stay locked and which no thread serves, so each
//! call on it fails.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use portolan_threads::ProcessCell;
use portolan_threads::fork;
use portolan_threads::lock::{Mutex, MutexGuard};
use std::any::TypeId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::guard::Result;

/// A C structure that the library creates.
pub(crate) trait Kind: Sized + 'static {
    /// The allocated type: the C structure itself, or a larger structure that contains it.
    type Whole;
    /// Our own part, which follows it.
    type Own;
    /// Offset of the C structure in it, in bytes.
    const OFFSET: usize = 0;
}

/// A C structure followed by our own part.
#[repr(C)]
struct Object<W, O> {
    whole: W,
    own: O,
    /// Of the process that made it; [`EVERYBODY`] for one that no call ends or changes.
    generation: u32,
}

/// A generation that no process has.
const EVERYBODY: u32 = 0;

/// The objects that a call of the program can destroy, by address and kind. Some programs destroy an object twice in
/// their error paths, and its memory cannot show that.
fn endable() -> MutexGuard<'static, BTreeSet<(usize, TypeId)>> {
    static ENDABLE: ProcessCell<Mutex<BTreeSet<(usize, TypeId)>>> = ProcessCell::new();
    ENDABLE.get_or_make(Mutex::default).lock()
}

fn name<C: Kind>(c: *mut C) -> (usize, TypeId) {
    (c.addr(), TypeId::of::<C>())
}

/// Creates an object and returns its C structure.
pub(crate) fn make<C: Kind>(whole: C::Whole, own: C::Own) -> *mut C {
    let c = allocate(whole, own, fork::generation());
    endable().insert(name(c));
    c
}

/// Creates an object that no call destroys or changes, so a forked child may use it.
pub(crate) fn make_lasting<C: Kind>(whole: C::Whole, own: C::Own) -> *mut C {
    allocate(whole, own, EVERYBODY)
}

fn allocate<C: Kind>(whole: C::Whole, own: C::Own, generation: u32) -> *mut C {
    let object = Box::into_raw(Box::new(Object {
        whole,
        own,
        generation,
    }));
    object.wrapping_byte_add(C::OFFSET).cast()
}

fn whole_of<C: Kind>(c: *mut C) -> *mut Object<C::Whole, C::Own> {
    c.wrapping_byte_sub(C::OFFSET).cast()
}

/// Our part of an object.
///
/// # Errors
/// `EINVAL` for null; `EOPNOTSUPP` in a process that was forked off since it was made.
///
/// # Safety
/// It is null, or an object that [`make`] created and that is not [`free`]d while the reference lives.
#[inline]
pub(crate) unsafe fn own<'a, C: Kind>(c: *mut C) -> Result<&'a C::Own> {
    if c.is_null() {
        return Err(Errno::INVAL);
    }
    let object = whole_of(c);
    // SAFETY: as the caller promises; the field never changes.
    match unsafe { (&raw const (*object).generation).read() } {
        EVERYBODY => {}
        generation if generation == fork::generation() => {}
        _ => return Err(Errno::OPNOTSUPP),
    }
    // SAFETY: as the caller promises; there is no reference to C's part.
    Ok(unsafe { &(*object).own })
}

/// The address of our part.
pub(crate) fn own_place<C: Kind>(c: *mut C) -> *mut C::Own {
    // SAFETY: this only computes an address.
    unsafe { &raw mut (*whole_of(c)).own }
}

/// An object that a call is about to destroy; other calls that would destroy it are refused. If this is dropped, the
/// object stays.
pub(crate) struct Ending<C: Kind>(*mut C);

/// Starts destroying an object. Does not read its memory.
///
/// # Errors
/// `EINVAL` for a pointer that is not an object of this kind: null, already destroyed, or being destroyed by another
/// thread. `EOPNOTSUPP` for such a pointer in a forked child, where the object may be the parent's. (A reused address means the
/// new object.)
pub(crate) fn end<C: Kind>(c: *mut C) -> Result<Ending<C>> {
    match endable().remove(&name(c)) {
        true => Ok(Ending(c)),
        false if !c.is_null() && fork::is_child() => Err(Errno::OPNOTSUPP),
        false => Err(Errno::INVAL),
    }
}

/// Whether an object has not been destroyed. Does not read its memory. (A reused address means the new object.)
pub(crate) fn is_there<C: Kind>(c: *mut C) -> bool {
    endable().contains(&name(c))
}

impl<C: Kind> Ending<C> {
    /// Our part of it.
    pub(crate) fn own(&self) -> &C::Own {
        // SAFETY: [`make`] created it, and only this frees it; there is no reference to C's part.
        unsafe { &(*whole_of(self.0)).own }
    }

    /// Destroys the object.
    ///
    /// # Safety
    /// No reference from [`own`] to it is used afterwards.
    pub(crate) unsafe fn free(self) {
        let c = self.0;
        // Do not put it back into the list.
        std::mem::forget(self);
        // SAFETY: [`make`] created it, and only the thread that removed it from the list gets here.
        drop(unsafe { Box::from_raw(whole_of(c)) });
    }
}

impl<C: Kind> Drop for Ending<C> {
    fn drop(&mut self) {
        endable().insert(name(self.0));
    }
}

/// Number of objects that use another.
#[derive(Debug, Default)]
pub(crate) struct Users(Arc<AtomicU32>);

/// Marks an object as used while it lives.
#[derive(Debug)]
pub(crate) struct Held(Arc<AtomicU32>);

impl Users {
    /// Counts one more user, until the result is dropped.
    pub(crate) fn hold(&self) -> Held {
        self.0.fetch_add(1, Ordering::Relaxed);
        Held(Arc::clone(&self.0))
    }

    /// # Errors
    /// `EBUSY` while there are any.
    pub(crate) fn check_none(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(Errno::BUSY),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A number for an object, like the kernel's handles.
pub(crate) fn next_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

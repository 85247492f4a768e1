//! Objects that the library returns by pointer: the part that programs know, followed by our own.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use portolan_threads::lock::Mutex;
use std::any::TypeId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::guard::Result;
use crate::process::check_process;

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
}

/// The objects that a call of the program can destroy, by address and kind. Some programs destroy an object twice in
/// their error paths, and its memory cannot show that.
static ENDABLE: Mutex<BTreeSet<(usize, TypeId)>> = Mutex::new(BTreeSet::new());

fn name<C: Kind>(c: *mut C) -> (usize, TypeId) {
    (c.addr(), TypeId::of::<C>())
}

/// Creates an object and returns its C structure.
///
/// # Errors
/// Fails like [`check_process`] in a forked child, where a thread of the parent may hold the list's lock.
pub(crate) fn make<C: Kind>(whole: C::Whole, own: C::Own) -> Result<*mut C> {
    check_process()?;
    let c = make_lasting(whole, own);
    ENDABLE.lock().insert(name(c));
    Ok(c)
}

/// Creates an object that no call destroys.
pub(crate) fn make_lasting<C: Kind>(whole: C::Whole, own: C::Own) -> *mut C {
    let object = Box::into_raw(Box::new(Object { whole, own }));
    object.wrapping_byte_add(C::OFFSET).cast()
}

fn whole_of<C: Kind>(c: *mut C) -> *mut Object<C::Whole, C::Own> {
    c.wrapping_byte_sub(C::OFFSET).cast()
}

/// Our part of an object.
///
/// # Errors
/// `EINVAL` for null.
///
/// # Safety
/// It is null, or an object that [`make`] created and that is not [`free`]d while the reference lives.
#[inline]
pub(crate) unsafe fn own<'a, C: Kind>(c: *mut C) -> Result<&'a C::Own> {
    if c.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: as the caller promises; there is no reference to C's part.
    Ok(unsafe { &(*whole_of(c)).own })
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
/// thread. Fails like [`check_process`] in a forked child. (A reused address means the new object.)
pub(crate) fn end<C: Kind>(c: *mut C) -> Result<Ending<C>> {
    check_process()?;
    match ENDABLE.lock().remove(&name(c)) {
        true => Ok(Ending(c)),
        false => Err(Errno::INVAL),
    }
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
        ENDABLE.lock().insert(name(self.0));
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

//! What the library hands out by pointer: the part that programs know, and behind it our own.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use portolan_threads::lock::Mutex;
use std::any::TypeId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::guard::Result;
use crate::process::check_process;

/// A structure of C's that the library makes.
pub(crate) trait Kind: Sized + 'static {
    /// What is made of it: itself, or a larger structure that it is a part of.
    type Whole;
    /// What lies behind that.
    type Own;
    /// Where it lies in the whole, bytes.
    const OFFSET: usize = 0;
}

/// A structure of C's and our own.
#[repr(C)]
struct Object<W, O> {
    whole: W,
    own: O,
}

/// The objects that a call of the program's can end, by address and kind. Some programs end one twice, where their ways
/// out of an error overlap: its memory tells nothing then.
static ENDABLE: Mutex<BTreeSet<(usize, TypeId)>> = Mutex::new(BTreeSet::new());

fn name<C: Kind>(c: *mut C) -> (usize, TypeId) {
    (c.addr(), TypeId::of::<C>())
}

/// Makes an object; its structure for C.
///
/// # Errors
/// Fails like [`check_process`] in a forked child, where the list may stay locked by a thread of the parent.
pub(crate) fn make<C: Kind>(whole: C::Whole, own: C::Own) -> Result<*mut C> {
    check_process()?;
    let c = make_lasting(whole, own);
    ENDABLE.lock().insert(name(c));
    Ok(c)
}

/// Makes an object that no call ends.
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
/// It is null, or an object that [`make`] made and that is not [`free`]d while the reference lives.
#[inline]
pub(crate) unsafe fn own<'a, C: Kind>(c: *mut C) -> Result<&'a C::Own> {
    if c.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: as the caller promises; C's part of it is not referred to.
    Ok(unsafe { &(*whole_of(c)).own })
}

/// Our part, as a place.
pub(crate) fn own_place<C: Kind>(c: *mut C) -> *mut C::Own {
    // SAFETY: no more than an address is made.
    unsafe { &raw mut (*whole_of(c)).own }
}

/// An object that a call is about to end: any other call that wants to is refused. Dropped, the object stays.
pub(crate) struct Ending<C: Kind>(*mut C);

/// Begins to end an object. Nothing is read from it.
///
/// # Errors
/// `EINVAL` for a pointer to no object of this kind: null, destroyed before, or being destroyed by another thread; as
/// for [`check_process`] in a forked child. (An address that was given to a new object since is that object's.)
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
        // SAFETY: [`make`] made it, and only this frees it; C's part of it is not referred to.
        unsafe { &(*whole_of(self.0)).own }
    }

    /// The end.
    ///
    /// # Safety
    /// No reference of [`own`] to it is used from here on.
    pub(crate) unsafe fn free(self) {
        let c = self.0;
        // It is not to be found again.
        std::mem::forget(self);
        // SAFETY: [`make`] made it, and only the thread that took it out of the list comes here.
        drop(unsafe { Box::from_raw(whole_of(c)) });
    }
}

impl<C: Kind> Drop for Ending<C> {
    fn drop(&mut self) {
        ENDABLE.lock().insert(name(self.0));
    }
}

/// How many objects rest on another.
#[derive(Debug, Default)]
pub(crate) struct Users(Arc<AtomicU32>);

/// An object rests on another while this lives.
#[derive(Debug)]
pub(crate) struct Held(Arc<AtomicU32>);

impl Users {
    /// One more.
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

/// A number for an object, as the kernel gives handles.
pub(crate) fn next_handle() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

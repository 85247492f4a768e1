//! What the library hands out by pointer: the part that programs know, and behind it our own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use crate::guard::Result;

/// A structure of C's that the library makes.
pub(crate) trait Kind: Sized {
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

/// Makes an object; its structure for C.
pub(crate) fn make<C: Kind>(whole: C::Whole, own: C::Own) -> *mut C {
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

/// The end of an object.
///
/// # Safety
/// As for [`own`], but not null, and for the last time.
pub(crate) unsafe fn free<C: Kind>(c: *mut C) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(whole_of(c)) });
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

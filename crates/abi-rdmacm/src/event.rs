//! Events. The library owns them until it passes them to the program, and again when the program acknowledges them.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_void;
use std::ptr::NonNull;

use portolan_kernel::raw;
use portolan_threads::fork::ForkGuard;
use rustix::io::Errno;

use crate::fork;
use crate::guard::{Result, errno_of};
use crate::id::{Id, Target, get, set};
use crate::layout::event_type::REJECTED;
use crate::layout::{CmEvent, EventParam};

/// An event. Dropping it acknowledges it.
///
/// This is a pointer, not a box, because C's part points to private data in the same memory. Moving a box would
/// assert that there is no other pointer to it.
pub(crate) struct Event(NonNull<Whole>);

/// Begins with C's structure.
#[repr(C)]
struct Whole {
    c: CmEvent,
    of: Target,
    private_data: [u8; raw::PRIVATE_DATA_LEN],
    made_by: ForkGuard,
}

impl Event {
    pub(crate) fn new(of: Target, event: u32, status: i32) -> Self {
        let whole = Whole {
            c: CmEvent {
                id: of.id().as_c(),
                event,
                status,
                ..CmEvent::zeroed()
            },
            of,
            private_data: [0; raw::PRIVATE_DATA_LEN],
            made_by: ForkGuard::new(),
        };
        Self(NonNull::from(Box::leak(Box::new(whole))))
    }

    pub(crate) fn c(&self) -> &CmEvent {
        // SAFETY: this event owns the memory until it is handed over, which consumes `self`.
        unsafe { &self.0.as_ref().c }
    }

    /// Changes C's part.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut CmEvent)) {
        // SAFETY: as for `c`, and `self` is borrowed exclusively.
        change(unsafe { &mut (*self.0.as_ptr()).c });
    }

    pub(crate) fn of(&self) -> &Target {
        // SAFETY: as for `c`.
        unsafe { &self.0.as_ref().of }
    }

    /// Sets the parameters, and stores the private data that they point to. Empty private data becomes null.
    pub(crate) fn set_param(
        &mut self,
        data: &[u8; raw::PRIVATE_DATA_LEN],
        length: u8,
        param: impl FnOnce(*const c_void) -> EventParam,
    ) {
        // SAFETY: this event owns the memory, `self` is borrowed exclusively, and no reference to it exists.
        unsafe {
            let place = &raw mut (*self.0.as_ptr()).private_data;
            place.write(*data);
            let pointer = match length {
                0 => std::ptr::null(),
                _ => place.cast_const().cast(),
            };
            (&raw mut (*self.0.as_ptr()).c.param).write(param(pointer));
        }
    }

    /// The event's outcome as an error: `ECONNREFUSED` if it was rejected, otherwise its status.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn outcome(&self) -> Result<()> {
        match (self.c().event, self.c().status) {
            (_, 0) => Ok(()),
            (REJECTED, _) => Err(Errno::CONNREFUSED),
            (_, status) => Err(errno_of(status.saturating_abs())),
        }
    }

    /// Hands the event over, to the program or to an id that keeps it.
    pub(crate) fn into_c(self) -> *mut CmEvent {
        let event = self.0.as_ptr().cast();
        std::mem::forget(self);
        event
    }

    /// Takes the event back.
    ///
    /// # Errors
    /// `EINVAL` for null. Over software devices, `EOPNOTSUPP` for an event of the parent process.
    ///
    /// # Safety
    /// The pointer is null, or comes from [`Event::into_c`] and was not taken back.
    pub(crate) unsafe fn from_c(event: *mut CmEvent) -> Result<Self> {
        let event = NonNull::new(event).ok_or(Errno::INVAL)?.cast::<Whole>();
        // SAFETY: the caller's event, which is valid.
        let made_by = unsafe { (&raw const (*event.as_ptr()).made_by).read() };
        match made_by.is_owner() || fork::has_what_it_inherited() {
            true => Ok(Self(event)),
            false => Err(Errno::OPNOTSUPP),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.of().complete_event();
        // SAFETY: `new` created it from a box, and it is dropped once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Makes a synchronous id keep an event instead of its previous one.
pub(crate) fn keep(id: &Id, event: Event) {
    drop_kept(id);
    set!(id, event = event.into_c());
}

/// The type of the event that a synchronous id keeps.
pub(crate) fn kept_type(id: &Id) -> Option<u32> {
    let event = get!(id, event);
    // SAFETY: null, or stored there by the library. The program cannot acknowledge it.
    unsafe { event.as_ref() }.map(|event| event.event)
}

/// Acknowledges the event that a synchronous id keeps.
pub(crate) fn drop_kept(id: &Id) {
    let event = get!(id, event);
    set!(id, event = std::ptr::null_mut());
    // SAFETY: stored there by the library. The program cannot acknowledge it.
    drop(unsafe { Event::from_c(event) });
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;
    use crate::layout::{ConnParam, event_type::ESTABLISHED};

    #[test]
    fn c_reads_private_data_after_the_event_was_moved_and_an_acknowledgement_counts() {
        let id = Id::new(null_mut(), false);
        let mut event = Event::new(Target::Id(id.clone()), ESTABLISHED, 0);
        let mut data = [0; raw::PRIVATE_DATA_LEN];
        data[..4].copy_from_slice(b"ahoy");
        event.set_param(&data, 4, |private_data| EventParam {
            conn: ConnParam {
                private_data,
                private_data_len: 4,
                ..ConnParam::zeroed()
            },
        });
        event.change(|c| c.status = -1);
        let moved = Box::new(event);
        assert!(moved.outcome().is_err());
        let c = moved.into_c();
        // SAFETY: the event is valid until it is taken back.
        let (found, status) = unsafe {
            let conn = (*c).param.conn;
            let length = conn.private_data_len.into();
            let data = std::slice::from_raw_parts(conn.private_data.cast::<u8>(), length);
            (data.to_vec(), (*c).status)
        };
        assert_eq!((&found[..], status), (&b"ahoy"[..], -1));
        assert_eq!(id.state().events_completed, 0);
        // SAFETY: returned above, and taken back once.
        drop(unsafe { Event::from_c(c) }.unwrap());
        assert_eq!(id.state().events_completed, 1);
        id.unregister();
    }

    #[test]
    fn an_id_that_keeps_another_event_acknowledges_the_previous_one() {
        let id = Id::new(null_mut(), true);
        for kept in 0..3 {
            keep(&id, Event::new(Target::Id(id.clone()), ESTABLISHED, 0));
            assert_eq!(id.state().events_completed, kept);
        }
        drop_kept(&id);
        drop_kept(&id);
        assert_eq!(id.state().events_completed, 3);
        id.unregister();
    }
}

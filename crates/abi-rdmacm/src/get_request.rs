//! `rdma_get_request`: waits for the next connection request of a synchronous listener.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_int;

use portolan_abi_layout::pointers::Out;
use portolan_kernel::raw;
use rustix::io::Errno;

use crate::event::{self, Event};
use crate::get_event::wait;
use crate::guard::{Result, caught, failed};
use crate::id::{Id, get};
use crate::layout::CmId;
use crate::layout::event_type::CONNECT_REQUEST;
use crate::{life, qp};

/// `rdma_get_request`: returns a new id, with a queue pair if the listener has attributes for one.
///
/// `EINVAL` if the listener has a channel, or gets another event. The thread may be cancelled while it waits, as in
/// [`wait`].
pub(crate) fn get_request(listener: *mut CmId, into: Out<*mut CmId>) -> c_int {
    let begun = caught(|| {
        into.check()?;
        let listener = Id::of(listener)?;
        if !listener.is_sync() {
            return Err(Errno::INVAL);
        }
        event::drop_kept(&listener);
        Ok(get!(&listener, channel))
    });
    let waited = begun.and_then(|channel| wait(channel, raw::readable_or_closed));
    let done = waited.and_then(|event| {
        caught(|| {
            // SAFETY: `wait` returned it, and no other code has seen it.
            let event = unsafe { Event::from_c(event) }?;
            let child = take_request(&Id::made(listener)?, event)?;
            into.write(child.as_c());
            Ok(())
        })
    });
    done.map_or_else(failed, |()| 0)
}

/// Returns the new id of a listener's event, which was just taken.
fn take_request(listener: &Id, event: Event) -> Result<Id> {
    let child = match request_of(&event) {
        Ok(child) => child,
        Err(errno) => {
            event::keep(listener, event);
            return Err(errno);
        }
    };
    let template = listener.state().qp_init_attr;
    let pd = get!(listener, pd);
    let prepared = template.map_or(Ok(()), |mut attr| qp::create(&child, pd, &mut attr));
    if let Err(errno) = prepared {
        // Destroy the child: the program has not seen it.
        drop(event);
        let _ = life::destroy_unseen(&child);
        return Err(errno);
    }
    event::keep(&child, event);
    Ok(child)
}

/// The new id that a listener's event reports.
fn request_of(event: &Event) -> Result<Id> {
    event.outcome()?;
    match event.c().event {
        CONNECT_REQUEST => Id::made(event.c().id),
        _ => Err(Errno::INVAL),
    }
}

//! `rdma_get_cm_event`, and calls of synchronous ids, which wait for their event.
//!
//! A thread may be cancelled while it waits here. Cancelling unwinds the stack, so nothing that is to be dropped may
//! live in the frames above, and nothing may catch panics there: those frames have pointers only.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use portolan_abi_layout::pointers::Out;
use portolan_kernel::raw;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

use crate::channel;
use crate::event::{self, Event};
use crate::guard::{Result, caught, failed};
use crate::hold;
use crate::id::{Id, get};
use crate::interpret::interpret;
use crate::layout::event_type::CONNECT_REQUEST;
use crate::layout::{CmEvent, EventChannel};
use crate::sync::Left;

/// Waits for the channel's next event that is the program's business, unless the descriptor is non-blocking.
///
/// # Errors
/// `EAGAIN`, `EINTR`, and those of the descriptor.
pub(crate) fn wait(channel: *mut EventChannel) -> Result<*mut CmEvent> {
    loop {
        let found = match caught(|| waiting(channel))? {
            Waiting::Device(fd) => raw::wait_event(fd)?,
            // Another thread may take the event that was there: no thread waits where it cannot be cancelled.
            Waiting::Readable(fd) => match caught(|| channel::hold(channel)?.take_event()) {
                Err(Errno::AGAIN) => {
                    raw::readable(fd)?;
                    continue;
                }
                taken => taken?,
            },
            Waiting::No => caught(|| channel::hold(channel)?.take_event())?,
        };
        if let Some(event) = caught(|| Ok(interpret(&found).map(Event::into_c)))? {
            return Ok(event);
        }
    }
}

/// How a channel's events are waited for.
#[derive(Clone, Copy)]
enum Waiting {
    /// The kernel's device waits itself.
    Device(RawFd),
    /// An event is there once this is readable.
    Readable(RawFd),
    /// The program does not want to.
    No,
}

fn waiting(channel: *mut EventChannel) -> Result<Waiting> {
    let commands = channel::hold(channel)?;
    let fd = commands.as_fd().as_raw_fd();
    Ok(
        match fcntl_getfl(commands.as_fd())?.contains(OFlags::NONBLOCK) {
            true => Waiting::No,
            false if commands.is_kernels() => Waiting::Device(fd),
            false => Waiting::Readable(fd),
        },
    )
}

/// `rdma_get_cm_event`.
pub(crate) fn get(channel: *mut EventChannel, into: Out<*mut CmEvent>) -> c_int {
    let ready = caught(|| {
        into.check()?;
        if !matches!(waiting(channel)?, Waiting::No) {
            hold::wait(channel);
        }
        Ok(())
    });
    let done = ready.and_then(|()| wait(channel)).and_then(|event| {
        caught(|| {
            // SAFETY: `wait` returned it, and no other code has it yet.
            let event = unsafe { Event::from_c(event) }?;
            if event.c().event == CONNECT_REQUEST {
                hold::give(channel, event.c().id);
            }
            into.write(event.into_c());
            Ok(())
        })
    });
    done.map_or_else(failed, |()| 0)
}

/// Runs the body of a call, then [`settle`]s the rest: 0, or -1 and `errno`.
pub(crate) fn settled(body: impl FnOnce() -> Result<Left>) -> c_int {
    caught(body).and_then(settle).map_or_else(failed, |()| 0)
}

/// Has a synchronous id wait for the event of its call, which it then keeps.
///
/// # Errors
/// `ECONNREFUSED` if it was rejected; otherwise what the event's status says. `EINVAL` if the id is destroyed
/// meanwhile.
pub(crate) fn settle(left: Left) -> Result<()> {
    let Left::Event(id) = left else {
        return Ok(());
    };
    let channel = caught(|| {
        let id = Id::made(id)?;
        event::drop_kept(&id);
        Ok(get!(&id, channel))
    })?;
    let waited = wait(channel);
    caught(|| match waited {
        Ok(event) => {
            // SAFETY: `wait` returned it, and no other code has it yet.
            let event = unsafe { Event::from_c(event) }?;
            let outcome = event.outcome();
            event::keep(&Id::made(id)?, event);
            outcome
        }
        Err(errno) => {
            Id::made(id)?.own().lookup.give_up();
            Err(errno)
        }
    })
}

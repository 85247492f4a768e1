//! `rdma_get_cm_event`, and the calls of synchronous ids that wait for their event.
//!
//! A thread may be cancelled while it waits here. Cancelling unwinds the stack, so the frames above must not own
//! anything with a destructor and must not catch panics. They contain only pointers.

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

/// Waits for the channel's next event for the program, unless the descriptor is non-blocking. `until_readable` waits for a
/// descriptor.
///
/// # Errors
/// `EAGAIN`, `EINTR`, and those of the descriptor.
pub(crate) fn wait(
    channel: *mut EventChannel,
    until_readable: fn(RawFd) -> Result<()>,
) -> Result<*mut CmEvent> {
    loop {
        let found = match caught(|| waiting(channel))? {
            Waiting::Device(fd) => raw::wait_event(fd)?,
            // Another thread may take the event first, so take it without waiting: a thread must wait only where it
            // can be cancelled.
            Waiting::Readable(fd) => match caught(|| channel::hold(channel)?.take_event()) {
                Err(Errno::AGAIN) => {
                    until_readable(fd)?;
                    continue;
                }
                taken => taken?,
            },
            Waiting::No => caught(|| channel::hold(channel)?.take_event())?,
        };
        if let Some(event) = caught(|| Ok(interpret(&found, channel).map(Event::into_c)))? {
            return Ok(event);
        }
    }
}

/// How to wait for a channel's events.
#[derive(Clone, Copy)]
enum Waiting {
    /// The device waits when its next event is read.
    Device(RawFd),
    /// This descriptor is readable while an event is queued.
    Readable(RawFd),
    /// The program does not want to wait.
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
    let done = ready
        .and_then(|()| wait(channel, raw::readable))
        .and_then(|event| {
            caught(|| {
                // SAFETY: `wait` returned it, and no other code has seen it.
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

/// Runs the body of a call, then [`settle`]s the rest. Returns 0, or -1 with `errno`.
pub(crate) fn settled(body: impl FnOnce() -> Result<Left>) -> c_int {
    caught(body).and_then(settle).map_or_else(failed, |()| 0)
}

/// Makes a synchronous id wait for the event of its call and keep it.
///
/// # Errors
/// `ECONNREFUSED` if the connection was rejected, otherwise the event's status. `EINVAL` if the id is destroyed
/// meanwhile, over software devices; over the kernel's the call does not end.
pub(crate) fn settle(left: Left) -> Result<()> {
    let Left::Event(id) = left else {
        return Ok(());
    };
    let channel = caught(|| {
        let id = Id::made(id)?;
        event::drop_kept(&id);
        Ok(get!(&id, channel))
    })?;
    let waited = wait(channel, raw::readable_or_closed);
    caught(|| match waited {
        Ok(event) => {
            // SAFETY: `wait` returned it, and no other code has seen it.
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

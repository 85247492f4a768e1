//! Event channels: C's structure is the descriptor, the library's is what commands are written to.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use portolan_threads::lock::Mutex;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use portolan_kernel::raw;
use portolan_provider::Cause;
use rustix::io::Errno;

use crate::fork::{Known, absent};
use crate::guard::Result;
use crate::layout::EventChannel;
use crate::verbs::rdma_cm;

/// An open channel. Reference-counted; the table holds a reference until the program destroys the channel.
pub(crate) struct Open {
    /// The program reads it through the pointer that it was given.
    c: UnsafeCell<EventChannel>,
    commands: raw::Channel,
}

// SAFETY: C's part is a number, which the library only writes when it makes the channel.
unsafe impl Sync for Open {}

impl Deref for Open {
    type Target = raw::Channel;

    fn deref(&self) -> &raw::Channel {
        &self.commands
    }
}

/// Channels that are not destroyed, by their addresses: a thread that waits for an event may find that another has
/// destroyed the channel, and an id that its channel is gone.
static OPEN: Known<Mutex<HashMap<usize, Arc<Open>>>> = Known::new();

/// `rdma_create_event_channel`: of the rdma_cm device that the process's libibverbs has, or else of the kernel's.
///
/// # Errors
/// `ENODEV` if the kernel has no rdma_cm device, `EPERM` if its ABI is none that is spoken here; those of opening.
pub(crate) fn create() -> Result<*mut EventChannel> {
    let commands = match rdma_cm() {
        Some(table) => raw::Channel::open_in_library(table)?,
        None => open_in_kernel()?,
    };
    let fd = commands.as_fd().as_raw_fd();
    let c = UnsafeCell::new(EventChannel { fd });
    let open = Arc::new(Open { c, commands });
    let channel = open.c.get();
    OPEN.get().lock().insert(channel.addr(), open);
    Ok(channel)
}

fn open_in_kernel() -> Result<raw::Channel> {
    raw::open().map_err(|error| match error.cause {
        Cause::NoDevice { .. } => Errno::NODEV,
        Cause::InvalidArgument { .. } => Errno::PERM,
        _ => Errno::from_raw_os_error(error.errno()),
    })
}

/// `rdma_destroy_event_channel`: closes the descriptor, and with it all the kernel has of its ids. A thread that waits
/// for its events continues waiting, as over the kernel: some programs destroy it nevertheless.
pub(crate) fn destroy(channel: *mut EventChannel) {
    // Some programs destroy a channel once more after a call failed.
    let open = OPEN.get().lock().remove(&channel.addr());
    if let Some(open) = open {
        open.close();
    }
}

/// Where its commands go. The channel may be destroyed meanwhile.
///
/// # Errors
/// `EINVAL` for null, `EBADF` if it is destroyed, `EOPNOTSUPP` if it may be the parent's.
pub(crate) fn hold(channel: *mut EventChannel) -> Result<Arc<Open>> {
    if channel.is_null() {
        return Err(Errno::INVAL);
    }
    let open = OPEN.get().lock().get(&channel.addr()).cloned();
    open.ok_or_else(|| absent(Errno::BADF))
}

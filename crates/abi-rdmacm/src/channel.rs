//! Event channels. C's structure contains the descriptor; the library's part is the target of commands.

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

/// An open channel, reference-counted. The table holds a reference until the program destroys the channel.
pub(crate) struct Open {
    /// The program reads this through its pointer.
    c: UnsafeCell<EventChannel>,
    commands: raw::Channel,
}

// SAFETY: C's part is a number, which the library writes only when it creates the channel.
unsafe impl Sync for Open {}

impl Deref for Open {
    type Target = raw::Channel;

    fn deref(&self) -> &raw::Channel {
        &self.commands
    }
}

/// The existing channels by address. A thread that waits for an event may find that another one has destroyed the
/// channel, and an id that its channel is gone.
static OPEN: Known<Mutex<HashMap<usize, Arc<Open>>>> = Known::new();

/// `rdma_create_event_channel`: opens the rdma_cm device of the process's libibverbs if it has one, otherwise the
/// kernel's.
///
/// # Errors
/// `ENODEV` if the kernel has no rdma_cm device, `EPERM` if its ABI version is not supported; those of
/// libibverbs and of opening.
pub(crate) fn create() -> Result<*mut EventChannel> {
    let commands = match rdma_cm()? {
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

/// `rdma_destroy_event_channel`: closes the descriptor, so the kernel destroys the channel's ids.
///
/// A thread that waits for its events keeps waiting, as over the kernel. Some programs destroy a channel in this
/// state.
pub(crate) fn destroy(channel: *mut EventChannel) {
    // Some programs destroy a channel twice after a call failed.
    let open = OPEN.get().lock().remove(&channel.addr());
    if let Some(open) = open {
        open.close();
    }
}

/// Keeps the channel open for commands. The program may destroy it meanwhile.
///
/// # Errors
/// `EINVAL` for null, `EBADF` if it is destroyed, `EOPNOTSUPP` if it may belong to the parent process.
pub(crate) fn hold(channel: *mut EventChannel) -> Result<Arc<Open>> {
    if channel.is_null() {
        return Err(Errno::INVAL);
    }
    let open = OPEN.get().lock().get(&channel.addr()).cloned();
    open.ok_or_else(|| absent(Errno::BADF))
}

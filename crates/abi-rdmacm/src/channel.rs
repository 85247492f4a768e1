//! Event channels: C's structure is the descriptor, the library's is what commands are written to.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, LazyLock, Mutex};

use portolan_kernel::raw;
use portolan_provider::Cause;
use rustix::io::Errno;

use crate::fork;
use crate::guard::Result;
use crate::layout::EventChannel;
use crate::lock;
use crate::verbs::rdma_cm;

#[repr(C)]
struct Whole {
    c: EventChannel,
    commands: Arc<raw::Channel>,
}

/// `rdma_create_event_channel`: of the rdma_cm device that the process's libibverbs has, or else of the kernel's.
///
/// # Errors
/// `ENODEV` if the kernel has no rdma_cm device, `EPERM` if its ABI is none that is spoken here; those of opening.
pub(crate) fn create() -> Result<*mut EventChannel> {
    let commands = match rdma_cm() {
        Some(table) => {
            let opened = raw::Channel::open_in_library(table)?;
            fork::own_devices();
            opened
        }
        None => open_in_kernel()?,
    };
    let fd = commands.as_fd().as_raw_fd();
    let c = EventChannel { fd };
    let commands = Arc::new(commands);
    let held = Arc::clone(&commands);
    let channel = Box::into_raw(Box::new(Whole { c, commands })).cast::<EventChannel>();
    lock(&LIVE).insert(channel.addr(), held);
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
/// for its events goes on waiting, as over the kernel: some programs destroy it nevertheless.
///
/// # Safety
/// It is null, or [`create`] made it and nobody begins to use it any more.
pub(crate) unsafe fn destroy(channel: *mut EventChannel) {
    // A forked child's copy is its parent's.
    if !channel.is_null() && fork::check().is_ok() {
        lock(&LIVE).remove(&channel.addr());
        // SAFETY: as the caller promises.
        let whole = unsafe { Box::from_raw(channel.cast::<Whole>()) };
        whole.commands.close();
    }
}

/// Where its commands go.
///
/// # Errors
/// `EINVAL` for null.
///
/// # Safety
/// It is null, or [`create`] made it and it stays while this is used.
pub(crate) unsafe fn commands<'a>(channel: *mut EventChannel) -> Result<&'a raw::Channel> {
    // SAFETY: as the caller promises.
    let whole = unsafe { channel.cast::<Whole>().as_ref() };
    whole.map(|whole| &*whole.commands).ok_or(Errno::INVAL)
}

/// Channels that are not destroyed, by their addresses: who waits for an event may find that another has gone.
static LIVE: LazyLock<Mutex<HashMap<usize, Arc<raw::Channel>>>> = LazyLock::new(Mutex::default);

/// Where its commands go, for who waits: the channel may be destroyed meanwhile.
///
/// # Errors
/// `EINVAL` for null, `EBADF` if it is destroyed.
pub(crate) fn hold(channel: *mut EventChannel) -> Result<Arc<raw::Channel>> {
    if channel.is_null() {
        return Err(Errno::INVAL);
    }
    let live = lock(&LIVE);
    live.get(&channel.addr()).cloned().ok_or(Errno::BADF)
}

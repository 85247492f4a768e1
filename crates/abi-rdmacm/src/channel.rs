//! Event channels: C's structure is the descriptor, the library's is what commands are written to.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use portolan_kernel::raw;
use portolan_provider::Cause;
use rustix::io::Errno;

use crate::fork;
use crate::guard::Result;
use crate::id::{self, Id};
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
    let live = Live {
        commands: Arc::clone(&commands),
        hand_over: Arc::default(),
    };
    let channel = Box::into_raw(Box::new(Whole { c, commands })).cast::<EventChannel>();
    lock(&LIVE).insert(channel.addr(), live);
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
    if fork::check().is_err() {
        return;
    }
    // One that is destroyed already, as some programs do once more after a call failed, is none.
    let live = lock(&LIVE).remove(&channel.addr());
    if live.is_some() {
        // SAFETY: as the caller promises.
        let whole = unsafe { Box::from_raw(channel.cast::<Whole>()) };
        whole.commands.close();
    }
}

/// Channels that are not destroyed, by their addresses: who waits for an event may find that another has gone, and an id
/// that its channel has.
static LIVE: LazyLock<Mutex<HashMap<usize, Live>>> = LazyLock::new(Mutex::default);

#[derive(Clone)]
struct Live {
    commands: Arc<raw::Channel>,
    hand_over: Arc<HandOver>,
}

/// Where its commands go. The channel may be destroyed meanwhile.
///
/// # Errors
/// `EINVAL` for null, `EBADF` if it is destroyed.
pub(crate) fn hold(channel: *mut EventChannel) -> Result<Arc<raw::Channel>> {
    if channel.is_null() {
        return Err(Errno::INVAL);
    }
    let live = lock(&LIVE);
    let live = live.get(&channel.addr()).ok_or(Errno::BADF)?;
    Ok(live.commands.clone())
}

/// How the last request went to the program.
///
/// A thread that takes events may leave requests to another in a place for one, as that of rdma-core's rping until 2025:
/// the next would overwrite it. So the next event waits until somebody has called for the new id, [`HAND_OVER_MAX`] at
/// most. A program that asks for more without doing so [`DEFERRED_MAX`] times does not work like that, and is not asked to
/// wait again.
#[derive(Default)]
struct HandOver(Mutex<Last>);

#[derive(Default)]
struct Last {
    /// The new id's address.
    given: Option<usize>,
    /// Requests in a row that nobody had called for in time.
    deferred: u32,
}

/// As long as a thread that was woken may take to run on a busy machine.
const HAND_OVER_MAX: Duration = Duration::from_millis(250);
const DEFERRED_MAX: u32 = 8;

fn hand_over(channel: *mut EventChannel) -> Option<Arc<HandOver>> {
    let live = lock(&LIVE);
    live.get(&channel.addr()).map(|live| live.hand_over.clone())
}

/// A request is about to be given to the program.
pub(crate) fn note_request(channel: *mut EventChannel, child: Id) {
    let Some(hand_over) = hand_over(channel) else {
        return;
    };
    let mut last = lock(&hand_over.0);
    if last.deferred < DEFERRED_MAX {
        child.set_fresh();
        last.given = Some(child.as_c().addr());
    }
}

/// Waits until the program has done something with the request that was given to it last.
pub(crate) fn wait_handed_over(channel: *mut EventChannel) {
    let Some(hand_over) = hand_over(channel) else {
        return;
    };
    let Some(child) = lock(&hand_over.0).given.take() else {
        return;
    };
    let is_used = id::wait_used(child, HAND_OVER_MAX);
    let mut last = lock(&hand_over.0);
    last.deferred = if is_used { 0 } else { last.deferred + 1 };
}

//! Completion channels.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use portolan_threads::lock::Mutex;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use portolan_provider::traits::{CompChannel as ProviderChannel, SleepAt};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::guard::{Result, errno_of};
use crate::layout::{CompChannel, Context, Cq};
use crate::object::{Kind, end, make, own};
use crate::wait::{Attempt, must_block};

/// A completion channel.
pub(crate) struct OwnChannel {
    pub(crate) channel: Arc<dyn ProviderChannel>,
    /// Locked while an event is taken, and while a completion queue of the channel is destroyed, because an event
    /// identifies its queue by address.
    pub(crate) taking: Mutex<()>,
}

impl Kind for CompChannel {
    type Whole = Self;
    type Own = OwnChannel;
}

/// # Safety
/// The context is open.
pub(crate) unsafe fn create(context: *mut Context) -> Result<*mut CompChannel> {
    // SAFETY: the caller keeps `context` alive during this call.
    let channel = unsafe { own(context) }?.device.create_comp_channel();
    let channel = channel.map_err(|error| errno_of(&error))?;
    let fd = channel.descriptor().map_err(|error| errno_of(&error))?;
    // From here on the flag says whether the program wants to block.
    fcntl_setfl(fd, fcntl_getfl(fd)? - OFlags::NONBLOCK)?;
    let whole = CompChannel {
        context,
        fd: fd.as_raw_fd(),
        refcnt: 0,
    };
    let taking = Mutex::new(());
    Ok(make(whole, OwnChannel { channel, taking }))
}

/// # Errors
/// `EBUSY` while completion queues are on it; `EINVAL` if it is already destroyed.
///
/// # Safety
/// After success it is not used.
pub(crate) unsafe fn destroy(channel: *mut CompChannel) -> Result<()> {
    let ending = end(channel)?;
    let taking = ending.own().taking.lock();
    // SAFETY: it is alive; completion queues count themselves in the field under the lock.
    if unsafe { (*channel).refcnt } > 0 {
        return Err(Errno::BUSY);
    }
    drop(taking);
    // SAFETY: only the caller uses it, and it is destroyed here.
    unsafe { ending.free() };
    Ok(())
}

/// Takes an event, if one is queued, and writes its queue to `into`.
///
/// # Errors
/// Errors of [`must_block`], and of the channel.
///
/// # Safety
/// The channel is one of ours, and `into` is writable.
pub(crate) unsafe fn take_event(channel: *mut CompChannel, into: *mut *mut Cq) -> Result<Attempt> {
    // SAFETY: the caller keeps `channel` alive during this call.
    let own_channel = unsafe { own(channel) }?;
    let _taking = own_channel.taking.lock();
    let taken = own_channel.channel.take_event();
    let cookie = match taken.map_err(|error| errno_of(&error))? {
        Some(cookie) => cookie,
        None => {
            must_block(own_channel.channel.as_fd())?;
            let at = own_channel.channel.sleep_at();
            match at.map_err(|error| errno_of(&error))? {
                SleepAt::Event(cookie) => cookie,
                SleepAt::Descriptor(fd) => return Ok(Attempt::Wait(fd.as_raw_fd())),
                SleepAt::Bell(fd) => return Ok(Attempt::WaitForDatagram(fd.as_raw_fd())),
                SleepAt::Nothing => return Ok(Attempt::Again),
            }
        }
    };
    let cq: *mut Cq = std::ptr::with_exposed_provenance_mut(cookie as usize);
    // SAFETY: a queue with a pending event is alive, because its destruction first removes the event, under the lock.
    // The caller provides the memory.
    unsafe {
        own(cq)?.comp_reported.add();
        into.write(cq);
    }
    Ok(Attempt::Done)
}

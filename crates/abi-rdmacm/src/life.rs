//! Creates ids, moves them to another channel, and destroys them.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd};

use portolan_kernel::raw::{EventsReported, Fields, MigrateId, number};
use rustix::io::Errno;

use crate::guard::Result;
use crate::id::{Id, get, set};
use crate::layout::{EventChannel, PS_IPOIB, PS_UDP, QPT_RC, QPT_UD};
use crate::{channel, event, multicast};

/// `rdma_create_id`. Without a channel, the id gets its own, and its calls wait.
///
/// # Errors
/// Those of the channel and the kernel's.
pub(crate) fn create(channel: *mut EventChannel, context: *mut c_void, ps: u32) -> Result<Id> {
    create_as(channel, context, ps, qp_type(ps))
}

/// The queue pair type that a port space implies.
fn qp_type(ps: u32) -> u32 {
    match ps {
        PS_IPOIB | PS_UDP => QPT_UD,
        _ => QPT_RC,
    }
}

/// As [`create`], with this queue pair type.
///
/// # Errors
/// Those of [`create`].
pub(crate) fn create_as(
    channel: *mut EventChannel,
    context: *mut c_void,
    ps: u32,
    qp_type: u32,
) -> Result<Id> {
    let is_sync = channel.is_null();
    let channel = if is_sync { channel::create()? } else { channel };
    let id = Id::new(channel, is_sync);
    set!(&id, context = context);
    set!(&id, ps = ps);
    set!(&id, qp_type = qp_type);
    if let Err(errno) = id.create_in_kernel() {
        release(&id);
        return Err(errno);
    }
    Ok(id)
}

/// `rdma_destroy_id`: waits until all its events are acknowledged.
///
/// # Errors
/// The kernel's. The id then still exists.
pub(crate) fn destroy(id: &Id) -> Result<()> {
    id.own().lookup.close();
    let reported = id.destroy_in_kernel()?;
    event::drop_kept(id);
    id.wait_completed(|state| state.events_completed >= reported);
    release(id);
    Ok(())
}

/// Destroys an id that the program has never seen.
pub(crate) fn destroy_unseen(id: &Id) -> Result<()> {
    id.own().lookup.close();
    let done = id.destroy_in_kernel().map(drop);
    release(id);
    done
}

fn release(id: &Id) {
    multicast::forget_all(id);
    if let Some(device) = id.state().device.take() {
        device.leave_domain();
    }
    let own_channel = id.is_sync().then(|| get!(id, channel));
    id.unregister();
    if let Some(channel) = own_channel {
        channel::destroy(channel);
    }
}

/// `rdma_migrate_id`: the id's events go to another channel. Waits until its events on the previous channel are
/// acknowledged. Without a channel, the id becomes synchronous.
///
/// # Errors
/// `EINVAL` if it is synchronous already and `to` is null; the kernel's.
pub(crate) fn migrate(id: &Id, to: *mut EventChannel) -> Result<()> {
    let becomes_sync = to.is_null();
    if becomes_sync && id.is_sync() {
        return Err(Errno::INVAL);
    }
    let to = if becomes_sync { channel::create()? } else { to };
    // Another thread may get an event of the id on its new channel at once.
    let moving = id.own().moving.lock();
    // The end of a look-up is reported on the id's new channel.
    let paused = id.own().lookup.pause();
    let reported = move_in_kernel(id, to);
    let reported = match reported {
        Ok(reported) => reported,
        Err(errno) => {
            drop((paused, moving));
            if becomes_sync {
                channel::destroy(to);
            }
            return Err(errno);
        }
    };
    let (former, was_sync) = (get!(id, channel), id.is_sync());
    set!(id, channel = to);
    id.set_sync(becomes_sync);
    drop((paused, moving));
    if was_sync {
        event::drop_kept(id);
        // From now on, a channel that the id keeps is the program's.
        if former != to {
            channel::destroy(former);
        }
    }
    id.wait_completed(|state| state.events_completed >= reported);
    Ok(())
}

fn move_in_kernel(id: &Id, to: *mut EventChannel) -> Result<u32> {
    let migrate = MigrateId {
        response: 0,
        id: id.handle(),
        fd: id.commands()?.as_fd().as_raw_fd().cast_unsigned(),
    };
    let commands = channel::hold(to)?;
    let answer = commands.ask(number::MIGRATE_ID, migrate, &EventsReported::zeroed())?;
    Ok(answer.events_reported)
}

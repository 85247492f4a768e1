//! Ids' beginnings and ends: made, moved to another channel, destroyed; and endpoints, which are synchronous ids
//! made from a resolved address.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;

use portolan_kernel::raw::{EventsReported, Fields, MigrateId, number};
use rustix::io::Errno;

use crate::event::Left;
use crate::guard::{Result, caught, failed};
use crate::id::{Id, get, set};
use crate::layout::{AddrInfo, CmId, EventChannel, Pd, QpInitAttr, RAI_PASSIVE};
use crate::{channel, connect, event, multicast, qp, resolve};

/// What resolving an endpoint's address and route may take, each.
const RESOLVE_TIMEOUT_MS: c_int = 2000;

/// `rdma_create_id`; without a channel it gets one of its own, and its calls wait.
///
/// # Errors
/// Those of the channel and the kernel's.
pub(crate) fn create(channel: *mut EventChannel, context: *mut c_void, ps: u32) -> Result<Id> {
    create_as(channel, context, ps, None)
}

fn create_as(
    channel: *mut EventChannel,
    context: *mut c_void,
    ps: u32,
    qp_type: Option<u32>,
) -> Result<Id> {
    let is_sync = channel.is_null();
    let channel = if is_sync { channel::create()? } else { channel };
    let id = Id::new(channel, is_sync);
    set!(id, context = context);
    set!(id, ps = ps);
    match qp_type {
        Some(qp_type) => set!(id, qp_type = qp_type),
        None => connect::set_kind(id, ps),
    }
    if let Err(errno) = id.create_in_kernel() {
        // SAFETY: nobody has seen it yet.
        unsafe { release(id) };
        return Err(errno);
    }
    Ok(id)
}

/// `rdma_destroy_id`: waits until all its events are acknowledged.
///
/// # Errors
/// The kernel's; the id then stays.
///
/// # Safety
/// Nobody uses the id any more but to acknowledge its events.
pub(crate) unsafe fn destroy(id: Id) -> Result<()> {
    id.own().lookup.close();
    let reported = id.destroy_in_kernel()?;
    event::drop_kept(id);
    id.wait_completed(|state| state.events_completed >= reported);
    // SAFETY: the last event is gone; the caller says that nobody else has the id.
    unsafe { release(id) };
    Ok(())
}

/// Destroys an id that no program has seen.
pub(crate) fn destroy_child(id: Id) -> Result<()> {
    id.own().lookup.close();
    let done = id.destroy_in_kernel().map(drop);
    // SAFETY: no program has seen it.
    unsafe { release(id) };
    done
}

/// # Safety
/// As for [`Id::free`].
unsafe fn release(id: Id) {
    multicast::forget_all(id);
    if let Some(device) = id.state().device.take() {
        device.leave_domain();
    }
    let own_channel = id.is_sync().then(|| get!(id, channel));
    // SAFETY: as the caller promises.
    unsafe { id.free() };
    if let Some(channel) = own_channel {
        // SAFETY: it was the id's alone.
        unsafe { channel::destroy(channel) };
    }
}

/// `rdma_migrate_id`: its events are taken from the other channel from now on. Waits until those of the former are
/// acknowledged. Without a channel it becomes synchronous.
///
/// # Errors
/// `EINVAL` if it is synchronous already and there is no channel; the kernel's.
pub(crate) fn migrate(id: Id, to: *mut EventChannel) -> Result<()> {
    let becomes_sync = to.is_null();
    if becomes_sync && id.is_sync() {
        return Err(Errno::INVAL);
    }
    let to = if becomes_sync { channel::create()? } else { to };
    // The end of a look-up is told on the channel that the id has then.
    let paused = id.own().lookup.pause();
    let reported = move_in_kernel(id, to);
    let reported = match reported {
        Ok(reported) => reported,
        Err(errno) => {
            drop(paused);
            if becomes_sync {
                // SAFETY: nobody has seen it.
                unsafe { channel::destroy(to) };
            }
            return Err(errno);
        }
    };
    let former = get!(id, channel);
    set!(id, channel = to);
    drop(paused);
    if id.is_sync() {
        event::drop_kept(id);
        // SAFETY: it was the id's alone, which has another now.
        unsafe { channel::destroy(former) };
    }
    id.set_sync(becomes_sync);
    id.wait_completed(|state| state.events_completed >= reported);
    Ok(())
}

fn move_in_kernel(id: Id, to: *mut EventChannel) -> Result<u32> {
    let migrate = MigrateId {
        response: 0,
        id: id.handle(),
        fd: id.commands()?.as_fd().as_raw_fd().cast_unsigned(),
    };
    let commands = channel::hold(to)?;
    let answer = commands.ask(number::MIGRATE_ID, migrate, &EventsReported::zeroed())?;
    Ok(answer.events_reported)
}

/// `rdma_create_ep`: the first address of the list is bound or resolved.
///
/// # Safety
/// The address is one of `rdma_getaddrinfo`'s, or alike; the others are null or C's.
pub(crate) unsafe fn create_endpoint(
    into: *mut *mut CmId,
    info: *const AddrInfo,
    pd: *mut Pd,
    attr: *mut QpInitAttr,
) -> c_int {
    let made = caught(|| {
        if into.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: as the caller promises.
        let info = unsafe { info.as_ref() }.ok_or(Errno::INVAL)?;
        let ps = info.ai_port_space.cast_unsigned();
        let qp_type = info.ai_qp_type.cast_unsigned();
        create_as(null_mut(), null_mut(), ps, Some(qp_type))
    });
    let done = made.and_then(|id| {
        // SAFETY: as the caller promises.
        let prepared = unsafe { prepare(id, info, pd, attr) };
        caught(|| {
            if let Err(errno) = prepared {
                qp::destroy(id);
                // SAFETY: no program has seen it.
                unsafe { destroy(id) }?;
                return Err(errno);
            }
            // SAFETY: as the caller promises; null was refused.
            unsafe { into.write(id.as_c()) };
            Ok(())
        })
    });
    done.map_or_else(failed, |()| 0)
}

/// Each step is caught by itself: between them the thread may be cancelled, with nothing to drop.
///
/// # Safety
/// As for [`create_endpoint`]; the address is not null.
unsafe fn prepare(id: Id, info: *const AddrInfo, pd: *mut Pd, attr: *mut QpInitAttr) -> Result<()> {
    // SAFETY: as the caller promises.
    let (info, attr) = unsafe { (&*info, attr.as_mut()) };
    if info.ai_flags & RAI_PASSIVE != 0 {
        // SAFETY: as the caller promises.
        return caught(|| unsafe { prepare_listener(id, info, pd, attr) });
    }
    let (source, destination) = (info.ai_src_addr, info.ai_dst_addr);
    // SAFETY: as the caller promises.
    let resolving = caught(|| unsafe {
        resolve::resolve_address(id, source, destination, RESOLVE_TIMEOUT_MS)
    })?;
    event::settle(resolving)?;
    // SAFETY: as the caller promises.
    let routing = caught(|| unsafe { begin_route(id, info) })?;
    event::settle(routing)?;
    // SAFETY: as the caller promises.
    caught(|| unsafe { prepare_caller(id, info, pd, attr) })
}

unsafe fn prepare_listener(
    id: Id,
    info: &AddrInfo,
    pd: *mut Pd,
    attr: Option<&mut QpInitAttr>,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { resolve::bind(id, info.ai_src_addr) }?;
    if !pd.is_null() {
        set!(id, pd = pd);
    }
    id.state().qp_init_attr = attr.map(|attr| {
        attr.qp_type = get!(id, qp_type);
        *attr
    });
    Ok(())
}

unsafe fn begin_route(id: Id, info: &AddrInfo) -> Result<Left> {
    if info.ai_route_len == 0 || info.ai_route.is_null() {
        return resolve::resolve_route(id, RESOLVE_TIMEOUT_MS);
    }
    // SAFETY: as the caller promises.
    let paths = unsafe { std::slice::from_raw_parts(info.ai_route.cast(), info.ai_route_len) };
    resolve::set_route(id, paths)
}

unsafe fn prepare_caller(
    id: Id,
    info: &AddrInfo,
    pd: *mut Pd,
    attr: Option<&mut QpInitAttr>,
) -> Result<()> {
    if let Some(attr) = attr {
        attr.qp_type = get!(id, qp_type);
        qp::create(id, pd, attr)?;
    }
    if info.ai_connect_len > 0 && !info.ai_connect.is_null() {
        let data = info.ai_connect.cast();
        // SAFETY: as the caller promises.
        connect::prefix(id, unsafe {
            std::slice::from_raw_parts(data, info.ai_connect_len)
        });
    }
    Ok(())
}

/// `rdma_destroy_ep`: the id with its queue pair and shared receive queue.
///
/// # Safety
/// As for [`destroy`].
pub(crate) unsafe fn destroy_endpoint(id: Id) {
    if !get!(id, qp).is_null() {
        qp::destroy(id);
    }
    if !get!(id, srq).is_null() {
        qp::destroy_srq(id);
    }
    // SAFETY: as the caller promises.
    let _ = unsafe { destroy(id) };
}

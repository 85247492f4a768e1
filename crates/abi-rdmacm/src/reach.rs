//! `ibv_gid_reachable`, for the devices of any libibverbs.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{CStr, c_int, c_uint};
use std::future::Future;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

use portolan::reach;
use portolan_abi_layout::pointers::In;
use portolan_wire::Gid as WireGid;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::guard::{Result, check, last_errno};
use crate::layout::{Context, Gid, GidEntry, LINK_LAYER_INFINIBAND, PORT_ACTIVE, PortAttr};
use crate::verbs::verbs;

/// Maximum time to wait for an answer. Queries to the subnet administrator and for the next hop are retried within
/// it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum of GIDs of a port: an address vector's index is one byte.
const GIDS_MAX: usize = 256;

/// Whether a port's link layer is InfiniBand. An unspecified one is.
pub(crate) fn is_infiniband(port: &PortAttr) -> bool {
    port.link_layer <= LINK_LAYER_INFINIBAND
}

/// Queries a port.
///
/// # Errors
/// `EINVAL` if the port does not exist; the verb's.
///
/// # Safety
/// libibverbs has opened the context.
pub(crate) unsafe fn query_port(context: *mut Context, port_num: u8) -> Result<PortAttr> {
    let mut attr = PortAttr::zeroed();
    // SAFETY: the context is open. This version of the function writes at most this structure.
    check(unsafe { (verbs()?.query_port)(context, port_num, &mut attr) })?;
    Ok(attr)
}

/// `ibv_gid_reachable`.
///
/// # Errors
/// `EINVAL` for null, an invalid timeout, port or GID; `ENXIO` without a path; `EIO` if the answer is unknown;
/// `ENOMEM`; `EINTR`.
///
/// # Safety
/// The context is null, or libibverbs has opened it.
pub(crate) unsafe fn gid_reachable(
    context: *mut Context,
    port: c_uint,
    wanted: In<Gid>,
    timeout: c_int,
) -> Result<()> {
    let wanted = wanted.required()?;
    if context.is_null() || timeout != 0 {
        return Err(Errno::INVAL);
    }
    let port = u8::try_from(port).map_err(|_| Errno::INVAL)?;
    // SAFETY: the context is open; null was refused.
    let port = unsafe { port_of(context, port) }?;
    wait(reach::start(&port, (*wanted).into(), PATIENCE))
}

/// Wakes the calling thread. A read(2) of it ends early if a signal's handler does not restart system calls.
struct Bell(OwnedFd);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // Fails only if it has been rung 2^64 times.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// Waits for the outcome.
///
/// # Errors
/// Those of [`gid_reachable`]; `EINTR`.
fn wait(reaching: reach::Reaching) -> Result<()> {
    let mut reaching = pin!(reaching);
    let mut look = |waker: &Waker| {
        let outcome = reaching.as_mut().poll(&mut TaskContext::from_waker(waker));
        let errno = |refused: reach::Unreachable| Errno::from_raw_os_error(refused.errno());
        outcome.map(|outcome| outcome.map(drop).map_err(errno))
    };
    // Many answers are there at once.
    if let Poll::Ready(outcome) = look(Waker::noop()) {
        return outcome;
    }
    let bell = eventfd(0, EventfdFlags::CLOEXEC).map_err(|_| Errno::NOMEM)?;
    let bell = Arc::new(Bell(bell));
    let waker = Waker::from(Arc::clone(&bell));
    loop {
        if let Poll::Ready(outcome) = look(&waker) {
            return outcome;
        }
        rustix::io::read(&bell.0, &mut [0; 8])?;
    }
}

/// The port to ask from. 0 selects the first active one.
///
/// # Safety
/// libibverbs has opened the context.
unsafe fn port_of(context: *mut Context, port_num: u8) -> Result<reach::Port> {
    let candidates = match port_num {
        0 => 1..=u8::MAX,
        port_num => port_num..=port_num,
    };
    for candidate in candidates {
        // SAFETY: the context is open.
        let attr = match unsafe { query_port(context, candidate) } {
            Ok(attr) => attr,
            // Ports are numbered without gaps.
            Err(_) if port_num == 0 => break,
            Err(_) => return Err(Errno::INVAL),
        };
        if attr.state == PORT_ACTIVE {
            // SAFETY: the context is open.
            return unsafe { describe(context, candidate, &attr) };
        }
    }
    Err(Errno::IO)
}

/// # Safety
/// The context is open.
unsafe fn describe(context: *mut Context, port_num: u8, attr: &PortAttr) -> Result<reach::Port> {
    // SAFETY: an open device has a name, which exists as long as the device.
    let name = unsafe { CStr::from_ptr((verbs()?.get_device_name)((*context).device)) };
    let name = name.to_string_lossy();
    if is_infiniband(attr) {
        let port = reach::Port::infiniband_named(&name, port_num);
        return port.map_err(|reason| Errno::from_raw_os_error(reason.errno()));
    }
    // SAFETY: the context is open.
    let entries = unsafe { gids(context) }?;
    let entries = entries
        .iter()
        .filter(|entry| entry.port_num == u32::from(port_num));
    let (addresses, interfaces): (Vec<IpAddr>, Vec<u32>) = entries
        .map(|entry| (WireGid::from(entry.gid).to_ip(), entry.ndev_ifindex))
        .unzip();
    Ok(reach::Port::ethernet(
        &name, port_num, addresses, interfaces,
    ))
}

/// # Safety
/// The context is open.
unsafe fn gids(context: *mut Context) -> Result<Vec<GidEntry>> {
    let mut entries = vec![GidEntry::zeroed(); GIDS_MAX];
    let (place, size) = (entries.as_mut_ptr(), size_of::<GidEntry>());
    // SAFETY: the context is open, and there is room for that many entries.
    let found = unsafe { (verbs()?.query_gid_table)(context, place, GIDS_MAX, 0, size) };
    match usize::try_from(found) {
        Ok(found) => {
            entries.truncate(found);
            Ok(entries)
        }
        Err(_) => Err(i32::try_from(-found).map_or(last_errno(), crate::guard::errno_of)),
    }
}

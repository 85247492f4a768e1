//! From an address to a route: bind, resolve, listen, options.

use std::ffi::{c_int, c_void};

use libc::sockaddr;
use portolan_kernel::raw::{self, Fields};
use rustix::io::Errno;

use crate::address;
use crate::event::{self, Left};
use crate::guard::Result;
use crate::id::{Id, get, set};
use crate::layout::{OPTION_IB, OPTION_IB_PATH};

/// Bytes of an option's value; the longest is an array of a few paths.
const OPTION_MAX: usize = 64 * 1024 - 1;

/// `rdma_bind_addr`.
///
/// # Errors
/// Those of the address and the kernel's.
///
/// # Safety
/// The address is null or as long as its family's.
pub(crate) unsafe fn bind(id: Id, local: *const sockaddr) -> Result<()> {
    // SAFETY: as the caller promises.
    let (addr, addr_size) = unsafe { address::read(local) }?;
    let bind = raw::Bind {
        id: id.handle(),
        addr_size,
        reserved: 0,
        addr,
    };
    id.commands()?.command(&bind)?;
    id.query_addresses()?;
    match get!(id, verbs).is_null() {
        true => Ok(()),
        false => id.query_gids(),
    }
}

/// `rdma_resolve_addr`.
///
/// # Errors
/// Those of the addresses and the kernel's.
///
/// # Safety
/// The addresses are null or as long as their families'.
pub(crate) unsafe fn resolve_address(
    id: Id,
    source: *const sockaddr,
    destination: *const sockaddr,
    timeout_ms: c_int,
) -> Result<Left> {
    // SAFETY: as the caller promises.
    let (dst_addr, dst_size) = unsafe { address::read(destination) }?;
    let (src_addr, src_size) = match source.is_null() {
        true => ([0; 128], 0),
        // SAFETY: as the caller promises.
        false => unsafe { address::read(source) }?,
    };
    let resolve = raw::ResolveAddr {
        id: id.handle(),
        timeout_ms: timeout_ms.cast_unsigned(),
        src_size,
        dst_size,
        reserved: 0,
        src_addr,
        dst_addr,
    };
    let former = get!(id, route.addr.dst_storage);
    event::begun(id, |commands| {
        // SAFETY: C's part of the id has room for every address.
        unsafe {
            let place = &raw mut (*id.as_c()).route.addr.dst_storage;
            std::ptr::copy_nonoverlapping(dst_addr.as_ptr(), place.cast(), usize::from(dst_size));
        }
        commands
            .command(&resolve)
            .inspect_err(|_| set!(id, route.addr.dst_storage = former))
    })
}

/// `rdma_resolve_route`.
///
/// # Errors
/// The kernel's.
pub(crate) fn resolve_route(id: Id, timeout_ms: c_int) -> Result<Left> {
    let resolve = raw::ResolveRoute {
        id: id.handle(),
        timeout_ms: timeout_ms.cast_unsigned(),
    };
    event::begun(id, |commands| commands.command(&resolve))
}

/// `rdma_listen`.
///
/// # Errors
/// The kernel's.
pub(crate) fn listen(id: Id, backlog: c_int) -> Result<()> {
    let listen = raw::Listen {
        id: id.handle(),
        backlog: backlog.cast_unsigned(),
    };
    id.commands()?.command(&listen)?;
    // An id that was not bound has its port only now.
    id.query_addresses()
}

/// `rdma_set_option`. A path for the route is answered by an event.
///
/// # Errors
/// `EINVAL` for a value that is not there or too long; the kernel's.
///
/// # Safety
/// The value is as long as said.
pub(crate) unsafe fn set_option(
    id: Id,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> Result<()> {
    if value.is_null() || length > OPTION_MAX {
        return Err(Errno::INVAL);
    }
    let option = raw::SetOption {
        id: id.handle(),
        level: level.cast_unsigned(),
        optname: name.cast_unsigned(),
        ..raw::SetOption::zeroed()
    };
    // SAFETY: as the caller promises.
    let value = unsafe { std::slice::from_raw_parts(value.cast(), length) };
    id.commands()?.set_option(option, value)
}

/// Gives the id its route, found by somebody else: an array of `struct ibv_path_data`.
///
/// # Errors
/// The kernel's.
pub(crate) fn set_route(id: Id, paths: &[u8]) -> Result<Left> {
    let option = raw::SetOption {
        id: id.handle(),
        level: OPTION_IB,
        optname: OPTION_IB_PATH,
        ..raw::SetOption::zeroed()
    };
    event::begun(id, |commands| commands.set_option(option, paths))
}

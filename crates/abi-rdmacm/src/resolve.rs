//! Binds, resolves addresses and routes, listens, and sets options.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_int;

use portolan_abi_layout::pointers::Bytes;
use portolan_kernel::raw::{self, Fields};
use rustix::io::Errno;

use crate::address::SocketAddress;
use crate::guard::Result;
use crate::id::{Id, get, set};
use crate::layout::{OPTION_IB, OPTION_IB_PATH};
use crate::sync::{Left, begun};

/// Maximum length of an option's value, bytes. The longest is an array of a few paths.
const OPTION_MAX: usize = 64 * 1024 - 1;

/// `rdma_bind_addr`.
///
/// # Errors
/// Those of the address and the kernel's.
pub(crate) fn bind(id: &Id, local: SocketAddress) -> Result<()> {
    let (addr, addr_size) = local.required()?;
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
pub(crate) fn resolve_address(
    id: &Id,
    source: SocketAddress,
    destination: SocketAddress,
    timeout_ms: c_int,
) -> Result<Left> {
    let (dst_addr, dst_size) = destination.required()?;
    let (src_addr, src_size) = source.get()?.unwrap_or(([0; 128], 0));
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
    begun(id, |commands| {
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
pub(crate) fn resolve_route(id: &Id, timeout_ms: c_int) -> Result<Left> {
    let resolve = raw::ResolveRoute {
        id: id.handle(),
        timeout_ms: timeout_ms.cast_unsigned(),
    };
    begun(id, |commands| commands.command(&resolve))
}

/// `rdma_listen`.
///
/// # Errors
/// The kernel's.
pub(crate) fn listen(id: &Id, backlog: c_int) -> Result<()> {
    let listen = raw::Listen {
        id: id.handle(),
        backlog: backlog.cast_unsigned(),
    };
    id.commands()?.command(&listen)?;
    // Listening has bound an unbound id to a port.
    id.query_addresses()
}

/// `rdma_set_option`. Setting a path for the route is answered by an event.
///
/// # Errors
/// `EINVAL` for a null or too long value; the kernel's.
///
/// # Safety
/// The value has `length` bytes.
pub(crate) unsafe fn set_option(
    id: &Id,
    level: c_int,
    name: c_int,
    value: Bytes,
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
    // SAFETY: the caller promises `length` bytes.
    let value = unsafe { value.get(length) };
    id.commands()?.set_option(option, value)
}

/// Sets the id's route to known paths: an array of `struct ibv_path_data`.
///
/// # Errors
/// The kernel's.
pub(crate) fn set_route(id: &Id, paths: &[u8]) -> Result<Left> {
    let option = raw::SetOption {
        id: id.handle(),
        level: OPTION_IB,
        optname: OPTION_IB_PATH,
        ..raw::SetOption::zeroed()
    };
    begun(id, |commands| commands.set_option(option, paths))
}

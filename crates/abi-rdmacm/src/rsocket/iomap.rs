//! Memory of the program that the peer writes directly.

#![allow(unsafe_code, reason = "memory of C programs")]

use std::ffi::c_int;

use portolan::provider::verbs::Access;
use portolan::stream::{Iomap, Sge};
use rustix::io::Errno;

use super::errno::{of_error, of_io};
use super::socket::{Mapping, Rsocket};
use crate::guard::Result;

/// `riomap`: returns the offset.
///
/// # Errors
/// `EINVAL` for rights other than writing, or memory of more than 4 GiB; `ENOMEM` if the peer's table is full;
/// `ENOTCONN`; those of the registration.
///
/// # Safety
/// The memory stays mapped until `riounmap` or `rclose`.
pub(crate) unsafe fn map(
    socket: &Rsocket,
    addr: usize,
    length: usize,
    prot: c_int,
    offset: i64,
) -> Result<i64> {
    if prot & !libc::PROT_WRITE != 0 {
        return Err(Errno::INVAL);
    }
    let bytes = u32::try_from(length)
        .ok()
        .filter(|bytes| *bytes > 0)
        .ok_or(Errno::INVAL)?;
    let stream = socket.stream(socket.is_nonblocking())?;
    let is_remote = prot & libc::PROT_WRITE != 0;
    let access = match is_remote {
        true => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        false => Access::LOCAL_WRITE,
    };
    let mut mappings = socket.mappings.lock();
    // SAFETY: the caller promises that the memory stays mapped. The program shares it with its peer on purpose.
    let region = unsafe { stream.pd().register(addr as u64, length as u64, access) };
    let region = region.map_err(|error| of_error(&error))?;
    // Without an offset, the address is the offset.
    let offset = if offset == -1 { addr as i64 } else { offset };
    let entry = match is_remote {
        false => None,
        true => {
            let memory = Sge {
                addr: addr as u64,
                key: region.rkey(),
                length: bytes,
            };
            let offset = offset.cast_unsigned();
            Some(stream.map(Iomap { offset, memory }).ok_or(Errno::NOMEM)?)
        }
    };
    mappings.push(Mapping {
        addr,
        length,
        region,
        entry,
    });
    Ok(offset)
}

/// `riounmap`.
///
/// # Errors
/// `EINVAL` if this memory is not mapped.
pub(crate) fn unmap(socket: &Rsocket, addr: usize, length: usize) -> Result<()> {
    let mut mappings = socket.mappings.lock();
    let at = mappings
        .iter()
        .position(|mapping| mapping.addr == addr && mapping.length == length);
    let mapping = mappings.swap_remove(at.ok_or(Errno::INVAL)?);
    drop(mappings);
    withdraw(socket, &mapping);
    Ok(())
}

/// Unmaps everything before the socket closes.
pub(super) fn unmap_all(socket: &Rsocket) {
    let mappings = std::mem::take(&mut *socket.mappings.lock());
    mappings
        .iter()
        .for_each(|mapping| withdraw(socket, mapping));
}

fn withdraw(socket: &Rsocket, mapping: &Mapping) {
    // The key becomes invalid with the region. Dropping the region deregisters, too.
    let _ = mapping.region.deregister();
    if let (Some(entry), Ok(stream)) = (mapping.entry, socket.stream(true)) {
        stream.unmap(entry);
    }
}

/// `riowrite`: returns the number of bytes. It is smaller if the peer has mapped less.
///
/// # Errors
/// `EAGAIN`, `ENOTCONN`, `ECONNRESET`.
pub(crate) fn write(socket: &Rsocket, data: &[u8], offset: i64, flags: c_int) -> Result<usize> {
    let is_nonblocking = socket.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
    let stream = socket.stream(is_nonblocking)?;
    let mut total = 0;
    while total < data.len() {
        let at = offset.cast_unsigned().wrapping_add(total as u64);
        let written = match is_nonblocking {
            true => stream.try_write_mapped(&data[total..], at),
            false => stream.write_mapped(&data[total..], at),
        };
        match written {
            Ok(Some(length)) => total += length,
            Ok(None) => break,
            Err(_) if total > 0 => break,
            Err(error) => return Err(of_io(&error)),
        }
    }
    Ok(total)
}

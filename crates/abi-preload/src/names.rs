//! Socket addresses in C's format.

#![allow(unsafe_code, reason = "the program's memory")]

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use libc::{AF_INET6, sockaddr, socklen_t};
use portolan_abi_layout::guard::Result;
use rustix::io::Errno;
use socket2::{SockAddr, SockAddrStorage};

use crate::real;

/// Prefix of the abstract unix(7) names of the socket pairs that relay streams to other processes.
const PREFIX: &str = "portolan-stream/";

/// Copies an address from the program's memory. `None` if the pointer is null, or the address too short or too long.
///
/// # Safety
/// `place` is null or has `length` readable bytes.
pub(crate) unsafe fn read(place: *const sockaddr, length: socklen_t) -> Option<SockAddr> {
    let size = size_of::<SockAddrStorage>();
    if place.is_null() || length as usize > size || (length as usize) < size_of::<u16>() {
        return None;
    }
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: the caller vouches for `length` bytes, and the storage has room for them.
    unsafe {
        let into = std::ptr::from_mut(&mut storage).cast::<u8>();
        std::ptr::copy_nonoverlapping(place.cast::<u8>(), into, length as usize);
    }
    // SAFETY: the storage contains `length` bytes of an address.
    Some(unsafe { SockAddr::new(storage, length) })
}

/// Writes an address as getsockname(2) does: truncated to `length` bytes, and sets `length` to the full length.
///
/// # Errors
/// `EFAULT` for null, `EINVAL` for a negative length.
///
/// # Safety
/// `place` has `length` writable bytes, or one of the pointers is null.
pub(crate) unsafe fn write(
    address: &SockAddr,
    place: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<()> {
    if place.is_null() || length.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: the caller's promise.
    unsafe {
        if (*length).cast_signed() < 0 {
            return Err(Errno::INVAL);
        }
        let room = (*length).min(address.len()) as usize;
        std::ptr::copy_nonoverlapping(address.as_ptr().cast::<u8>(), place.cast(), room);
        *length = address.len();
    }
    Ok(())
}

/// The address, with an IPv4-mapped IPv6 address converted to IPv4.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The address in the format of a family: IPv6 sockets show IPv4 addresses as mapped.
pub(crate) fn of_family(address: SocketAddr, family: c_int) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if family == AF_INET6 => {
            SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into()
        }
        other => other,
    }
}

/// The kernel's local address of a descriptor.
pub(crate) fn local(number: c_int) -> Option<SocketAddr> {
    asked(real::getsockname, number)?.as_socket()
}

pub(crate) type Ask = unsafe extern "C-unwind" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

fn asked(ask: Ask, number: c_int) -> Option<SockAddr> {
    let mut storage = SockAddrStorage::zeroed();
    let mut length = size_of::<SockAddrStorage>() as socklen_t;
    // SAFETY: the storage has `length` writable bytes.
    let answer = unsafe { ask(number, std::ptr::from_mut(&mut storage).cast(), &mut length) };
    // SAFETY: the kernel has written `length` bytes of an address.
    (answer == 0).then(|| unsafe { SockAddr::new(storage, length) })
}

/// `getsockname` or `getpeername` of a kernel descriptor. One end of a relay pair has its stream's addresses.
///
/// # Safety
/// As for getsockname(2).
pub(crate) unsafe fn of_kernel(
    ask: Ask,
    number: c_int,
    place: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // The program's buffer may be too short for a pair's name, so first read the whole name into our own. Any program can take
    // such a name, so the peer's counts only if this end has one.
    if let Some(found) = asked(ask, number)
        && let Some(address) = of_pair(&found)
        && is_pair(number)
    {
        // SAFETY: the caller's promise.
        return match unsafe { write(&SockAddr::from(address), place, length) } {
            Ok(()) => 0,
            Err(errno) => portolan_abi_layout::guard::failed(errno),
        };
    }
    // SAFETY: the caller's promise.
    unsafe { ask(number, place, length) }
}

/// Whether a descriptor is one end of a relay pair.
pub(crate) fn is_pair(number: c_int) -> bool {
    asked(real::getsockname, number).is_some_and(|name| of_pair(&name).is_some())
}

/// The name of one end of a relay pair.
pub(crate) fn pair_name(address: SocketAddr, id: u64, side: &str) -> Vec<u8> {
    let process = std::process::id();
    format!("{PREFIX}{address}/{side}/{process}/{id}").into_bytes()
}

fn of_pair(name: &SockAddr) -> Option<SocketAddr> {
    let bytes = name.as_abstract_namespace()?;
    let text = std::str::from_utf8(bytes).ok()?.strip_prefix(PREFIX)?;
    text.split('/').next()?.parse().ok()
}

/// The wildcard address of a family.
pub(crate) fn wildcard(family: c_int) -> SocketAddr {
    let ip = match family {
        AF_INET6 => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
        _ => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_mapped_into_the_family_of_its_socket_and_back() {
        let address: SocketAddr = "10.7.0.1:80".parse().unwrap();
        let mapped = of_family(address, AF_INET6);
        assert_eq!(mapped, "[::ffff:10.7.0.1]:80".parse().unwrap());
        assert_eq!(plain(mapped), address);
        assert_eq!(of_family(address, libc::AF_INET), address);
    }

    #[test]
    fn an_address_is_cut_where_the_place_ends() {
        let address: SocketAddr = "[2001:db8::1]:443".parse().unwrap();
        let mut bytes = [0u8; 4];
        let mut length: socklen_t = 4;
        // SAFETY: the array has `length` bytes.
        unsafe { write(&address.into(), bytes.as_mut_ptr().cast(), &mut length) }.unwrap();
        assert_eq!(length as usize, size_of::<libc::sockaddr_in6>());
        assert_eq!(bytes[2..], 443u16.to_be_bytes());
    }
}

//! Socket addresses in C's format.

#![allow(unsafe_code, reason = "pointers of C programs")]

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use libc::{AF_INET, AF_INET6, sockaddr, socklen_t};
use rustix::io::Errno;

use super::socket::{Rsocket, State};
use crate::address::Storage;
use crate::guard::Result;

/// Reads an address from the first `length` bytes.
///
/// # Errors
/// `EINVAL` if there are too few bytes; `EAFNOSUPPORT` for a family without streams.
pub(super) fn read(bytes: &Storage, length: usize) -> Result<SocketAddr> {
    let half = |at: usize| [bytes[at], bytes[at + 1]];
    let port = u16::from_be_bytes(half(2));
    match c_int::from(u16::from_ne_bytes(half(0))) {
        AF_INET if length >= size_of::<libc::sockaddr_in>() => {
            let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            Ok(SocketAddr::new(ip.into(), port))
        }
        // sockaddr_in6 without its scope is valid, too (RFC 2133).
        AF_INET6 if length >= 24 => {
            let ip: [u8; 16] = std::array::from_fn(|at| bytes[8 + at]);
            let word = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            let scope = if length >= 28 {
                u32::from_ne_bytes(word(24))
            } else {
                0
            };
            let flow = u32::from_ne_bytes(word(4));
            Ok(SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into())
        }
        AF_INET | AF_INET6 => Err(Errno::INVAL),
        _ => Err(Errno::AFNOSUPPORT),
    }
}

/// Writes an address as getsockname(2) does: at most `*length` bytes. `*length` becomes the full length.
///
/// # Safety
/// `place` has `*length` bytes, or one of the pointers is null.
pub(super) unsafe fn write(address: SocketAddr, place: *mut sockaddr, length: *mut socklen_t) {
    if place.is_null() || length.is_null() {
        return;
    }
    let mut bytes: Storage = [0; 128];
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    let (family, whole) = match address {
        SocketAddr::V4(v4) => {
            bytes[4..8].copy_from_slice(&v4.ip().octets());
            (AF_INET, size_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(v6) => {
            bytes[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            (AF_INET6, size_of::<libc::sockaddr_in6>())
        }
    };
    bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    // SAFETY: the caller promises both.
    unsafe {
        let room = (*length as usize).min(whole);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast(), room);
        *length = whole as socklen_t;
    }
}

/// `rgetsockname`.
///
/// # Safety
/// As for getsockname(2).
pub(crate) unsafe fn socket_name(
    socket: &Rsocket,
    place: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<()> {
    let unbound = || match socket.family {
        AF_INET6 => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0),
        _ => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
    };
    check(place, length)?;
    let local = match &*socket.state.lock() {
        State::Connected(stream) => stream.local_addr().ok(),
        State::Datagram(datagrams) => datagrams.local_addr().ok(),
        State::Listening(listener) => listener.local_addr().ok(),
        State::Fresh(fresh) => fresh
            .id()
            .addresses()
            .ok()
            .and_then(|known| known.local?.inet()),
        State::Connecting(connecting) => connecting
            .id()
            .addresses()
            .ok()
            .and_then(|known| known.local?.inet()),
        State::Refused { .. } | State::Changing => None,
    };
    // SAFETY: the caller promises the place.
    unsafe { write(local.unwrap_or_else(unbound), place, length) };
    Ok(())
}

/// `rgetpeername`.
///
/// # Errors
/// `ENOTCONN`.
///
/// # Safety
/// As for getpeername(2).
pub(crate) unsafe fn peer_name(
    socket: &Rsocket,
    place: *mut sockaddr,
    length: *mut socklen_t,
) -> Result<()> {
    check(place, length)?;
    let peer = match &*socket.state.lock() {
        State::Connected(stream) => stream.peer_addr().ok(),
        State::Datagram(datagrams) => datagrams.peer_addr().ok(),
        _ => None,
    };
    // SAFETY: the caller promises the place.
    unsafe { write(peer.ok_or(Errno::NOTCONN)?, place, length) };
    Ok(())
}

fn check(place: *mut sockaddr, length: *mut socklen_t) -> Result<()> {
    match place.is_null() || length.is_null() {
        true => Err(Errno::FAULT),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_was_written_and_cut_where_the_place_ends() {
        for text in ["127.0.0.1:7471", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut bytes: Storage = [0; 128];
            let mut length: socklen_t = 128;
            // SAFETY: as many bytes as the length says.
            unsafe { write(address, bytes.as_mut_ptr().cast(), &mut length) };
            assert_eq!(read(&bytes, length as usize), Ok(address));
            assert_eq!(read(&bytes, 8), Err(Errno::INVAL));
            let mut short = [0u8; 4];
            let mut room: socklen_t = 4;
            // SAFETY: as above.
            unsafe { write(address, short.as_mut_ptr().cast(), &mut room) };
            assert_eq!((room, &short[..]), (length, &bytes[..4]));
        }
    }
}

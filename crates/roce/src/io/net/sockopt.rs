//! Socket options and addresses that no dependency wraps.

#![allow(unsafe_code, reason = "setsockopt(2) and C addresses")]

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_void, socklen_t};

use portolan_port_sharing::Family;

/// IP version of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum IpVersion {
    V4,
    V6,
}

impl From<Family> for IpVersion {
    fn from(family: Family) -> Self {
        match family {
            Family::Ipv4 => Self::V4,
            Family::Ipv6 => Self::V6,
        }
    }
}

impl IpVersion {
    /// The IP version of an address. An IPv4-mapped IPv6 address uses IPv4.
    pub(crate) fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

/// `setsockopt` with an integer.
pub(crate) fn set_int(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    let (pointer, len) = (&raw const value, size_of::<c_int>() as socklen_t);
    // SAFETY: the option's value is an integer of the given length.
    let done =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer.cast::<c_void>(), len) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Makes a socket receive nothing: a filter that keeps zero bytes of each packet drops it.
pub(crate) fn refuse_input(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut program = [libc::sock_filter {
        code: BPF_RETURN,
        jt: 0,
        jf: 0,
        k: 0,
    }];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER);
    let len = size_of::<libc::sock_fprog>() as socklen_t;
    let pointer = (&raw const filter).cast::<c_void>();
    // SAFETY: a program of one instruction, which the kernel copies before it returns.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer, len) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `BPF_RET | BPF_K`.
const BPF_RETURN: u16 = 0x06;

/// Has room for an IPv4 or IPv6 address.
pub(crate) type SockaddrStorage = libc::sockaddr_in6;

/// A zeroed [`SockaddrStorage`].
pub(crate) fn empty_sockaddr() -> SockaddrStorage {
    // SAFETY: plain data, for which zeros are a value.
    unsafe { std::mem::zeroed() }
}

/// Writes an address for the kernel, and returns its length.
pub(crate) fn encode(addr: SocketAddr, out: &mut SockaddrStorage) -> socklen_t {
    match (addr.ip().to_canonical(), addr) {
        (IpAddr::V4(ip), _) => {
            let inet = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(ip.octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: `sockaddr_in6` is larger than `sockaddr_in` and as strictly aligned.
            unsafe { (&raw mut *out).cast::<libc::sockaddr_in>().write(inet) };
            size_of::<libc::sockaddr_in>() as socklen_t
        }
        (IpAddr::V6(ip), addr) => {
            let scope_id = match addr {
                SocketAddr::V6(v6) => v6.scope_id(),
                SocketAddr::V4(_) => 0,
            };
            *out = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: ip.octets(),
                },
                sin6_scope_id: scope_id,
            };
            size_of::<libc::sockaddr_in6>() as socklen_t
        }
    }
}

/// Reads an address that the kernel wrote.
pub(crate) fn decode(addr: &SockaddrStorage) -> Option<SocketAddr> {
    match c_int::from(addr.sin6_family) {
        libc::AF_INET => {
            // SAFETY: the family shows that the kernel wrote a `sockaddr_in`. It is smaller and no more strictly
            // aligned.
            let inet = unsafe { &*(&raw const *addr).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(inet.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(ip.into(), u16::from_be(inet.sin_port)))
        }
        libc::AF_INET6 => {
            let ip = Ipv6Addr::from(addr.sin6_addr.s6_addr);
            let port = u16::from_be(addr.sin6_port);
            Some(SocketAddrV6::new(ip, port, 0, addr.sin6_scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_survive_a_round_trip() {
        for text in ["127.0.0.1:4791", "[::1]:49152", "[fe80::1%3]:7"] {
            let addr: SocketAddr = text.parse().unwrap();
            let mut raw = empty_sockaddr();
            encode(addr, &mut raw);
            assert_eq!(decode(&raw), Some(addr));
        }
        assert_eq!(decode(&empty_sockaddr()), None);
    }
}

//! Empty datagrams that make the kernel resolve a neighbour. Sending needs no privilege, and the kernel must resolve
//! the link-layer address before it can transmit.

#![allow(
    unsafe_code,
    reason = "socket options and control messages without a safe wrapper"
)]

use std::io::IoSliceMut;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SocketFlags, SocketType, recvmsg, socket_with,
    sockopt,
};

/// The discard service (RFC 863), which ignores its input.
const DISCARD_PORT: u16 = 9;
/// A probe must not go beyond the next hop.
const HOP_LIMIT: u8 = 1;
/// Maximum number of errors read from one socket before others get their turn.
const ERRORS_PER_TURN_MAX: usize = 64;

/// A UDP socket of one family that sends probes and collects the ICMP errors about them.
#[derive(Debug)]
pub(crate) struct ProbeSocket {
    fd: OwnedFd,
}

impl ProbeSocket {
    /// Opens the socket for destinations of the address's family.
    pub(crate) fn open(family_of: IpAddr) -> Result<Self, Errno> {
        let (family, level, option) = match family_of {
            IpAddr::V4(_) => (AddressFamily::INET, libc::IPPROTO_IP, libc::IP_RECVERR),
            IpAddr::V6(_) => (AddressFamily::INET6, libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::DGRAM, flags, None)?;
        set_flag(&fd, level, option)?;
        match family_of {
            IpAddr::V4(_) => sockopt::set_ip_ttl(&fd, HOP_LIMIT.into())?,
            IpAddr::V6(_) => sockopt::set_ipv6_unicast_hops(&fd, Some(HOP_LIMIT))?,
        }
        Ok(Self { fd })
    }

    /// Sends a probe to a next hop through this interface.
    pub(crate) fn send(&self, next_hop: IpAddr, interface_index: u32) -> Result<(), Errno> {
        // Clear the error of an earlier probe, which this call would otherwise return.
        let _ = sockopt::socket_error(&self.fd);
        match next_hop {
            IpAddr::V4(address) => self.send_v4(address, interface_index),
            IpAddr::V6(address) => self.send_v6(address, interface_index),
        }
    }

    fn send_v4(&self, address: Ipv4Addr, interface_index: u32) -> Result<(), Errno> {
        // SAFETY: both are plain C structures, valid when all zero.
        let (mut name, mut packet_info): (libc::sockaddr_in, libc::in_pktinfo) =
            unsafe { (zeroed(), zeroed()) };
        name.sin_family = libc::AF_INET as libc::sa_family_t;
        name.sin_port = DISCARD_PORT.to_be();
        name.sin_addr.s_addr = address.to_bits().to_be();
        packet_info.ipi_ifindex = index(interface_index)?;
        self.send_empty(name, libc::IPPROTO_IP, libc::IP_PKTINFO, packet_info)
    }

    fn send_v6(&self, address: Ipv6Addr, interface_index: u32) -> Result<(), Errno> {
        // SAFETY: both are plain C structures, valid when all zero.
        let (mut name, mut packet_info): (libc::sockaddr_in6, libc::in6_pktinfo) =
            unsafe { (zeroed(), zeroed()) };
        name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
        name.sin6_port = DISCARD_PORT.to_be();
        name.sin6_addr.s6_addr = address.octets();
        if address.is_unicast_link_local() {
            name.sin6_scope_id = interface_index;
        }
        packet_info.ipi6_ifindex = index(interface_index)? as _;
        self.send_empty(name, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, packet_info)
    }

    /// sendmsg(2) with no payload and one control message.
    fn send_empty<Name, Info>(
        &self,
        mut name: Name,
        level: i32,
        kind: i32,
        info: Info,
    ) -> Result<(), Errno> {
        /// Aligned for a cmsghdr, and large enough for either packet info.
        #[repr(C, align(8))]
        struct Control([u8; 64]);
        let mut control = Control([0; 64]);
        // SAFETY: CMSG_SPACE and CMSG_LEN only compute.
        let (space, length) = unsafe {
            let size = size_of::<Info>() as u32;
            (
                libc::CMSG_SPACE(size) as usize,
                libc::CMSG_LEN(size) as usize,
            )
        };
        assert!(
            space <= control.0.len(),
            "a packet info fits the control buffer"
        );
        // SAFETY: a msghdr is valid when all zero.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_name = ptr::from_mut(&mut name).cast();
        message.msg_namelen = size_of::<Name>() as libc::socklen_t;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = space as _;
        // SAFETY: the control buffer is aligned and has `space` bytes, so it holds a first header followed by `Info`,
        // which may be unaligned there.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = length as _;
            ptr::write_unaligned(libc::CMSG_DATA(header).cast::<Info>(), info);
        }
        let mut flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        if level == libc::IPPROTO_IP {
            // The next hop is on the link, so ignore the routing table.
            flags |= libc::MSG_DONTROUTE;
        }
        // SAFETY: every pointer in `message` refers to a local that outlives the call.
        let sent = unsafe { libc::sendmsg(self.fd.as_raw_fd(), &message, flags) };
        if sent < 0 { Err(last_errno()) } else { Ok(()) }
    }

    /// Reads the ICMP errors of earlier probes and returns their next hops. Limited per turn; the socket stays ready if
    /// there are more.
    pub(crate) fn take_errors(&self) -> Vec<IpAddr> {
        let flags = RecvFlags::ERRQUEUE | RecvFlags::DONTWAIT;
        let mut next_hops = Vec::new();
        for _ in 0..ERRORS_PER_TURN_MAX {
            let mut payload = [0; 8];
            let mut none = RecvAncillaryBuffer::new(&mut []);
            let iov = &mut [IoSliceMut::new(&mut payload)];
            match recvmsg(&self.fd, iov, &mut none, flags) {
                Ok(received) => {
                    let address = received.address.and_then(|a| SocketAddr::try_from(a).ok());
                    next_hops.extend(address.map(|address| address.ip()));
                }
                Err(_) => {
                    // Empty. Also clear the pending error that came with the queue; poll(2) would report it again and
                    // again.
                    let _ = sockopt::socket_error(&self.fd);
                    break;
                }
            }
        }
        next_hops
    }
}

impl AsFd for ProbeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn set_flag(fd: &OwnedFd, level: i32, option: i32) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option's value is an int, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            ptr::from_ref(&on).cast(),
            length,
        )
    };
    if result < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}

/// Interface indices are positive C ints.
fn index(interface_index: u32) -> Result<libc::c_int, Errno> {
    libc::c_int::try_from(interface_index).map_err(|_| Errno::NODEV)
}

fn last_errno() -> Errno {
    std::io::Error::last_os_error()
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn an_icmp_error_names_the_next_hop_that_was_probed() {
        // Loopback's discard port has no listener on a test machine: port unreachable.
        let lo = crate::sys::interface::index_of("lo").expect("lo");
        for next_hop in [IpAddr::from([127, 0, 0, 1]), Ipv6Addr::LOCALHOST.into()] {
            let Ok(socket) = ProbeSocket::open(next_hop) else {
                assert!(next_hop.is_ipv6(), "IPv4 always exists");
                continue;
            };
            socket.send(next_hop, lo).expect("probe");
            let deadline = Instant::now() + Duration::from_secs(2);
            let mut errors = Vec::new();
            while errors.is_empty() && Instant::now() < deadline {
                errors = socket.take_errors();
            }
            assert_eq!(errors, [next_hop]);
        }
    }

    #[test]
    fn a_probe_out_of_a_missing_interface_fails() {
        let next_hop = IpAddr::from([192, 0, 2, 1]);
        let socket = ProbeSocket::open(next_hop).expect("socket");
        assert!(socket.send(next_hop, i32::MAX as u32).is_err());
        assert_eq!(socket.send(next_hop, u32::MAX), Err(Errno::NODEV));
    }
}

//! The UDP sockets that share the port, one per family for each block.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{self, RecvFlags, sockopt};

use super::fork::PrivateFd;
use super::raw;

/// Receive buffer of a socket without a reader: the minimum, so that packets to an unused block take almost no memory.
pub(super) const IDLE_BUFFER_BYTES: usize = 1;
/// Maximum number of datagrams discarded when a block is cleared: more than an idle socket can hold.
const DRAIN_MAX: usize = 65_536;

/// Address family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// `0.0.0.0`.
    Ipv4,
    /// `[::]`, IPv6 only.
    Ipv6,
}

/// One of the two sockets of a block: bound, nonblocking, and reporting each packet's destination address, interface,
/// traffic class and hop limit by control messages.
#[derive(Debug)]
pub struct BlockSocket {
    family: Family,
    fd: PrivateFd,
}

impl BlockSocket {
    pub(super) fn new(family: Family, fd: PrivateFd) -> Self {
        Self { family, fd }
    }

    /// The address family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Activates the socket: sets a large receive buffer, within the system's limit.
    pub(super) fn activate(&self, buffer_bytes: usize) {
        set_receive_buffer(self.fd.as_fd(), buffer_bytes);
    }

    /// Retires the socket: minimizes its buffer and discards queued packets.
    pub(super) fn retire(&self) {
        if let Err(errno) = sockopt::set_socket_recv_buffer_size(&self.fd, IDLE_BUFFER_BYTES) {
            tracing::warn!(%errno, "cannot set the receive buffer of an unused block");
        }
        self.drain();
    }

    /// Closes the socket while a thread may be reading it; that thread then reads nothing.
    pub(super) fn vacate(&self) {
        self.fd.vacate();
    }

    /// Discards queued packets.
    pub(super) fn drain(&self) {
        for _ in 0..DRAIN_MAX {
            // Any other result was a datagram or a queued error, which is now consumed.
            if net::recv(&self.fd, &mut [0u8; 0][..], RecvFlags::DONTWAIT) == Err(Errno::AGAIN) {
                return;
            }
        }
    }
}

impl AsFd for BlockSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Enables the control messages that readers need. Must be set before the first packet is queued, because the kernel
/// records some of them on arrival.
pub(super) fn set_receive_options(family: Family, socket: BorrowedFd<'_>) -> Result<(), Errno> {
    match family {
        Family::Ipv4 => {
            for name in [libc::IP_PKTINFO, libc::IP_RECVTOS, libc::IP_RECVTTL] {
                raw::set_option(socket, libc::IPPROTO_IP, name, 1)?;
            }
            // Do not receive groups that other sockets joined.
            raw::set_option(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
        }
        Family::Ipv6 => {
            for name in [
                libc::IPV6_V6ONLY,
                libc::IPV6_RECVPKTINFO,
                libc::IPV6_RECVTCLASS,
                libc::IPV6_RECVHOPLIMIT,
            ] {
                raw::set_option(socket, libc::IPPROTO_IPV6, name, 1)?;
            }
            // The kernel's rdma_rxe sends a zero UDP checksum, over IPv6 too.
            raw::set_option(socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
            // As above. Linux before 4.20 lacks this option. Its copies are then discarded, because no block contains a
            // group's queue pair number.
            let _ = raw::set_option(socket, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
        }
    }
    Ok(())
}

/// `IPV6_MULTICAST_ALL` of `linux/in6.h`.
const IPV6_MULTICAST_ALL: i32 = 29;

/// Sets the receive buffer, limited by the system.
pub(super) fn set_receive_buffer(socket: BorrowedFd<'_>, buffer_bytes: usize) {
    if sockopt::set_socket_recv_buffer_size_force(socket, buffer_bytes).is_err()
        && let Err(errno) = sockopt::set_socket_recv_buffer_size(socket, buffer_bytes)
    {
        tracing::warn!(%errno, buffer_bytes, "receive buffer not set");
    }
}

//! The UDP sockets that share the port, one of each family for each block.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SocketFlags, SocketType, sockopt};

use super::block::Block;
use super::inherit::PrivateFd;
use super::room::with_room;
use super::vault::{Parking, Vault};
use super::{bpf, raw};

/// Receive buffer of a socket nobody reads: the least there is, so that packets to a block without a
/// process take up next to no memory.
const IDLE_BUFFER_BYTES: usize = 1;
/// Datagrams thrown away at most when a block is cleared: more than an idle socket can hold.
const DRAIN_MAX: usize = 65_536;

/// Address family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// `0.0.0.0`.
    Ipv4,
    /// `[::]`, IPv6 only.
    Ipv6,
}

/// One of the two sockets on which a block's packets arrive: bound, nonblocking, and telling each
/// packet's destination address, interface, traffic class and hop limit by control messages.
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

    /// Readies the socket for use: a large receive buffer, as far as the system allows.
    pub(super) fn activate(&self, buffer_bytes: usize) {
        set_receive_buffer(self.fd.as_fd(), buffer_bytes);
    }

    /// Puts the socket out of use: no room for new packets, and those queued are thrown away.
    pub(super) fn retire(&self) {
        if let Err(errno) = sockopt::set_socket_recv_buffer_size(&self.fd, IDLE_BUFFER_BYTES) {
            tracing::warn!(%errno, "receive buffer of an unused block not set");
        }
        self.drain();
    }

    /// Closes the socket under the hands of whoever reads it, and who finds nothing any more.
    pub(super) fn vacate(&self) {
        self.fd.vacate();
    }

    /// Throws away the packets that are queued.
    pub(super) fn drain(&self) {
        for _ in 0..DRAIN_MAX {
            // Anything else is a datagram, or an error that was queued; either is gone now.
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

/// Why the sockets cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundError {
    /// Somebody has the port.
    PortTaken,
    /// A system call failed.
    Os(&'static str, Errno),
}

/// Makes every block's sockets and parks them.
///
/// The first socket of a family is bound without `SO_REUSEPORT`, which succeeds only if nobody has
/// the port, and shares it afterwards: from the first moment the port is this group's or not at all.
pub(super) fn found(port: u16) -> Result<Vault, FoundError> {
    let mut parking = Parking::new().map_err(|errno| FoundError::Os("socketpair", errno))?;
    let mut has_ipv6 = true;
    for block in Block::all() {
        let ipv4 = open(Family::Ipv4, port, block)?;
        let ipv6 = if has_ipv6 {
            open_if_supported(port, block)?
        } else {
            None
        };
        has_ipv6 = ipv6.is_some();
        if block.index() == 1 {
            // Two sockets make a reuseport group, to which a program can be attached.
            for socket in [Some(&ipv4), ipv6.as_ref()].into_iter().flatten() {
                bpf::attach(socket.as_fd())
                    .map_err(|errno| FoundError::Os("SO_ATTACH_REUSEPORT_CBPF", errno))?;
            }
        }
        parking
            .park(block, ipv4.as_fd(), ipv6.as_ref().map(AsFd::as_fd))
            .map_err(|errno| {
                FoundError::Os("sendmsg (SCM_RIGHTS, bounded by RLIMIT_NOFILE)", errno)
            })?;
    }
    Ok(parking.seal())
}

/// Whether nobody has the port, in either family. Takes it for the blink of an eye.
pub(super) fn port_is_free(port: u16) -> Result<bool, FoundError> {
    let bound = open(Family::Ipv4, port, Block::HUB)
        .and_then(|_ipv4| open_if_supported(port, Block::HUB).map(drop));
    match bound {
        Ok(()) => Ok(true),
        Err(FoundError::PortTaken) => Ok(false),
        Err(error) => Err(error),
    }
}

/// An IPv6 socket, or `None` on a machine without IPv6.
fn open_if_supported(port: u16, block: Block) -> Result<Option<PrivateFd>, FoundError> {
    match open(Family::Ipv6, port, block) {
        Ok(socket) => Ok(Some(socket)),
        Err(FoundError::Os(_, Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn open(family: Family, port: u16, block: Block) -> Result<PrivateFd, FoundError> {
    let (domain, address) = match family {
        Family::Ipv4 => (
            AddressFamily::INET,
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        ),
        Family::Ipv6 => (
            AddressFamily::INET6,
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
        ),
    };
    let os = |call| move |errno| FoundError::Os(call, errno);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let make = || net::socket_with(domain, SocketType::DGRAM, flags, None);
    let socket = with_room(|| PrivateFd::make(make)).map_err(os("socket"))?;
    set_receive_options(family, socket.as_fd()).map_err(os("setsockopt"))?;
    // The least there is, until the block has a process.
    sockopt::set_socket_recv_buffer_size(&socket, IDLE_BUFFER_BYTES).map_err(os("SO_RCVBUF"))?;
    let first = block == Block::HUB;
    if !first {
        sockopt::set_socket_reuseport(&socket, true).map_err(os("SO_REUSEPORT"))?;
    }
    net::bind(&socket, &address).map_err(|errno| match errno {
        Errno::ADDRINUSE => FoundError::PortTaken,
        errno => FoundError::Os("bind", errno),
    })?;
    if first {
        sockopt::set_socket_reuseport(&socket, true).map_err(os("SO_REUSEPORT"))?;
    }
    Ok(socket)
}

/// Asks for what the readers need to know of each packet. Set before the first packet is queued:
/// the kernel notes some of it on arrival.
pub(super) fn set_receive_options(family: Family, socket: BorrowedFd<'_>) -> Result<(), Errno> {
    match family {
        Family::Ipv4 => {
            for name in [libc::IP_PKTINFO, libc::IP_RECVTOS, libc::IP_RECVTTL] {
                raw::set_option(socket, libc::IPPROTO_IP, name, 1)?;
            }
            // Groups that others joined are none of this socket's.
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
            // As above. Linux before 4.20 does not know it: its copies are thrown away, as no queue
            // pair of any block has a group's number.
            let _ = raw::set_option(socket, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
        }
    }
    Ok(())
}

/// `IPV6_MULTICAST_ALL` of `linux/in6.h`.
const IPV6_MULTICAST_ALL: i32 = 29;

/// Gives a socket a receive buffer, as large as the system allows.
pub(super) fn set_receive_buffer(socket: BorrowedFd<'_>, buffer_bytes: usize) {
    if sockopt::set_socket_recv_buffer_size_force(socket, buffer_bytes).is_err()
        && let Err(errno) = sockopt::set_socket_recv_buffer_size(socket, buffer_bytes)
    {
        tracing::warn!(%errno, buffer_bytes, "receive buffer not set");
    }
}

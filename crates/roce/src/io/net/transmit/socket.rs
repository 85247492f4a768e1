//! Opens send sockets, and reads the kernel's errors.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use portolan_provider::{Cause, Error, Result, Step};
use rustix::io::Errno;
use socket2::Socket;

use crate::io::net::rand::random_u32;
use crate::io::net::sockopt::{IpVersion, refuse_input, set_int};
use portolan_port_sharing::room;

/// Source ports are 0xC000 and above (IBTA A17.9.2: they may contain entropy for routers).
pub(super) const SOURCE_PORT_MIN: u16 = 0xC000;
/// Attempts to draw a free source port.
const PORT_DRAWS_MAX: u32 = 256;
/// Default hop limit if the address vector has none.
pub(crate) const HOP_LIMIT_DEFAULT: u8 = 64;

pub(super) fn prepare(
    fd: BorrowedFd<'_>,
    version: IpVersion,
    buffer_bytes: usize,
) -> io::Result<()> {
    match version {
        IpVersion::V4 => {
            // Forbid fragmentation. The identification then stays zero.
            let probe = libc::IP_PMTUDISC_PROBE;
            set_int(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, probe)?;
            set_int(
                fd,
                libc::IPPROTO_IP,
                libc::IP_TTL,
                i32::from(HOP_LIMIT_DEFAULT),
            )?;
        }
        IpVersion::V6 => {
            let probe = libc::IPV6_PMTUDISC_PROBE;
            set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, probe)?;
            set_int(
                fd,
                libc::IPPROTO_IPV6,
                libc::IPV6_UNICAST_HOPS,
                i32::from(HOP_LIMIT_DEFAULT),
            )?;
        }
    }
    let wanted = i32::try_from(buffer_bytes).unwrap_or(i32::MAX);
    if set_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, wanted).is_err() {
        set_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, wanted)?;
    }
    refuse_input(fd)
}

pub(super) fn bind_to_random_port(socket: &Socket, version: IpVersion) -> Result<u16> {
    for _ in 0..PORT_DRAWS_MAX {
        let port = SOURCE_PORT_MIN | (random_u32(Step::OpenDevice)? as u16 & !SOURCE_PORT_MIN);
        let address = match version {
            IpVersion::V4 => SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
            IpVersion::V6 => SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
        };
        match socket.bind(&address.into()) {
            Ok(()) => return Ok(port),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(os_error("bind", &error)),
        }
    }
    let holder = Some(format!(
        "others: no free UDP port from {SOURCE_PORT_MIN:#x} on"
    ));
    Err(Error::new(Step::OpenDevice, Cause::AddressInUse { holder }))
}

pub(super) fn os_error(call: &'static str, error: &io::Error) -> Error {
    Error::new(Step::OpenDevice, room::cause(call, errno_of(error)))
}

pub(super) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Why the kernel refused a datagram.
pub(super) enum Refusal {
    Interrupted,
    /// The send buffer or the device's queue is full.
    Full,
    /// Possibly only because it needs segmentation.
    Segmentation,
    /// The packet cannot be sent.
    Packet,
}

impl Refusal {
    pub(super) fn of(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::WouldBlock {
            return Self::Full;
        }
        match error.raw_os_error() {
            Some(libc::EINTR) => Self::Interrupted,
            Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP) => {
                Self::Segmentation
            }
            _ => Self::Packet,
        }
    }
}

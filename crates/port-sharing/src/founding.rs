//! Founding a group: creates and parks every block's sockets.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::block::Block;
use super::bpf;
use super::descriptor_store::{DescriptorStore, Parking};
use super::fork::PrivateFd;
use super::room::with_room;
use super::sockets::{Family, IDLE_BUFFER_BYTES, set_receive_options};

/// Why the sockets could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundError {
    /// The port is in use.
    PortTaken,
    /// A system call failed.
    Os(&'static str, Errno),
}

/// Creates every block's sockets and parks them.
///
/// The first socket of a family is bound without `SO_REUSEPORT`, which succeeds only if no other socket has the port.
/// Only then does it share the port. So the port belongs to this group entirely or not at all.
pub(super) fn found(port: u16) -> Result<DescriptorStore, FoundError> {
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
            // A reuseport group, to which a program can be attached, needs two sockets.
            for socket in [Some(&ipv4), ipv6.as_ref()].into_iter().flatten() {
                bpf::attach(socket.as_fd())
                    .map_err(|errno| FoundError::Os("SO_ATTACH_REUSEPORT_CBPF", errno))?;
            }
        }
        parking
            .park(block, ipv4.as_fd(), ipv6.as_ref().map(AsFd::as_fd))
            .map_err(|errno| FoundError::Os("sendmsg", errno))?;
    }
    parking
        .seal()
        .map_err(|errno| FoundError::Os("sendmsg", errno))
}

/// Whether the port is free in both families. Binds it for a moment.
pub(super) fn port_is_free(port: u16) -> Result<bool, FoundError> {
    let bound = open(Family::Ipv4, port, Block::COORDINATOR)
        .and_then(|_ipv4| open_if_supported(port, Block::COORDINATOR).map(drop));
    match bound {
        Ok(()) => Ok(true),
        Err(FoundError::PortTaken) => Ok(false),
        Err(error) => Err(error),
    }
}

/// An IPv6 socket; `None` on a machine without IPv6.
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
    // The minimum size, until the block has a process.
    sockopt::set_socket_recv_buffer_size(&socket, IDLE_BUFFER_BYTES).map_err(os("SO_RCVBUF"))?;
    let first = block == Block::COORDINATOR;
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

//! Sockets for IP multicast groups on the shared port.
//!
//! Packets to groups carry no queue pair of any block, so the blocks' sockets cannot share them out.
//! Instead each process binds a socket of its own to the group's address: the kernel gives every such
//! socket a copy. Bound to another address than the blocks' sockets, they are no part of those
//! sockets' reuseport group; and the blocks' sockets have `IP_MULTICAST_ALL` off, or each of them
//! would get a copy as well.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use portolan_provider::{Cause, Error, Result, Step};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};

use super::fork::PrivateFd;
use super::raw;
use super::room::with_room;
use super::sockets::Family;
use super::sockets::{set_receive_buffer, set_receive_options};

/// A socket on which this process gets its copies of a group's datagrams on an interface. The
/// interface is joined to the group (IGMP, MLD) as long as it is open.
#[derive(Debug)]
pub struct MulticastSocket {
    family: Family,
    fd: PrivateFd,
}

impl MulticastSocket {
    /// Joins `group` on the interface with this index.
    ///
    /// # Errors
    /// `AddressInUse` if the port is shared with processes of another user: Linux lets sockets of one
    /// user alone share a port (`SO_REUSEPORT`). `Os` if the interface is gone or has no room for
    /// another group.
    pub fn join(port: u16, group: IpAddr, interface: u32, buffer_bytes: usize) -> Result<Self> {
        let os = |call| {
            move |errno: Errno| match errno {
                Errno::ADDRINUSE => {
                    let holder = "processes of another user, who shares its unicast packets alone";
                    let holder = Some(holder.into());
                    Error::new(Step::JoinMulticast, Cause::AddressInUse { holder })
                }
                errno => {
                    let errno = errno.raw_os_error();
                    Error::new(Step::JoinMulticast, Cause::Os { call, errno })
                }
            }
        };
        let (domain, family, address) = match group {
            IpAddr::V4(_) => (
                AddressFamily::INET,
                Family::Ipv4,
                SocketAddr::new(group, port),
            ),
            IpAddr::V6(ip) => {
                let address = SocketAddrV6::new(ip, port, 0, interface).into();
                (AddressFamily::INET6, Family::Ipv6, address)
            }
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let make = || net::socket_with(domain, SocketType::DGRAM, flags, None);
        let fd = with_room(|| PrivateFd::make(make)).map_err(os("socket"))?;
        set_receive_options(family, fd.as_fd()).map_err(os("setsockopt"))?;
        sockopt::set_socket_reuseport(&fd, true).map_err(os("SO_REUSEPORT"))?;
        set_receive_buffer(fd.as_fd(), buffer_bytes);
        net::bind(&fd, &address).map_err(os("bind to a multicast group"))?;
        raw::join_multicast(fd.as_fd(), group, interface).map_err(os("IP_ADD_MEMBERSHIP"))?;
        Ok(Self { family, fd })
    }

    /// The address family.
    pub fn family(&self) -> Family {
        self.family
    }
}

impl AsFd for MulticastSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

//! Sockets for IP multicast groups on the shared port.
//!
//! Packets to groups contain no block's queue pair number, so the blocks' sockets cannot divide them. Instead each
//! process binds its own socket to the group's address, and the kernel gives every such socket a copy. These sockets
//! have another address, so they are not in the reuseport group of the blocks' sockets. The blocks' sockets have
//! `IP_MULTICAST_ALL` off; otherwise each would also get a copy.

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

/// A socket that receives this process's copies of a group's datagrams on one interface. The interface is a member of
/// the group (IGMP, MLD) while the socket is open.
#[derive(Debug)]
pub struct MulticastSocket {
    family: Family,
    fd: PrivateFd,
}

impl MulticastSocket {
    /// Joins `group` on the interface with this index.
    ///
    /// # Errors
    /// `AddressInUse` if processes of another user share the port: Linux lets only sockets of one user share a port
    /// (`SO_REUSEPORT`). `Os` if the interface was removed or cannot join another group.
    pub fn join(port: u16, group: IpAddr, interface: u32, buffer_bytes: usize) -> Result<Self> {
        let os = |call| {
            move |errno: Errno| match errno {
                Errno::ADDRINUSE => {
                    let holder =
                        "processes of another user, which can share only its unicast packets";
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

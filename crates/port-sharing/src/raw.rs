//! System calls without a safe wrapper.

#![allow(unsafe_code, reason = "calls by pointers")]

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// `errno` of the call that just failed.
pub(super) fn last_errno() -> Errno {
    std::io::Error::last_os_error()
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}

/// A resource limit of this process and its maximum (getrlimit(2)); `None` for unlimited.
///
/// Both are `None` if the process may not call getrlimit(2), as in services without `@resources` (systemd.exec(5)).
/// rustix panics in this case.
pub(super) fn limit(of: Limited) -> [Option<u64>; 2] {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` is a local that outlives the call.
    let status = unsafe {
        match of {
            Limited::OpenFiles => libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit),
            Limited::FileSize => libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit),
        }
    };
    if status < 0 {
        return [None, None];
    }
    [limit.rlim_cur, limit.rlim_max].map(|value| (value != libc::RLIM_INFINITY).then_some(value))
}

/// The resource that a limit applies to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limited {
    OpenFiles,
    FileSize,
}

/// Sets a socket option whose value is an `int`.
pub(super) fn set_option(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: i32,
) -> Result<(), Errno> {
    // SAFETY: the pointer is to a local `int` that outlives the call, and the length is its size.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if status < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}

/// `SO_PASSRIGHTS` (Linux 6.16), which libc's crate does not have.
const SO_PASSRIGHTS: i32 = 83;

/// Says whether a unix socket takes descriptors. If not, a message with some fails where it is sent (`EPERM`), and none
/// waits here. A listener's connections begin as it is itself.
///
/// # Errors
/// `NOPROTOOPT` before Linux 6.16, where every unix socket takes them.
pub(super) fn take_descriptors(socket: BorrowedFd<'_>, takes: bool) -> Result<(), Errno> {
    set_option(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, takes.into())
}

/// Joins an IP multicast group on an interface: IGMP or MLD announces it to the network.
pub(super) fn join_multicast(
    socket: BorrowedFd<'_>,
    group: IpAddr,
    interface: u32,
) -> Result<(), Errno> {
    match group {
        IpAddr::V4(group) => {
            let request = libc::ip_mreqn {
                imr_multiaddr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(group.octets()),
                },
                imr_address: libc::in_addr { s_addr: 0 },
                imr_ifindex: i32::try_from(interface).map_err(|_| Errno::NODEV)?,
            };
            set_option_value(socket, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, &request)
        }
        IpAddr::V6(group) => {
            let request = libc::ipv6_mreq {
                ipv6mr_multiaddr: libc::in6_addr {
                    s6_addr: group.octets(),
                },
                ipv6mr_interface: interface as _,
            };
            let name = libc::IPV6_ADD_MEMBERSHIP;
            set_option_value(socket, libc::IPPROTO_IPV6, name, &request)
        }
    }
}

fn set_option_value<T>(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &T,
) -> Result<(), Errno> {
    // SAFETY: the pointer is to a value borrowed for the call, and the length is its size.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const *value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if status < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}

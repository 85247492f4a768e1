//! Receives the kernel's notifications about network interfaces and their addresses (rtnetlink(7)).
//!
//! A message only starts a new reading of the interfaces, so a lost message (the kernel drops them in bursts) does no
//! harm. One thing a reading cannot show: that an interface was removed and another one got its index.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use portolan_provider::{Error, Result, Step};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recvfrom, socket_with};

use portolan_port_sharing::room::{self, with_room};

/// Messages read in one turn.
const MESSAGES_PER_TURN: usize = 256;
/// Bytes read of a message. Only its beginning is parsed.
const MESSAGE_LEN: usize = 512;

/// Multicast groups (`linux/rtnetlink.h`): links, IPv4 and IPv6 addresses.
const RTMGRP_LINK: u32 = 1;
/// See [`RTMGRP_LINK`].
const RTMGRP_IPV4_IFADDR: u32 = 0x10;
/// See [`RTMGRP_LINK`].
const RTMGRP_IPV6_IFADDR: u32 = 0x100;

/// A netlink socket that is readable when interfaces or addresses have changed in the network namespace of the thread
/// that opened it.
#[derive(Debug)]
pub(crate) struct InterfaceMonitor {
    socket: OwnedFd,
}

impl InterfaceMonitor {
    pub(crate) fn open() -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is NETLINK_ROUTE.
        let make = || socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None);
        let socket = with_room(make).map_err(|errno| os_error("socket(AF_NETLINK)", errno))?;
        let groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
        bind(&socket, &SocketAddrNetlink::new(0, groups))
            .map_err(|errno| os_error("bind(AF_NETLINK)", errno))?;
        Ok(Self { socket })
    }

    /// Reads the notifications. Returns whether there were any. Adds the indexes of removed interfaces to `gone`,
    /// except those whose message was lost.
    pub(crate) fn take(&self, gone: &mut BTreeSet<u32>) -> bool {
        let mut message = [0; MESSAGE_LEN];
        let mut heard = false;
        for _ in 0..MESSAGES_PER_TURN {
            let received = recvfrom(&self.socket, message.as_mut_slice(), RecvFlags::DONTWAIT);
            match received {
                Ok((len, _, sender)) => {
                    let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
                    if sender.is_some_and(|sender| sender.pid() == 0) {
                        heard = true;
                        gone.extend(message.get(..len).and_then(removed_interface));
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // Messages were lost (ENOBUFS). Read the interfaces after any other error, too.
                Err(errno) => {
                    tracing::debug!(%errno, "notifications of interface changes were lost");
                    heard = true;
                }
            }
        }
        heard
    }
}

impl AsFd for InterfaceMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The index in a message that an interface was removed: `struct nlmsghdr`, then `struct ifinfomsg`, in host order.
fn removed_interface(message: &[u8]) -> Option<u32> {
    const RTM_DELLINK: u16 = 17;
    const TYPE: usize = 4;
    const BODY: usize = 16;
    const INDEX: usize = BODY + 4;
    let kind = u16::from_ne_bytes(*message.get(TYPE..)?.first_chunk()?);
    // A bridge reports a removed port with the same message, in its own family.
    let family = *message.get(BODY)?;
    let index = u32::from_ne_bytes(*message.get(INDEX..)?.first_chunk()?);
    (kind == RTM_DELLINK && i32::from(family) == libc::AF_UNSPEC).then_some(index)
}

fn os_error(call: &'static str, errno: Errno) -> Error {
    Error::new(Step::OpenDevice, room::cause(call, errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message about interface 7.
    fn message(kind: u16, family: u8) -> Vec<u8> {
        let mut message = vec![0; 32];
        message[..4].copy_from_slice(&32u32.to_ne_bytes());
        message[4..6].copy_from_slice(&kind.to_ne_bytes());
        message[16] = family;
        message[20..24].copy_from_slice(&7u32.to_ne_bytes());
        message
    }

    #[test]
    fn only_a_deletion_message_reports_a_removed_interface() {
        assert_eq!(removed_interface(&message(17, 0)), Some(7));
        assert_eq!(removed_interface(&message(16, 0)), None, "a new link");
        assert_eq!(removed_interface(&message(17, 7)), None, "a bridge's port");
        assert_eq!(removed_interface(&message(21, 0)), None, "an address");
    }

    #[test]
    fn a_truncated_message_reports_nothing() {
        let whole = message(17, 0);
        for length in 0..24 {
            assert_eq!(removed_interface(&whole[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn a_monitor_without_changes_reports_nothing() {
        let monitor = InterfaceMonitor::open().unwrap();
        let mut gone = BTreeSet::new();
        // The machine's own changes may cause some at any time, but not always.
        assert!((0..1000).any(|_| !monitor.take(&mut gone)));
    }
}

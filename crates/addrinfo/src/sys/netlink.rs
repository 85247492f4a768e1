//! A route netlink socket for requests, replies and notifications. Never blocks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use portolan_provider::Cause;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname, recvfrom,
    sendto, socket_with, sockopt,
};

use super::os_error;
use super::rtnetlink::RouteNetlinkMessage;

/// Maximum datagram size to receive. The kernel's answers to single lookups are far smaller.
const DATAGRAM_MAX: usize = 32 * 1024;
/// Receive buffer for bursts of notifications, in bytes (the kernel limits it to rmem_max).
const RECEIVE_BUFFER: usize = 1 << 20;

/// One decoded message.
pub(crate) type Message = NetlinkMessage<RouteNetlinkMessage>;

/// A bound `NETLINK_ROUTE` socket (rtnetlink(7)).
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    port: u32,
    buffer: Vec<u8>,
}

/// The result of one receive.
#[derive(Debug)]
pub(crate) enum Received {
    /// Messages, in the kernel's order.
    Messages(Vec<Message>),
    /// Nothing is waiting.
    Nothing,
    /// Messages were lost: too many, too long, or malformed.
    Lost,
}

impl Socket {
    /// Opens a socket without multicast groups.
    pub(crate) fn open() -> Result<Self, Cause> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is NETLINK_ROUTE.
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)
            .map_err(os_error("socket(AF_NETLINK)"))?;
        sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER)
            .map_err(os_error("setsockopt(SO_RCVBUF)"))?;
        bind(&fd, &SocketAddrNetlink::new(0, 0)).map_err(os_error("bind(AF_NETLINK)"))?;
        let port = getsockname(&fd)
            .and_then(SocketAddrNetlink::try_from)
            .map_err(os_error("getsockname(AF_NETLINK)"))?
            .pid();
        Ok(Self {
            fd,
            port,
            buffer: vec![0; DATAGRAM_MAX],
        })
    }

    /// Subscribes to exactly these groups (a mask of `RTMGRP_*`).
    pub(crate) fn subscribe(&self, groups: u32) -> Result<(), Cause> {
        bind(&self.fd, &SocketAddrNetlink::new(self.port, groups))
            .map_err(os_error("bind(AF_NETLINK groups)"))
    }

    /// Sends one request to the kernel. Its reply has `sequence`, and [`Self::is_reply`] is true for it.
    pub(crate) fn send(
        &self,
        request: RouteNetlinkMessage,
        flags: u16,
        sequence: u32,
    ) -> Result<(), Errno> {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::io::retry_on_intr(|| sendto(&self.fd, &bytes, SendFlags::empty(), &kernel))
            .map(drop)
    }

    /// Receives one datagram, if available.
    pub(crate) fn receive(&mut self) -> Result<Received, Errno> {
        let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
        let received =
            rustix::io::retry_on_intr(|| recvfrom(&self.fd, self.buffer.as_mut_slice(), flags));
        let (length, sender) = match received {
            Ok((_, length, sender)) => (length, sender),
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(Errno::NOBUFS) => return Ok(Received::Lost),
            Err(errno) => return Err(errno),
        };
        let from_kernel = sender
            .and_then(|sender| SocketAddrNetlink::try_from(sender).ok())
            .is_some_and(|sender| sender.pid() == 0);
        if !from_kernel {
            return Ok(Received::Messages(Vec::new()));
        }
        Ok(match self.buffer.get(..length).and_then(messages) {
            Some(messages) => Received::Messages(messages),
            None => Received::Lost,
        })
    }

    /// Whether the message answers a request of this socket; otherwise it is a notification.
    pub(crate) fn is_reply(&self, header: &NetlinkHeader) -> bool {
        header.port_number == self.port && header.sequence_number != 0
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The messages of a datagram; `None` if any of them is malformed.
fn messages(mut bytes: &[u8]) -> Option<Vec<Message>> {
    /// `NLMSG_ALIGNTO` of `linux/netlink.h`.
    const ALIGNMENT: usize = 4;
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let length = NetlinkBuffer::new_checked(bytes).ok()?.length() as usize;
        messages.push(Message::deserialize(bytes.get(..length)?).ok()?);
        bytes = bytes
            .get(length.next_multiple_of(ALIGNMENT)..)
            .unwrap_or_default();
    }
    Some(messages)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_datagram_panics(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            kind in prop_oneof![Just(2u16), Just(3), Just(24), Just(28), Just(29), any::<u16>()],
            honest_length: bool,
        ) {
            // Mostly well-formed headers, so that the bodies are reached.
            if let (true, Some(header)) = (honest_length, bytes.get(..6)) {
                prop_assume!(header.len() == 6);
                let length = (bytes.len() as u32).to_ne_bytes();
                bytes[..4].copy_from_slice(&length);
                bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            }
            let _ = messages(&bytes);
        }
    }
}

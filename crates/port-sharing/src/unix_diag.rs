//! The sockets that are bound to unix names, from the kernel's socket monitor (sock_diag(7), `linux/unix_diag.h`).
//!
//! It shows every user the owners of all sockets in the network namespace (since Linux 5.3). `/proc/net/unix` does not,
//! and any user can forge its lines by a name with a line feed.

use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
};

/// Maximum time for one part of the answer, which normally arrives at once.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);
/// Maximum number of parts to read: a hundred thousand sockets.
const PARTS_MAX: usize = 1024;
/// Maximum size of the kernel's messages, in bytes (`NLMSG_GOODSIZE` and more).
const BUFFER_BYTES: usize = 32 << 10;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_DONE: u16 = 3;
const NLMSG_ERROR: u16 = 2;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const REQUEST_DUMP: u16 = 0x301;
/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// `struct unix_diag_msg`.
const BODY_BYTES: usize = 16;
/// `struct rtattr`, without its payload.
const ATTRIBUTE_BYTES: usize = 4;
/// Alignment of messages and attributes.
const ALIGNMENT: usize = 4;
const UDIAG_SHOW_NAME: u32 = 0x01;
const UDIAG_SHOW_UID: u32 = 0x40;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;
/// States of sockets: not connected (`TCP_CLOSE`), and listening.
const UNCONNECTED: u8 = 7;
const LISTENING: u8 = 10;
const SEQPACKET: u8 = 5;

/// A sequenced-packet socket that is bound to an abstract name and not connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BoundSocket {
    /// The name, without its leading zero byte.
    pub(super) name: String,
    pub(super) inode: u32,
    /// The user who created the socket, as numbered in this user namespace; unknown before Linux 5.3.
    pub(super) uid: Option<u32>,
    pub(super) listens: bool,
}

#[cfg(test)]
thread_local! {
    static DUMPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How often this thread has asked for all sockets.
#[cfg(test)]
pub(super) fn dumps() -> usize {
    DUMPS.get()
}

/// The sockets in this thread's network namespace that are bound to abstract names with this prefix.
pub(super) fn bound_sockets(prefix: &str) -> Result<Vec<BoundSocket>, Errno> {
    #[cfg(test)]
    DUMPS.set(DUMPS.get() + 1);
    let protocol = Some(netlink::SOCK_DIAG);
    let flags = SocketFlags::CLOEXEC;
    let monitor = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    set_socket_timeout(&monitor, Timeout::Recv, Some(ANSWER_TIME_MAX))?;
    // From here on only the kernel's messages arrive.
    connect(&monitor, &SocketAddrNetlink::new(0, 0))?;
    send(&monitor, &question(), SendFlags::empty())?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut found = Vec::new();
    for _ in 0..PARTS_MAX {
        let (len, _) = recv(&monitor, buffer.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = buffer.get(..len).unwrap_or_default();
        while let Some((kind, body, next)) = message(rest) {
            match kind {
                NLMSG_DONE => return Ok(found),
                NLMSG_ERROR => return Err(Errno::NOTSUP),
                SOCK_DIAG_BY_FAMILY => {
                    let socket = bound_socket(body);
                    found.extend(socket.filter(|socket| socket.name.starts_with(prefix)));
                }
                _ => {}
            }
            rest = next;
        }
    }
    Err(Errno::TOOBIG)
}

/// `struct nlmsghdr`, then `struct unix_diag_req`.
fn question() -> Vec<u8> {
    const LEN: u32 = 40;
    let states = 1 << UNCONNECTED | 1 << LISTENING;
    let mut question = Vec::new();
    question.extend(LEN.to_ne_bytes());
    question.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    question.extend(REQUEST_DUMP.to_ne_bytes());
    // Sequence and sender.
    question.extend([0; 8]);
    question.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    // States, any inode, requested attributes, no cookie.
    for word in [states, 0, UDIAG_SHOW_NAME | UDIAG_SHOW_UID, 0, 0u32] {
        question.extend(word.to_ne_bytes());
    }
    question
}

/// Splits off the first message: its type, its body, and the rest.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let body = bytes.get(HEADER_BYTES..len)?;
    let next = bytes.get(len.next_multiple_of(ALIGNMENT)..);
    Some((half(bytes, 4)?, body, next.unwrap_or_default()))
}

/// A SEQPACKET socket with an abstract name that is valid text; `None` for any other socket.
fn bound_socket(body: &[u8]) -> Option<BoundSocket> {
    let (kind, state) = (*body.get(1)?, *body.get(2)?);
    let inode = u32::from_ne_bytes(*body.get(4..)?.first_chunk()?);
    let (mut name, mut uid) = (None, None);
    let mut rest = body.get(BODY_BYTES..)?;
    while let (Some(len), Some(attribute)) = (half(rest, 0), half(rest, 2)) {
        let len = usize::from(len);
        let value = rest.get(ATTRIBUTE_BYTES..len)?;
        match attribute {
            UNIX_DIAG_NAME => name = std::str::from_utf8(value).ok()?.strip_prefix('\0'),
            UNIX_DIAG_UID => uid = value.first_chunk().map(|uid| u32::from_ne_bytes(*uid)),
            _ => {}
        }
        rest = rest
            .get(len.next_multiple_of(ALIGNMENT)..)
            .unwrap_or_default();
    }
    (kind == SEQPACKET).then_some(BoundSocket {
        name: name?.to_owned(),
        inode,
        uid,
        listens: state == LISTENING,
    })
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_its_stated_length() {
        let question = question();
        assert_eq!(question.len(), 40);
        assert_eq!(question[..4], 40u32.to_ne_bytes());
    }

    /// The body of a listening socket's message: an attribute of one byte, the name, the user.
    fn body() -> Vec<u8> {
        let mut body = vec![1, SEQPACKET, LISTENING, 0];
        body.extend(77u32.to_ne_bytes());
        body.extend([0; 8]);
        let mut attribute = |kind: u16, value: &[u8]| {
            let len = u16::try_from(ATTRIBUTE_BYTES + value.len()).unwrap();
            body.extend(len.to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(value);
            body.resize(body.len().next_multiple_of(ALIGNMENT), 0);
        };
        attribute(6, &[1]);
        attribute(UNIX_DIAG_NAME, b"\0portolan/4791");
        attribute(UNIX_DIAG_UID, &1001u32.to_ne_bytes());
        body
    }

    #[test]
    fn a_socket_is_read_with_its_name_and_user_and_no_bytes_panic() {
        let body = body();
        let socket = bound_socket(&body).unwrap();
        assert_eq!((&*socket.name, socket.inode), ("portolan/4791", 77));
        assert_eq!((socket.uid, socket.listens), (Some(1001), true));
        for len in 0..body.len() {
            bound_socket(&body[..len]);
        }
        // An attribute with length zero, and one longer than the message.
        for len in [0u16, 3, u16::MAX] {
            let mut broken = body.clone();
            broken[BODY_BYTES..BODY_BYTES + 2].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(bound_socket(&broken), None, "{len}");
        }
        let mut stream = body.clone();
        stream[1] = 1;
        assert_eq!(bound_socket(&stream), None);
    }

    #[test]
    fn messages_are_split_and_no_bytes_panic() {
        let mut two = Vec::new();
        for kind in [SOCK_DIAG_BY_FAMILY, NLMSG_DONE] {
            two.extend(18u32.to_ne_bytes());
            two.extend(kind.to_ne_bytes());
            two.extend([0; 10]);
            two.extend([5, 6, 0, 0]);
        }
        let (kind, body, rest) = message(&two).unwrap();
        assert_eq!((kind, body), (SOCK_DIAG_BY_FAMILY, &[5, 6][..]));
        let (kind, _, rest) = message(rest).unwrap();
        assert_eq!((kind, rest), (NLMSG_DONE, &[][..]));
        for len in 0..two.len() {
            message(&two[..len]);
        }
        assert_eq!(message(&[0; 20]), None, "shorter than its header");
    }
}

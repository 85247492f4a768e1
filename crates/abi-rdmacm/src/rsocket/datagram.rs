//! Datagram sockets.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use portolan::StreamOptions;
use portolan::datagram::{Options, Rsocket as Datagrams};

use super::errno::of_io;
use super::pieces::{Gather, Scatter};
use super::settings::settings;
use super::socket::{Rsocket, provider};
use crate::guard::{Result, last_errno};

/// Bytes of a buffer that librdmacm reserves for one datagram (`RS_SNDLOWAT`).
const BYTES_EACH: u32 = 2048;

/// Creates a socket with queues of the default sizes.
pub(super) fn create(is_ipv6: bool) -> Result<Datagrams> {
    let options = sizes(&settings().options);
    Datagrams::new_on(provider()?, is_ipv6, options).map_err(|error| of_io(&error))
}

/// The queues of a socket: as many datagrams as its buffers have room for, at most the queues' sizes.
pub(super) fn sizes(options: &StreamOptions) -> Options {
    let depth = |bytes: u32, queue: u16| (bytes / BYTES_EACH).min(queue.into()).max(1);
    Options::default()
        .send_depth(depth(options.send_buffer, options.send_queue))
        .receive_depth(depth(options.receive_buffer, options.receive_queue))
}

/// Whether a socket has an address, and so the sizes of its queues.
pub(super) fn is_bound(datagrams: &Datagrams) -> bool {
    datagrams.local_addr().is_ok_and(|local| local.port() != 0)
}

/// Sends the pieces as one datagram. Without a destination, sends to the connected peer.
///
/// # Errors
/// `EMSGSIZE`, `EAGAIN`, `ENOTCONN`; errors of resolving the address.
pub(super) fn send(
    socket: &Rsocket,
    datagrams: &Datagrams,
    from: Gather<'_>,
    flags: c_int,
    to: Option<SocketAddr>,
) -> Result<usize> {
    let data = from.to_vec()?;
    let waits = !socket.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0;
    let sent = match to {
        Some(to) => datagrams.send_to(&data, to, waits),
        None => datagrams.send(&data, waits),
    };
    sent.map_err(|error| of_io(&error))
}

/// Receives a datagram into the pieces. Returns the number of bytes that fit, and the sender.
///
/// # Errors
/// `EAGAIN`.
pub(super) fn receive(
    socket: &Rsocket,
    datagrams: &Datagrams,
    into: Scatter<'_>,
    flags: c_int,
) -> Result<(usize, SocketAddr)> {
    let waits = !socket.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0;
    let mut bytes = vec![0; into.length().min(BYTES_EACH as usize * 2)];
    let received = datagrams.receive_from(&mut bytes, flags & libc::MSG_PEEK != 0, waits);
    let (length, source) = received.map_err(|error| of_io(&error))?;
    into.fill(&bytes[..length])?;
    Ok((length, source))
}

/// Sets an option of the UDP socket.
///
/// # Errors
/// Those of setsockopt(2).
#[allow(unsafe_code, reason = "setsockopt(2)")]
pub(super) fn set_option(
    datagrams: &Datagrams,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> Result<()> {
    let (fd, length) = (datagrams.udp().as_raw_fd(), value.len() as libc::socklen_t);
    // SAFETY: the value has this length, and the descriptor is open.
    match unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), length) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Returns the value of an option of the UDP socket, at most 64 bytes.
///
/// # Errors
/// Those of getsockopt(2).
#[allow(unsafe_code, reason = "getsockopt(2)")]
pub(super) fn option(datagrams: &Datagrams, level: c_int, name: c_int) -> Result<Vec<u8>> {
    let mut value = vec![0u8; 64];
    let (fd, mut length) = (datagrams.udp().as_raw_fd(), value.len() as libc::socklen_t);
    // SAFETY: the buffer has this length, and the descriptor is open.
    let got = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut length) };
    match got {
        0 => {
            value.truncate(length as usize);
            Ok(value)
        }
        _ => Err(last_errno()),
    }
}

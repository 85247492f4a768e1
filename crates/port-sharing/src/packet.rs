//! One record of a SEQPACKET connection: bytes and descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown,
};

use super::fork::{PrivateFd, Window};
use super::room::with_room;

/// Maximum number of descriptors in one record: the descriptor store, the block's name and two sockets.
const DESCRIPTORS_MAX: usize = 4;
/// Maximum number of attempts at one record when interrupted.
const RETRIES_MAX: u32 = 16;

/// The result of reading a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// A record of this many bytes.
    Record(usize),
    /// A record longer than the buffer; lost.
    TooLong,
    /// Nothing is waiting.
    Nothing,
    /// The other end closed the connection.
    Closed,
}

/// Sends a record, whole or not at all; [`Errno::AGAIN`] if the connection is full.
pub(super) fn send(connection: BorrowedFd<'_>, record: &[u8]) -> Result<(), Errno> {
    loop {
        match net::send(
            connection,
            record,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        ) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Shuts down a connection in both directions. It becomes readable, whatever events it is watched for: first the data
/// that the other end sent, then [`Received::Closed`].
pub(super) fn end(connection: BorrowedFd<'_>) {
    // It fails only if the other end is already closed.
    let _ = net::shutdown(connection, Shutdown::Both);
}

/// Sends a record with descriptors.
///
/// # Errors
/// [`Errno::TOOMANYREFS`] if this user has too many descriptors in flight (see [`room`](super::room)).
pub(super) fn send_with(
    connection: BorrowedFd<'_>,
    record: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    with_room(|| {
        loop {
            match net::sendmsg(connection, &[IoSlice::new(record)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    })
}

/// Receives a record. Descriptors that a stranger attached are not accepted; the kernel closes them.
pub(super) fn receive(connection: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut control = RecvAncillaryBuffer::default();
    let (received, _) = receive_message(connection, buffer, &mut control, RecvFlags::empty())?;
    Ok(received)
}

/// Peeks at a record and takes copies of its descriptors.
///
/// # Errors
/// [`Errno::MFILE`] if this process has no room for all of them.
pub(super) fn peek_descriptors(
    connection: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> Result<(Received, Vec<PrivateFd>), Errno> {
    with_room(|| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let window = Window::open()?;
        let (received, flags) = receive_message(connection, buffer, &mut control, RecvFlags::PEEK)?;
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        // Descriptors that cannot be registered are closed while the window is still open.
        let adopted: Vec<_> = rights
            .flatten()
            .map(|fd| PrivateFd::adopt(&window, fd))
            .collect();
        drop(window);
        let descriptors = adopted.into_iter().collect::<Result<_, _>>()?;
        // The kernel omits descriptors for which it finds no number.
        if flags.contains(ReturnFlags::CTRUNC) {
            return Err(Errno::MFILE);
        }
        Ok((received, descriptors))
    })
}

fn receive_message(
    connection: BorrowedFd<'_>,
    buffer: &mut [u8],
    control: &mut RecvAncillaryBuffer<'_>,
    flags: RecvFlags,
) -> Result<(Received, ReturnFlags), Errno> {
    let flags = flags | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    // A peer that closed without reading everything causes an error, once, before its data can be read. Retry after
    // that, and after interruptions.
    for _ in 0..RETRIES_MAX {
        match net::recvmsg(connection, &mut [IoSliceMut::new(buffer)], control, flags) {
            Ok(message) => {
                let received = match message.bytes {
                    _ if message.flags.contains(ReturnFlags::TRUNC) => Received::TooLong,
                    0 => Received::Closed,
                    bytes => Received::Record(bytes),
                };
                return Ok((received, message.flags));
            }
            Err(Errno::INTR | Errno::CONNRESET) => {}
            Err(Errno::AGAIN) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok((Received::Nothing, ReturnFlags::empty()))
}

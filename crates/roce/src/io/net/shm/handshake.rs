//! The messages by which two processes make a link, and hand each other what belongs to it.

use std::os::fd::AsFd;
use std::sync::Arc;

use portolan_port_sharing::{Block, MemberLink, PrivateFd};

use super::bell::Bell;
use super::peer_memory::PeerMemory;
use super::rights::Rights;
use super::ring::{Board, PendingWriter, Reader};
use crate::io::net::transmit::SendSocket;

/// First byte of each message; another number is another protocol.
pub(super) const VERSION: u8 = 2;
/// Second byte of a message that asks for a memory file, whose number follows, and of the answer, which has the file.
pub(super) const FILE: u8 = 1;

/// The receiving end of a link, and the bell of who writes to it.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) reader: Reader,
    pub(crate) bell: Bell,
}

/// What this process hands to one that called.
pub(super) struct OwnEnd<'a> {
    pub(super) board: &'a Board,
    pub(super) bell: &'a Bell,
    pub(super) rights: &'a Rights,
}

/// Takes the ring of a process that called, and answers it.
pub(super) fn accepted(
    own: &OwnEnd<'_>,
    link: &MemberLink,
    block: u8,
    place: u8,
    descriptors: Vec<PrivateFd>,
) -> Option<Incoming> {
    let block = Block::new(block).filter(|block| *block != Block::COORDINATOR)?;
    let [file, bell] = <[PrivateFd; 2]>::try_from(descriptors).ok()?;
    let bell = Bell::of(bell)?;
    let reader = Reader::open(file.as_fd(), block, place, own.board).ok()??;
    let mut descriptors = vec![own.board.file()?, own.bell.as_fd()];
    if link.is_trusted_with_memory() {
        descriptors.push(own.rights.file());
        own.rights.add_user(place, Arc::clone(reader.mapping()));
    }
    if link.send(&[VERSION, place], &descriptors).is_err() {
        own.rights.remove_user(place);
        return None;
    }
    Some(Incoming { reader, bell })
}

/// Takes the board of a process that was called.
pub(super) fn answered(
    pending: PendingWriter,
    place: u8,
    descriptors: Vec<PrivateFd>,
    port: u16,
) -> Option<SendSocket> {
    let mut descriptors = descriptors.into_iter();
    let (board, bell) = (descriptors.next()?, descriptors.next()?);
    let ring = Arc::clone(pending.mapping());
    let memory = match descriptors.next() {
        Some(rights) => PeerMemory::open(rights.as_fd(), ring).ok()?,
        None => None,
    };
    let writer = pending.open(board.as_fd(), place).ok()??;
    Some(SendSocket::of_ring(writer, Bell::of(bell)?, memory, port))
}

/// Asks for a memory file, or hands it over.
pub(super) fn file_message(number: u32) -> [u8; 6] {
    let [a, b, c, d] = number.to_ne_bytes();
    [VERSION, FILE, a, b, c, d]
}

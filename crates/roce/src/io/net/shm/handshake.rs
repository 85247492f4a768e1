//! The messages with which two processes create a link and exchange its files.

use std::os::fd::AsFd;
use std::sync::Arc;

use portolan_port_sharing::{Block, MemberLink, PrivateFd};

use super::bell::Doorbell;
use super::head_page::HeadPage;
use super::message::VERSION;
use super::peer_memory::PeerMemory;
use super::pull::Asker;
use super::rights::Rights;
use super::ring::{PendingWriter, Reader};
use super::waiter_bell::WaiterBell;
use crate::io::net::transmit::SendSocket;

/// The reading end of a link, and the bell of its writer.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) reader: Reader,
    pub(crate) bell: Doorbell,
    pub(crate) asker: Asker,
    /// Whether nothing of the ring has been read.
    pub(crate) is_new: bool,
}

/// The files that this process passes to a process that called.
pub(super) struct OwnEnd<'a> {
    pub(super) head_page: &'a HeadPage,
    pub(super) rights: &'a Rights,
    pub(super) waiter_bell: &'a WaiterBell,
}

/// Accepts the ring of a process that called. Call [`answer`] once the ring is being read.
pub(super) fn accepted(
    own: &OwnEnd<'_>,
    link: &Arc<MemberLink>,
    block: u8,
    place: u8,
    descriptors: Vec<PrivateFd>,
) -> Option<Incoming> {
    let block = Block::new(block).filter(|block| *block != Block::COORDINATOR)?;
    let [file] = <[PrivateFd; 1]>::try_from(descriptors).ok()?;
    let reader = Reader::open(file.as_fd(), block, place, own.head_page).ok()??;
    let pid = link.is_trusted_with_memory().then(|| link.peer_pid());
    if let Some(pid) = pid {
        own.rights
            .add_user(place, Arc::clone(reader.mapping()), pid);
    }
    Some(Incoming {
        asker: Asker::new(reader.mapping(), pid),
        reader,
        bell: Doorbell::of(link, None),
        is_new: true,
    })
}

/// Answers a process that called. It writes to its ring after this. `None` if the answer fails.
pub(super) fn answer(own: &OwnEnd<'_>, link: &MemberLink, place: u8) -> Option<()> {
    let waiter = own.waiter_bell.end().ok()?;
    let mut descriptors = vec![own.head_page.file()?, waiter.as_fd()];
    if link.is_trusted_with_memory() {
        descriptors.push(own.rights.file());
    }
    link.send(&[VERSION, place], &descriptors).ok()
}

/// Accepts the head page of the process that was called.
pub(super) fn answered(
    pending: PendingWriter,
    link: &Arc<MemberLink>,
    place: u8,
    descriptors: Vec<PrivateFd>,
    port: u16,
) -> Option<SendSocket> {
    let mut descriptors = descriptors.into_iter();
    let (head_page, waiter) = (descriptors.next()?, descriptors.next()?);
    let ring = Arc::clone(pending.mapping());
    let memory = match descriptors.next() {
        // Use only memory of users that are trusted with memory. Other users' memory could vanish during a copy (huge
        // pages).
        Some(rights) if link.is_trusted_with_memory() => {
            PeerMemory::open(rights.as_fd(), ring, link.peer_pid()).ok()?
        }
        _ => None,
    };
    let writer = pending.open(head_page.as_fd(), place).ok()??;
    let bell = Doorbell::of(link, Some(waiter));
    Some(SendSocket::of_ring(writer, bell, memory, port))
}

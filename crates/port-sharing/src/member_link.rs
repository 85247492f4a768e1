//! Direct connections between two members of the group. Each member listens on its block's name.
//!
//! Both ends check that they trust the other's user, as the kernel reports it. The users define the messages.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net;

use super::block::Block;
use super::config::GroupConfig;
use super::fork::PrivateFd;
use super::name::{self, Call, GroupName};
use super::packet::{self, Received};
use super::trust::{Credentials, Own, Trust};

/// Maximum number of members waiting to be accepted.
const BACKLOG: i32 = 128;

/// Maximum number of connections from untrusted users that one call accepts and closes.
const ACCEPTS_MAX: usize = 16;

/// This member's end of connections between members.
#[derive(Debug)]
pub struct MemberLinks {
    own_name: Arc<PrivateFd>,
    name: GroupName,
    trust: Trust,
}

/// A connection to another member. A forked child does not keep it.
#[derive(Debug)]
pub struct MemberLink(PrivateFd);

/// The result of reading a [`MemberLink`].
#[derive(Debug)]
pub enum LinkMessage {
    /// A message of this many bytes, and its descriptors.
    Message(usize, Vec<PrivateFd>),
    /// Nothing is waiting.
    Nothing,
    /// The other member closed the connection, died, or violated the protocol.
    Closed,
}

impl MemberLinks {
    pub(super) fn new(own_name: Arc<PrivateFd>, config: &GroupConfig) -> Result<Self, Errno> {
        net::listen(&*own_name, BACKLOG)?;
        Ok(Self {
            own_name,
            name: GroupName::new(config),
            trust: config.trust.clone(),
        })
    }

    /// Connects to the member with a block, without blocking. `None` if the member does not exist or does not listen,
    /// or if its user is not trusted.
    ///
    /// # Errors
    /// `AGAIN` if too many connections wait to be accepted; otherwise the system's error.
    pub fn call(&self, block: Block) -> Result<Option<MemberLink>, Errno> {
        match self.name.call_block(block)? {
            Call::Connected(connection) => Ok(self.trusted(connection)),
            Call::NobodyListens => Ok(None),
            Call::Busy => Err(Errno::AGAIN),
        }
    }

    /// Accepts a connection; `None` if no trusted one is waiting. Connections of untrusted users are closed.
    ///
    /// # Errors
    /// The system's error.
    pub fn accept(&self) -> Result<Option<MemberLink>, Errno> {
        for _ in 0..ACCEPTS_MAX {
            let Some(connection) = name::accept(&self.own_name)? else {
                break;
            };
            if let Some(link) = self.trusted(connection) {
                return Ok(Some(link));
            }
        }
        Ok(None)
    }

    fn trusted(&self, connection: PrivateFd) -> Option<MemberLink> {
        let peer = Credentials::of_peer(connection.as_fd()).ok()?;
        let is_trusted = self.trust.admits(Own::here(), peer.uid);
        is_trusted.then_some(MemberLink(connection))
    }
}

impl AsFd for MemberLinks {
    /// Readable when a member waits to be accepted.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own_name.as_fd()
    }
}

impl MemberLink {
    /// Sends a message with at most four descriptors, whole or not at all.
    ///
    /// # Errors
    /// The system's error; `AGAIN` if the connection is full.
    pub fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        packet::send_with(self.0.as_fd(), message, descriptors)
    }

    /// Receives a message.
    ///
    /// # Errors
    /// The system's error, for example if there is no room for the descriptors.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<LinkMessage, Errno> {
        let (received, descriptors) = packet::peek_descriptors(self.0.as_fd(), buffer)?;
        if let Received::Record(_) | Received::TooLong = received {
            packet::receive(self.0.as_fd(), &mut [])?;
        }
        Ok(match received {
            Received::Record(bytes) => LinkMessage::Message(bytes, descriptors),
            Received::Nothing => LinkMessage::Nothing,
            Received::TooLong | Received::Closed => LinkMessage::Closed,
        })
    }
}

impl AsFd for MemberLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

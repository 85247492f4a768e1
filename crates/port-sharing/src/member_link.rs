//! Direct connections between two members of the group. Each member listens on a name of its own (see `name`).
//!
//! Both ends check that they trust the other's user, as the kernel reports it. The end that was called accepts
//! descriptors only after this check (see `name`), and then sends [`READY`]. A message with descriptors waits until
//! then. The users define the messages.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use portolan_threads::lock::Mutex;
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net;

use super::block::Block;
use super::config::GroupConfig;
use super::fork::PrivateFd;
use super::name::{self, Call, GroupName};
use super::packet::{self, Received};
use super::room::with_room;
use super::trust::{Credentials, Own, Trust};

/// Maximum number of members waiting to be accepted.
const BACKLOG: i32 = 128;

/// How long a name for links may still belong to a process that is ending, and how often to try again.
const CLAIM_PATIENCE: Duration = Duration::from_millis(200);
const CLAIM_INTERVAL: Duration = Duration::from_millis(1);

/// Sent by the end that was called: it accepts descriptors. No user's message begins with a byte of 0.
const READY: [u8; 1] = [0];

/// Maximum number of connections from untrusted users that one call accepts and closes.
const ACCEPTS_MAX: usize = 16;

/// This member's end of connections between members.
#[derive(Debug)]
pub struct MemberLinks {
    listener: PrivateFd,
    name: GroupName,
    trust: Trust,
}

/// A connection to another member. A forked child does not keep it.
#[derive(Debug)]
pub struct MemberLink {
    fd: PrivateFd,
    pid: u32,
    with_memory: bool,
    /// A message that waits until the other end accepts descriptors.
    waiting: Mutex<Option<Waiting>>,
}

/// A message, and copies of its descriptors.
type Waiting = (Vec<u8>, Vec<PrivateFd>);

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
    /// The links of the member that has a block.
    pub(super) fn new(block: Block, config: &GroupConfig) -> Result<Self, Errno> {
        let name = GroupName::new(config);
        let listener = claim(&name, block)?;
        net::listen(&listener, BACKLOG)?;
        Ok(Self {
            listener,
            name,
            trust: config.trust.clone(),
        })
    }

    /// Connects to the member with a block, without blocking. `None` if the member does not exist or does not listen,
    /// or if its user is not trusted.
    ///
    /// # Errors
    /// `AGAIN` if too many connections wait to be accepted; otherwise the system's error.
    pub fn call(&self, block: Block) -> Result<Option<MemberLink>, Errno> {
        match self.name.call_member(block)? {
            Call::Connected(connection) => Ok(self.trusted(connection)?.map(|(link, _)| link)),
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
            let Some(connection) = name::accept(&self.listener)? else {
                break;
            };
            if let Some((link, tells)) = self.trusted(connection)? {
                if tells {
                    // A caller that is gone is seen by reading.
                    let _ = packet::send(link.fd.as_fd(), &READY);
                }
                return Ok(Some(link));
            }
        }
        Ok(None)
    }

    /// The connection if its peer is trusted, and whether this call made it accept descriptors.
    fn trusted(&self, connection: PrivateFd) -> Result<Option<(MemberLink, bool)>, Errno> {
        let peer = Credentials::of_peer(connection.as_fd())?;
        let own = Own::here();
        if !self.trust.admits(own, peer.uid) {
            return Ok(None);
        }
        let tells = name::trust_descriptors(&connection)?;
        let link = MemberLink {
            fd: connection,
            pid: peer.pid,
            with_memory: Trust::SameUser.admits(own, peer.uid),
            waiting: Mutex::new(None),
        };
        Ok(Some((link, tells)))
    }
}

/// Binds the name for links of a block. The process that had the block before may be ending: its sockets are closed one by
/// one.
fn claim(name: &GroupName, block: Block) -> Result<PrivateFd, Errno> {
    let deadline = Instant::now() + CLAIM_PATIENCE;
    loop {
        match name.claim_links(block)? {
            Some(listener) => return Ok(listener),
            None if Instant::now() > deadline => return Err(Errno::ADDRINUSE),
            None => std::thread::sleep(CLAIM_INTERVAL),
        }
    }
}

impl AsFd for MemberLinks {
    /// Readable when a member waits to be accepted.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl MemberLink {
    /// Whether the other member could access this process's memory anyway, because it belongs to the same user or to
    /// root. Users who are trusted only to share the port could not.
    pub fn is_trusted_with_memory(&self) -> bool {
        self.with_memory
    }

    /// The process id of the other member when the connection was made; 0 if it is not visible in this process
    /// namespace.
    pub fn peer_pid(&self) -> u32 {
        self.pid
    }

    /// Sends a message with at most four descriptors, whole or not at all. If the other end has not accepted the
    /// connection yet, the message waits, and [`receive`](Self::receive) sends it later.
    ///
    /// # Errors
    /// The system's error; `AGAIN` if the connection is full or another message waits.
    pub fn send(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        if descriptors.is_empty() {
            return packet::send(self.fd.as_fd(), message);
        }
        match packet::send_with(self.fd.as_fd(), message, descriptors) {
            // Not taken there yet.
            Err(Errno::PERM) => {}
            sent => return sent,
        }
        let mut waiting = self.waiting.lock();
        if waiting.is_some() {
            return Err(Errno::AGAIN);
        }
        let copy =
            |fd: &BorrowedFd<'_>| with_room(|| PrivateFd::make(|| fcntl_dupfd_cloexec(fd, 0)));
        let descriptors = descriptors.iter().map(copy).collect::<Result<_, _>>()?;
        *waiting = Some((message.to_vec(), descriptors));
        Ok(())
    }

    /// Sends the message that waited, if one did.
    fn send_waiting(&self) -> Result<(), Errno> {
        let Some((message, descriptors)) = self.waiting.lock().take() else {
            return Ok(());
        };
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        packet::send_with(self.fd.as_fd(), &message, &descriptors)
    }

    /// Receives a message. If this process cannot open more descriptors, the message arrives without its descriptors.
    ///
    /// # Errors
    /// The system's error.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<LinkMessage, Errno> {
        let (received, descriptors) = match packet::peek_descriptors(self.fd.as_fd(), buffer) {
            // Running out of descriptors must not end the link, so receive the message without them.
            Err(Errno::MFILE | Errno::NFILE) => {
                (packet::receive(self.fd.as_fd(), buffer)?, Vec::new())
            }
            peeked => {
                let (received, descriptors) = peeked?;
                if let Received::Record(_) | Received::TooLong = received {
                    packet::receive(self.fd.as_fd(), &mut [])?;
                }
                (received, descriptors)
            }
        };
        if received == Received::Record(READY.len()) && buffer.starts_with(&READY) {
            self.send_waiting()?;
            return Ok(LinkMessage::Nothing);
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
        self.fd.as_fd()
    }
}

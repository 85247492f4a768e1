//! The names of a group: abstract unix sockets, which disappear with their process.
//!
//! * The coordinator listens on `<prefix>/<port>`. Binding it is the election.
//! * Each member holds `<prefix>/<port>/<block>`, bound. By it the kernel shows which blocks have a living process,
//!   independent of the coordinator.
//! * Each member listens for other members on `<prefix>/<port>/<block>/links`. It makes this socket itself: the socket of its
//!   block comes from the coordinator, which may keep a copy. If that one listened, the coordinator could accept connections
//!   whose peer the kernel reports as the member, and get rights that only the member's user has.
//!
//! The user at the other end is known only after the connection is made. So a connection accepts no descriptors until its
//! peer is trusted ([`trust_descriptors`]): closing a stranger's descriptor can block for as long as the stranger likes, for
//! example a TCP socket that lingers (`SO_LINGER`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::block::Block;
use super::config::{CONNECTION_BUFFER_BYTES, GroupConfig};
use super::fork::PrivateFd;
use super::raw;
use super::room::with_room;
use super::unix_diag::BoundSocket;
use super::witness::bound_sockets;

/// Maximum number of connections waiting to be accepted: one for each block.
const BACKLOG: i32 = 128;

/// The names of one group.
#[derive(Clone, Debug)]
pub(super) struct GroupName {
    base: String,
}

/// The result of connecting to the coordinator.
#[derive(Debug)]
pub(super) enum Call {
    /// A connection, nonblocking.
    Connected(PrivateFd),
    /// Nothing listens on the name.
    NobodyListens,
    /// The coordinator's backlog is full.
    Busy,
}

impl GroupName {
    pub(super) fn new(config: &GroupConfig) -> Self {
        Self {
            base: format!("{}/{}", config.name_prefix, config.port),
        }
    }

    /// Becomes the coordinator: binds the name and listens. `None` if the name is taken.
    pub(super) fn listen(&self) -> Result<Option<PrivateFd>, Errno> {
        let address = SocketAddrUnix::new_abstract_name(self.base.as_bytes())?;
        let bound = bind_unless_taken(&address)?;
        if let Some(listener) = &bound {
            net::listen(listener, BACKLOG)?;
        }
        Ok(bound)
    }

    /// A block's name.
    pub(super) fn of_block(&self, block: Block) -> String {
        format!("{}/{block}", self.base)
    }

    /// Binds a block's name. `None` if a living process holds it.
    pub(super) fn claim_block(&self, block: Block) -> Result<Option<PrivateFd>, Errno> {
        let name = self.of_block(block);
        bind_unless_taken(&SocketAddrUnix::new_abstract_name(name.as_bytes())?)
    }

    /// Binds the name on which the member with a block listens for other members. `None` if it is taken.
    pub(super) fn claim_links(&self, block: Block) -> Result<Option<PrivateFd>, Errno> {
        bind_unless_taken(&self.of_links(block)?)
    }

    fn of_links(&self, block: Block) -> Result<SocketAddrUnix, Errno> {
        let name = format!("{}/links", self.of_block(block));
        SocketAddrUnix::new_abstract_name(name.as_bytes())
    }

    /// The socket that holds the coordinator's name, listening or not.
    pub(super) fn holder(&self) -> Option<BoundSocket> {
        let mut sockets = bound_sockets(&self.base).into_iter();
        sockets.find(|socket| socket.name == self.base)
    }

    /// The sockets that hold the names of blocks.
    pub(super) fn block_holders(&self) -> Vec<BoundSocket> {
        let is_of_block = |socket: &BoundSocket| {
            let number = socket.name.strip_prefix(&self.base);
            let number = number.and_then(|rest| rest.strip_prefix('/')?.parse::<u8>().ok());
            Block::members().any(|block| Some(block.index()) == number)
        };
        let mut sockets = bound_sockets(&self.base);
        sockets.retain(is_of_block);
        sockets
    }

    /// Connects to the coordinator, without waiting.
    pub(super) fn call(&self) -> Result<Call, Errno> {
        Self::connect(&SocketAddrUnix::new_abstract_name(self.base.as_bytes())?)
    }

    /// Connects to the member with a block, without blocking.
    pub(super) fn call_member(&self, block: Block) -> Result<Call, Errno> {
        Self::connect(&self.of_links(block)?)
    }

    fn connect(address: &SocketAddrUnix) -> Result<Call, Errno> {
        let connection = with_room(|| PrivateFd::make(seqpacket))?;
        match net::connect(&connection, address) {
            Ok(()) => {
                widen(&connection);
                Ok(Call::Connected(connection))
            }
            Err(Errno::CONNREFUSED) => Ok(Call::NobodyListens),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Call::Busy),
            Err(errno) => Err(errno),
        }
    }
}

/// Accepts a connection; `None` if none is waiting.
pub(super) fn accept(listener: &PrivateFd) -> Result<Option<PrivateFd>, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match with_room(|| PrivateFd::make(|| net::accept_with(listener, flags))) {
        Ok(connection) => {
            widen(&connection);
            Ok(Some(connection))
        }
        Err(Errno::AGAIN) => Ok(None),
        // The caller gave up, or a signal arrived: the next turn computes the remaining time.
        Err(Errno::CONNABORTED | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    refuse_descriptors(socket.as_fd())?;
    Ok(socket)
}

/// Makes a unix socket take no descriptors, which strangers could send to it. Before Linux 6.16, every one takes them.
///
/// # Errors
/// The system's error.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    match raw::take_descriptors(socket, false) {
        Ok(()) | Err(Errno::NOPROTOOPT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// The peer is trusted: the connection takes descriptors from now on. `false` if it always did (before Linux 6.16).
pub(super) fn trust_descriptors(connection: &PrivateFd) -> Result<bool, Errno> {
    match raw::take_descriptors(connection.as_fd(), true) {
        Ok(()) => Ok(true),
        Err(Errno::NOPROTOOPT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn bind_unless_taken(address: &SocketAddrUnix) -> Result<Option<PrivateFd>, Errno> {
    let socket = with_room(|| PrivateFd::make(seqpacket))?;
    match net::bind(&socket, address) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::ADDRINUSE) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Enlarges a connection's buffers. If the kernel refuses, the connection works but may lose more datagrams, which
/// connection management retransmits.
fn widen(connection: &PrivateFd) {
    if sockopt::set_socket_send_buffer_size_force(connection, CONNECTION_BUFFER_BYTES).is_err() {
        let widened =
            sockopt::set_socket_send_buffer_size(connection.as_fd(), CONNECTION_BUFFER_BYTES);
        if let Err(errno) = widened {
            tracing::debug!(%errno, "group connection keeps its send buffer");
        }
    }
}

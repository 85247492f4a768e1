//! State shared by both roles: the descriptor store, the names, the watched descriptors, the services.

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::block::Block;
use super::config::{GroupConfig, OBSERVERS_MAX, REQUEST_BYTES_MAX};
use super::datagram::{Datagram, Inbox};
use super::descriptor_store::DescriptorStore;
use super::fork::PrivateFd;
use super::message::{MESSAGE_BYTES_MAX, Message};
use super::name::GroupName;
use super::registry::ConnectionId;
use super::room::with_room;
use super::service::CoordinatorService;
use super::status::GroupCounters;
use super::stranger::Places;

/// Epoll key of the coordinator's listener.
pub(super) const KEY_LISTENER: u64 = 0;
/// Epoll keys of block 0's sockets.
pub(super) const KEY_STRAYS: Range<u64> = 1..3;
/// Epoll key of a member's connection to the coordinator.
pub(super) const KEY_UPLINK: u64 = 3;
/// First epoll key of the coordinator's connections.
pub(super) const KEY_CONNECTIONS: u64 = 16;

/// The part of the state that does not depend on the role.
pub(super) struct RoleContext {
    pub(super) config: GroupConfig,
    pub(super) name: GroupName,
    pub(super) own: Block,
    pub(super) store: DescriptorStore,
    pub(super) service: Box<dyn CoordinatorService>,
    pub(super) inbox: Inbox,
    pub(super) counters: GroupCounters,
    /// Surveys that this process has not answered yet.
    pub(super) surveys: Vec<u64>,
    /// Replays and the new coordinator's answers to them, to be reported to this process.
    pub(super) replayed: Vec<(Vec<u8>, Vec<u8>)>,
    /// The block's name, which proves to every coordinator that this process is alive.
    pub(super) block_name: Arc<PrivateFd>,
    /// The watched descriptors of the current role.
    epoll: Arc<PrivateFd>,
    last_connection: ConnectionId,
    /// Buffer for received messages; taken out while one is handled.
    buffer: Vec<u8>,
    /// Messages to send.
    encoded: Vec<u8>,
}

impl fmt::Debug for RoleContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoleContext")
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

impl RoleContext {
    pub(super) fn new(
        config: GroupConfig,
        own: Block,
        store: DescriptorStore,
        block_name: PrivateFd,
        service: Box<dyn CoordinatorService>,
    ) -> Result<Self, Errno> {
        Ok(Self {
            name: GroupName::new(&config),
            config,
            own,
            store,
            service,
            inbox: Inbox::default(),
            counters: GroupCounters::default(),
            surveys: Vec::new(),
            replayed: Vec::new(),
            block_name: Arc::new(block_name),
            epoll: Arc::new(with_room(|| {
                PrivateFd::make(|| epoll::create(epoll::CreateFlags::CLOEXEC))
            })?),
            last_connection: KEY_CONNECTIONS,
            buffer: Vec::new(),
            encoded: Vec::new(),
        })
    }

    /// Releases everything that makes this process a member. To others its block is then free.
    pub(super) fn leave(&mut self) {
        self.store.vacate();
        self.block_name.vacate();
        self.surveys.clear();
    }

    /// Readable when a descriptor of the current role is ready.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The same descriptor, for waiting without the lock.
    pub(super) fn epoll_handle(&self) -> Arc<PrivateFd> {
        Arc::clone(&self.epoll)
    }

    /// Starts watching a descriptor. Closing the descriptor ends that.
    pub(super) fn watch(
        &self,
        fd: BorrowedFd<'_>,
        key: u64,
        flags: EventFlags,
    ) -> Result<(), Errno> {
        epoll::add(&*self.epoll, fd, EventData::new_u64(key), flags)
    }

    /// Changes the events that a descriptor is watched for.
    pub(super) fn rewatch(&self, fd: BorrowedFd<'_>, key: u64, flags: EventFlags) {
        if let Err(errno) = epoll::modify(&*self.epoll, fd, EventData::new_u64(key), flags) {
            tracing::error!(%errno, key, "cannot change the events of a watched descriptor");
        }
    }

    /// Stops watching a descriptor about to be closed.
    pub(super) fn unwatch(&self, fd: BorrowedFd<'_>) {
        // It may not be watched; closing it has the same effect.
        let _ = epoll::delete(&*self.epoll, fd);
    }

    /// A key for a new connection.
    pub(super) fn next_connection(&mut self) -> ConnectionId {
        self.last_connection += 1;
        self.last_connection
    }

    /// Keeps a datagram for this process. `false` if the inbox is full.
    pub(super) fn deliver(&mut self, datagram: &Datagram<'_>) -> bool {
        let kept = self.inbox.push(datagram);
        self.counters.inbox_full += u64::from(!kept);
        kept
    }

    /// Calls this process's coordinator service.
    pub(super) fn ask_service(&mut self, member: Block, payload: &[u8]) -> Vec<u8> {
        let response = self.service.request(member, payload);
        if response.len() > REQUEST_BYTES_MAX {
            tracing::error!(
                bytes = response.len(),
                "the coordinator service's answer is too long"
            );
            return Vec::new();
        }
        response
    }

    /// Adds a survey to answer. Several observers may ask at a time, up to a limit.
    pub(super) fn note_survey(&mut self, id: u64) {
        if self.surveys.len() < OBSERVERS_MAX {
            self.surveys.push(id);
        }
    }

    /// Encodes a message into a buffer, which the next call overwrites.
    pub(super) fn encode(&mut self, message: &Message<'_>) -> &[u8] {
        self.encoded.clear();
        message.encode(&mut self.encoded);
        &self.encoded
    }

    /// A buffer that fits the longest message.
    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(MESSAGE_BYTES_MAX, 0);
        buffer
    }

    pub(super) fn return_buffer(&mut self, buffer: Vec<u8>) {
        self.buffer = buffer;
    }

    /// Retires a block's sockets unless a living process owns the block. Returns `false` if one does, or if the sockets
    /// are not available now.
    pub(super) fn retire_if_dead(&self, places: &Places<'_>, block: Block) -> bool {
        if !is_free(places, block) {
            return false;
        }
        match self.store.peek(block) {
            Ok(sockets) => {
                sockets.iter().for_each(|socket| socket.retire());
                true
            }
            Err(error) => {
                tracing::debug!(%error, %block, "block not cleared");
                false
            }
        }
    }

    /// A look at the names of blocks.
    pub(super) fn places(&self) -> Places<'_> {
        Places::new(&self.name, &self.config.trust)
    }

    /// Whether the block has no living process.
    pub(super) fn is_free(&self, block: Block) -> bool {
        is_free(&self.places(), block)
    }
}

fn is_free(places: &Places<'_>, block: Block) -> bool {
    match places.has_member(block) {
        Ok(has_member) => !has_member,
        Err(errno) => {
            tracing::debug!(%errno, %block, "cannot determine the owner of a block");
            false
        }
    }
}

//! The receiving direction: the messages that have arrived, and the room granted to the peer.

use alloc::collections::VecDeque;

use crate::config::Config;
use crate::conn_data::ConnData;
use crate::error::Violation;
use crate::mutant::{Mutant, is_planted};
use crate::post::{Pieces, Remote};
use crate::sge::Sge;

#[derive(Debug)]
pub(crate) struct Receiver {
    buffer: u32,
    /// Number of messages that may be unread.
    queue: u16,
    /// Lengths of the unread messages. The first length excludes bytes that were read.
    unread: VecDeque<u32>,
    /// Bytes of the unread messages.
    unread_bytes: u32,
    /// Offset of the first unread byte.
    at: u32,
    /// Bytes that the peer may still write.
    room: u32,
    /// Bytes that were read and not granted again.
    free: u32,
    /// Offset of the next part to grant.
    free_at: u32,
    /// Number of messages read.
    read: u16,
    /// Grant credits when this many messages were read.
    grant_from: u16,
    /// The peer's target table.
    remote: Sge,
    /// The entry to write next.
    remote_entry: u32,
}

/// The contents of a grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    /// The peer may send messages up to this number.
    pub(crate) credits: u16,
    /// Offset and length of a half of the receive buffer, and where to write its table entry.
    pub(crate) half: Option<(u32, u32, Remote)>,
}

impl Receiver {
    pub(crate) fn new(config: &Config) -> Self {
        let half = config.receive_buffer / 2;
        Self {
            buffer: config.receive_buffer,
            queue: config.receive_queue,
            unread: VecDeque::new(),
            unread_bytes: 0,
            at: 0,
            room: half,
            free: half,
            free_at: half,
            read: 0,
            grant_from: config.receive_queue / 2,
            remote: Sge::default(),
            remote_entry: 1,
        }
    }

    pub(crate) fn connected(&mut self, peer: &ConnData) {
        self.remote = peer.table;
        self.remote_entry = 1 % peer.table.length;
    }

    pub(crate) fn on_data(&mut self, bytes: u32) -> Result<(), Violation> {
        if bytes > self.room {
            return Err(Violation::Overrun {
                announced: bytes,
                room: self.room,
            });
        }
        if self.unread.len() >= usize::from(self.queue) {
            return Err(Violation::OverCredit {
                credits: self.queue,
            });
        }
        self.room -= bytes;
        self.unread_bytes += bytes;
        self.unread.push_back(bytes);
        self.skip_empty();
        Ok(())
    }

    pub(crate) fn unread_bytes(&self) -> u32 {
        self.unread_bytes
    }

    /// At most `wanted` unread bytes after the first `skip`.
    pub(crate) fn peek(&self, skip: u32, wanted: u32) -> Pieces {
        let skip = skip.min(self.unread_bytes);
        let length = wanted.min(self.unread_bytes - skip);
        // Both are at most the buffer's size, which is far below 2^31.
        let at = (self.at + skip) % self.buffer;
        Pieces::of_ring(at, length, self.buffer)
    }

    /// Marks the first `bytes` unread bytes as read.
    pub(crate) fn consume(&mut self, bytes: u32) {
        let mut left = bytes.min(self.unread_bytes);
        self.unread_bytes -= left;
        self.free += left;
        self.at = (self.at + left) % self.buffer;
        while left > 0 {
            let Some(first) = self.unread.front_mut() else {
                break;
            };
            let part = left.min(*first);
            *first -= part;
            left -= part;
            self.skip_empty();
        }
    }

    /// Removes and counts the messages that are fully read.
    fn skip_empty(&mut self) {
        while self.unread.front() == Some(&0) {
            self.unread.pop_front();
            self.read = self.read.wrapping_add(1);
        }
    }

    /// Whether enough was read for a grant.
    pub(crate) fn owes_grant(&self) -> bool {
        if is_planted(Mutant::CreditsOnlyWithRoom) {
            return self.frees_half();
        }
        self.frees_half() || self.read.wrapping_sub(self.grant_from).cast_signed() >= 0
    }

    pub(crate) fn frees_half(&self) -> bool {
        let enough = match is_planted(Mutant::HalfGrantedUnread) {
            true => 1,
            false => self.buffer / 2,
        };
        self.free >= enough
    }

    /// Grants the room of what was read.
    pub(crate) fn grant(&mut self) -> Grant {
        self.grant_from = self.read.wrapping_add(self.queue / 2);
        let credits = self.read.wrapping_add(self.queue);
        let half = self.buffer / 2;
        if !self.frees_half() {
            return Grant {
                credits,
                half: None,
            };
        }
        let to = Remote {
            addr: self
                .remote
                .addr
                .wrapping_add(u64::from(self.remote_entry) * Sge::LEN as u64),
            key: self.remote.key,
        };
        let granted = (self.free_at, half, to);
        self.free = self.free.saturating_sub(half);
        self.room += half;
        self.free_at = (self.free_at + half) % self.buffer;
        if !is_planted(Mutant::EntryRepeated) {
            self.remote_entry = (self.remote_entry + 1) % self.remote.length;
        }
        Grant {
            credits,
            half: Some(granted),
        }
    }
}

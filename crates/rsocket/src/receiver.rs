//! The receiving direction: the messages that have arrived, and the room granted to the peer.

use alloc::collections::VecDeque;

use crate::config::Config;
use crate::conn_data::ConnData;
use crate::error::Violation;
use crate::growth::Stalls;
use crate::mutant::{Mutant, is_planted};
use crate::post::{Pieces, Remote, Ring};
use crate::sge::Sge;
use crate::table::TABLE_ENTRIES;

#[derive(Debug)]
pub(crate) struct Receiver {
    buffer: u32,
    ring: Ring,
    /// The first buffer, after the larger one has replaced it.
    retiring: Option<Retiring>,
    pub(crate) stalls: Stalls,
    /// Number of messages that may be unread.
    queue: u16,
    /// Lengths of the unread messages. The first length excludes bytes that were read.
    unread: VecDeque<u32>,
    /// Bytes of the unread messages.
    unread_bytes: u32,
    /// Bytes of all messages so far.
    received_bytes: u64,
    /// Offset of the first unread byte.
    at: u32,
    /// Bytes that the peer may still write.
    room: u32,
    /// The same for each half that was granted and is not full, in the order of the grants.
    halves: VecDeque<u32>,
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

/// A buffer that is read to its end.
#[derive(Clone, Copy, Debug)]
struct Retiring {
    size: u32,
    /// Offset of the first unread byte.
    at: u32,
    /// Bytes to read, including those that the peer may still write.
    left: u32,
}

/// The contents of a grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    /// The peer may send messages up to this number.
    pub(crate) credits: u16,
    /// Offset and length of a half of a receive buffer, and where to write its table entry.
    pub(crate) half: Option<(Ring, u32, u32, Remote)>,
}

impl Receiver {
    pub(crate) fn new(config: &Config) -> Self {
        let half = config.receive_buffer / 2;
        Self {
            buffer: config.receive_buffer,
            ring: Ring::First,
            retiring: None,
            stalls: Stalls::new(config.grown_receive_buffer, config.stalls),
            queue: config.receive_queue,
            unread: VecDeque::new(),
            unread_bytes: 0,
            received_bytes: 0,
            at: 0,
            room: half,
            halves: [half].into(),
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
        self.fill(bytes);
        self.unread_bytes += bytes;
        self.received_bytes = self.received_bytes.wrapping_add(bytes.into());
        self.unread.push_back(bytes);
        self.skip_empty();
        Ok(())
    }

    /// The peer has written this many bytes.
    fn fill(&mut self, bytes: u32) {
        self.room -= bytes;
        let mut left = bytes;
        while let Some(first) = self.halves.front_mut() {
            let part = left.min(*first);
            *first -= part;
            left -= part;
            if *first > 0 {
                break;
            }
            self.halves.pop_front();
        }
        if self.room == 0 {
            self.stalls.begin();
        }
    }

    /// Grants a larger buffer from now on. What was granted of the first one is read before.
    pub(crate) fn grow(&mut self) {
        let Some(size) = self.stalls.grow() else {
            return;
        };
        self.retiring = Some(Retiring {
            size: self.buffer,
            at: self.at,
            left: match is_planted(Mutant::GrownReadEarly) {
                true => self.unread_bytes,
                false => self.unread_bytes + self.room,
            },
        });
        (self.buffer, self.at) = (size, 0);
        (self.free, self.free_at) = (size, 0);
        self.ring = Ring::Grown;
    }

    pub(crate) fn unread_bytes(&self) -> u32 {
        self.unread_bytes
    }

    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// At most `wanted` unread bytes after the first `skip`, all of one buffer.
    pub(crate) fn peek(&self, skip: u32, wanted: u32) -> Pieces {
        let skip = skip.min(self.unread_bytes);
        let length = wanted.min(self.unread_bytes - skip);
        let mut skip = skip;
        if let Some(Retiring { size, at, left }) = self.retiring {
            if skip < left {
                let length = length.min(left - skip);
                return Pieces::of_ring(Ring::First, (at + skip) % size, length, size);
            }
            skip -= left;
        }
        // Both are at most the buffer's size, which is far below 2^31.
        let at = (self.at + skip) % self.buffer;
        Pieces::of_ring(self.ring, at, length, self.buffer)
    }

    /// Marks the first `bytes` unread bytes as read.
    pub(crate) fn consume(&mut self, bytes: u32) {
        let mut left = bytes.min(self.unread_bytes);
        self.unread_bytes -= left;
        self.release(left);
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

    /// This many bytes were read.
    fn release(&mut self, mut bytes: u32) {
        if let Some(retiring) = &mut self.retiring {
            let part = bytes.min(retiring.left);
            retiring.at = (retiring.at + part) % retiring.size;
            retiring.left -= part;
            bytes -= part;
            if retiring.left == 0 {
                self.retiring = None;
            }
        }
        self.free += bytes;
        self.at = (self.at + bytes) % self.buffer;
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

    /// Whether a half of the buffer is free, and an entry of the peer's table for it.
    pub(crate) fn frees_half(&self) -> bool {
        let has_entry = self.halves.len() < usize::from(TABLE_ENTRIES);
        let enough = match is_planted(Mutant::HalfGrantedUnread) {
            true => 1,
            false => self.buffer / 2,
        };
        self.free >= enough && (has_entry || is_planted(Mutant::EntriesExceeded))
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
        let granted = (self.ring, self.free_at, half, to);
        self.stalls.end();
        self.free = self.free.saturating_sub(half);
        self.room += half;
        self.halves.push_back(half);
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

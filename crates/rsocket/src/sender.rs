//! The sending direction: room in this side's buffer and queue, the peer's credits, and the peer's memory.

use alloc::collections::VecDeque;

use crate::config::{CONTROL_MESSAGES, Config, SEND_LOW_WATER, Signalling, TRANSFER_MAX_BYTES};
use crate::conn_data::ConnData;
use crate::growth::Stalls;
use crate::mutant::{Mutant, is_planted};
use crate::post::{Pieces, Remote, Ring};
use crate::sge::Sge;
use crate::table::{TABLE_ENTRIES, Table, take_entry};

#[derive(Debug)]
pub(crate) struct Sender {
    buffer: u32,
    /// Bytes of the buffer that no posted work needs.
    free: u32,
    /// Offset for the next bytes.
    at: u32,
    ring: Ring,
    /// Bytes of the first buffer that posted work still needs after the larger one has replaced it.
    retiring: u32,
    pub(crate) stalls: Stalls,
    /// Free slots of the send queue, except those for control messages.
    places: u16,
    /// Slots for a write with its message.
    places_each: u16,
    /// Number of messages of data.
    sent: u16,
    /// The first message number that is not permitted.
    granted: u16,
    /// The peer's memory, in the order of use.
    targets: VecDeque<Sge>,
    /// The entry of the target table that the peer writes next.
    next_entry: u16,
    inline: u32,
    big_endian: bool,
}

impl Sender {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            buffer: config.send_buffer,
            free: config.send_buffer,
            at: 0,
            ring: Ring::First,
            retiring: 0,
            stalls: Stalls::new(config.grown_send_buffer, config.stalls),
            places: config.send_queue - CONTROL_MESSAGES,
            places_each: match config.signalling {
                Signalling::Immediate => 1,
                Signalling::Sends => 2,
            },
            sent: 0,
            granted: 0,
            targets: VecDeque::new(),
            next_entry: 1,
            inline: config.inline,
            big_endian: config.big_endian,
        }
    }

    pub(crate) fn connected(&mut self, peer: &ConnData) {
        self.granted = peer.credits;
        if peer.buffer.length > 0 {
            self.targets.push_back(peer.buffer);
        }
    }

    /// Whether this side has room. This suffices for writes that need neither a credit nor the peer's buffer.
    pub(crate) fn has_room(&self) -> bool {
        self.places >= self.places_each && self.free >= SEND_LOW_WATER
    }

    pub(crate) fn can_send(&self) -> bool {
        let has_credit = self.sent != self.granted || is_planted(Mutant::CreditsIgnored);
        self.has_room() && has_credit && !self.targets.is_empty()
    }

    /// The peer accepts messages up to `number`, and may have written an entry of the table.
    pub(crate) fn on_credits(&mut self, number: u16, table: &dyn Table) {
        self.granted = number;
        // The table has this many entries. If a faulty peer grants more, the excess stays unused.
        if self.targets.len() < usize::from(TABLE_ENTRIES)
            && let Some(sge) = take_entry(table, self.next_entry, self.big_endian)
        {
            self.targets.push_back(sge);
            self.next_entry = (self.next_entry + 1) % TABLE_ENTRIES;
        }
    }

    /// The program has data. Notes if only the size of the buffer keeps it from being sent.
    pub(crate) fn note_stall(&mut self) {
        let lacks_bytes = self.free < SEND_LOW_WATER && self.places >= self.places_each;
        if lacks_bytes && self.sent != self.granted && !self.targets.is_empty() {
            self.stalls.begin();
        }
    }

    /// Goes on with a larger buffer.
    pub(crate) fn grow(&mut self) {
        let Some(size) = self.stalls.grow() else {
            return;
        };
        self.retiring = match is_planted(Mutant::RetiringForgotten) {
            true => 0,
            false => self.buffer - self.free,
        };
        (self.buffer, self.free, self.at) = (size, size, 0);
        self.ring = Ring::Grown;
    }

    /// Reserves a write of at most `wanted` bytes to the peer's buffer. `can_send` must hold.
    pub(crate) fn reserve(&mut self, wanted: u32) -> Option<(u32, Option<Pieces>, Remote)> {
        let target = self.targets.front_mut()?;
        let length = wanted
            .min(TRANSFER_MAX_BYTES)
            .min(self.free)
            .min(target.length);
        let remote = Remote {
            addr: target.addr,
            key: target.key,
        };
        target.addr = target.addr.wrapping_add(length.into());
        target.length -= length;
        if target.length == 0 {
            self.targets.pop_front();
        }
        self.sent = self.sent.wrapping_add(1);
        if !is_planted(Mutant::PlaceNotReserved) {
            self.places -= self.places_each;
        }
        Some((length, self.place(length), remote))
    }

    /// Reserves a write of at most `wanted` bytes to other memory of the peer. `has_room` must hold.
    pub(crate) fn reserve_direct(&mut self, wanted: u32) -> (u32, Option<Pieces>) {
        let length = wanted.min(TRANSFER_MAX_BYTES).min(self.free);
        self.places -= 1;
        (length, self.place(length))
    }

    /// Reserves `length` bytes of the ring. `None` if they are sent inline.
    fn place(&mut self, length: u32) -> Option<Pieces> {
        if !is_planted(Mutant::SendBufferNotReserved) {
            self.free -= length;
        }
        if length <= self.inline || is_planted(Mutant::InlineUnlimited) {
            return None;
        }
        Some(self.advance(length))
    }

    fn advance(&mut self, length: u32) -> Pieces {
        let pieces = Pieces::of_ring(self.ring, self.at, length, self.buffer);
        self.at += length;
        if self.at >= self.buffer {
            self.at -= self.buffer;
        }
        pieces
    }

    /// Nothing of the last reserved write needs the buffer.
    pub(crate) fn release_last(&mut self, length: u32) {
        self.free = (self.free + length).min(self.buffer);
        if length > self.inline {
            self.at = (self.at + self.buffer - length) % self.buffer;
        }
    }

    pub(crate) fn completed(&mut self, length: u32) {
        if !is_planted(Mutant::PlaceLeaks) {
            self.places += 1;
        }
        self.stalls.end();
        // Work completes in order, that of the first buffer before all other.
        let retired = length.min(self.retiring);
        self.retiring -= retired;
        self.free = (self.free + length - retired).min(self.buffer);
    }
}

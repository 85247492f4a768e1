//! A ring of datagrams in a memory file. One process writes, another one reads.
//!
//! The writer's file contains its [`Tail`] in the first page, and then the ring. The reader's positions are in
//! another file, the [`HeadPage`], with a place for each writer. Neither process can write to the other's file. Data of
//! the other process is checked like a packet from the network. After a violation, the ring is not used any more.

#![allow(unsafe_code, reason = "atomics in memory that processes share")]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use portolan_port_sharing::Block;
use rustix::io::Errno;

use super::cursor::{Asleep, Head, Sleepers, Tail};
use super::mapping::Mapping;
pub(crate) use super::record_header::RecordHead;
use super::record_header::{
    ADDRESSES_AT, ADDRESSES_LEN, HEADER_LEN, header_of, parse_addresses, parse_header,
};
use crate::engine::Compact;

/// Bytes of a ring: several times what one queue pair has in flight.
const RING_LEN: usize = 256 << 10;
// The longest record fits into an empty ring, even if the end of the ring must be skipped.
const _: () = assert!(RING_LEN > 2 * (PAYLOAD_MAX + HEADER_LEN + ALIGN));
/// Offset of the ring: after the writer's page.
pub(super) const RING_AT: usize = 4096;
const FILE_LEN: usize = RING_AT + RING_LEN;
/// Records begin at multiples of this.
const ALIGN: usize = 8;
/// Limits of one batch of reads: the maximum of records, and the bytes after which no further record is read.
pub(crate) const RECORDS_MAX: usize = 64;
const RECORDS_LEN: usize = 32 << 10;
/// Instead of a length: the next record is at the start of the ring.
const WRAP: u32 = u32::MAX;
/// A bit in the length's word: the record is in the short form.
const COMPACT: u32 = 1 << 30;
/// Instead of a length: the record is about a write that is pulled.
pub(super) const PULL: u32 = 1 << 29;
/// Length of the header of a record in the short form.
const COMPACT_LEN: usize = 4 * Compact::WORDS;
/// Maximum payload of a record.
const PAYLOAD_MAX: usize = 1 << 16;

/// Distance of the heads on a head page, and offset of the first: each has a cache line.
const LINE: usize = 64;
const HEAD_PAGE_LEN: usize = (LINE + LINE * PLACES).next_multiple_of(4096);
/// Number of writers that a head page has places for.
pub(super) const PLACES: usize = 256;

/// The reader's positions, which its writers read.
#[derive(Debug)]
pub(crate) struct HeadPage {
    mapping: Mapping,
    /// The file to pass to writers; `None` in a writer's copy.
    file: Option<OwnedFd>,
}

/// The writing end of a ring.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(super) mapping: Arc<Mapping>,
    head_page: HeadPage,
    place: u8,
    /// The end of the written records, and the end of those that the reader can see.
    tail: u64,
    published: u64,
    /// The end of the free room when the reader's position was last read. Cached, because reading the position fetches
    /// the reader's cache line.
    room_until: u64,
}

/// The payload of a record that was begun.
#[derive(Debug)]
pub(crate) struct Place {
    /// The payload's offset in the file.
    pub(super) at: usize,
    /// The position of the tail after the record.
    end: u64,
}

/// The reading end of a ring.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(super) mapping: Arc<Mapping>,
    from: Block,
    place: u8,
    pub(super) head: u64,
    /// The addresses of the last record, encoded and parsed. Most records have the same addresses and need no parsing.
    addresses: ([u8; ADDRESSES_LEN], SocketAddr, IpAddr),
}

/// A datagram: packets of one length. The last one may be shorter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) head: RecordHead,
    pub(crate) payload: &'a [u8],
}

/// A record in the short form at the start of what is unread. Its payload is still in the ring.
#[derive(Debug)]
pub(crate) struct CompactRecord {
    pub(crate) compact: Compact,
    /// The payload's offset in the file.
    at: usize,
    len: usize,
    /// The position of the head after the record.
    end: u64,
}

/// Copies of records, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    /// Each head with the end of the record's payload in `bytes`.
    heads: Vec<(RecordHead, usize)>,
}

/// The result of writing a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Written. These must be woken.
    Done(Sleepers),
    /// Not written: there is no room.
    Full,
}

/// The other process violated the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

impl HeadPage {
    /// Creates this process's head page. Initially the reader counts as asleep.
    pub(crate) fn create() -> Result<Self, Errno> {
        let (mapping, file) = Mapping::create("portolan-heads", HEAD_PAGE_LEN)?;
        let head_page = Self {
            mapping,
            file: Some(file),
        };
        head_page.asleep().announce();
        Ok(head_page)
    }

    fn open(file: BorrowedFd<'_>) -> Result<Option<Self>, Errno> {
        let mapping = Mapping::open(file, HEAD_PAGE_LEN)?;
        Ok(mapping.map(|mapping| Self {
            mapping,
            file: None,
        }))
    }

    /// The file to pass to writers.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    #[inline]
    pub(crate) fn asleep(&self) -> &Asleep {
        // SAFETY: the first word of every head page.
        let asleep = unsafe { self.mapping.at(0) };
        asleep.unwrap_or_else(|| unreachable!("a head page is longer"))
    }

    #[inline]
    fn head(&self, place: u8) -> &Head {
        // SAFETY: every head page has its places there.
        let head = unsafe { self.mapping.at(LINE + LINE * usize::from(place)) };
        head.unwrap_or_else(|| unreachable!("a head page has 256 places"))
    }
}

fn tail_of(mapping: &Mapping) -> &Tail {
    // SAFETY: the first words of every ring's file.
    let tail = unsafe { mapping.at(0) };
    tail.unwrap_or_else(|| unreachable!("the file is longer"))
}

impl Writer {
    /// Creates a ring's file, to pass to the reader.
    pub(crate) fn create() -> Result<(PendingWriter, OwnedFd), Errno> {
        let (mapping, file) = Mapping::create("portolan-ring", FILE_LEN)?;
        let mapping = Arc::new(mapping);
        Ok((PendingWriter { mapping }, file))
    }

    /// Writes a record if there is room.
    ///
    /// # Errors
    /// The reader violated the protocol.
    pub(crate) fn write(&mut self, record: &Record<'_>) -> Result<Written, Broken> {
        if record.payload.len() > PAYLOAD_MAX {
            return Ok(Written::Done(Sleepers::default()));
        }
        let Some(place) = self.begin(&record.head, record.payload.len())? else {
            return Ok(Written::Full);
        };
        self.mapping.copy_in(place.at, record.payload);
        self.end(place);
        Ok(Written::Done(self.publish()))
    }

    /// Begins a record with a payload of `len` bytes, at most [`PAYLOAD_MAX`]. `None` if there is no room. The caller
    /// writes the payload and then calls [`end`](Self::end).
    ///
    /// # Errors
    /// The reader violated the protocol.
    #[inline]
    pub(crate) fn begin(&mut self, head: &RecordHead, len: usize) -> Result<Option<Place>, Broken> {
        let place = self.reserve(HEADER_LEN, len)?;
        if let Some(place) = &place {
            let header = header_of(head, len);
            self.mapping.copy_in(place.at - HEADER_LEN, &header);
        }
        Ok(place)
    }

    /// As [`begin`](Self::begin), for a record in the short form. The caller ends it with
    /// [`end_compact`](Self::end_compact).
    ///
    /// # Errors
    /// The reader violated the protocol.
    #[inline]
    pub(crate) fn begin_compact(&mut self, len: usize) -> Result<Option<Place>, Broken> {
        self.reserve(COMPACT_LEN, len)
    }

    /// Ends a record in the short form, whose payload is written.
    #[inline]
    pub(crate) fn end_compact(&mut self, place: Place, compact: &Compact) {
        let mut words = compact.emit();
        words[0] |= COMPACT;
        self.mapping.copy_words_in(place.at - COMPACT_LEN, &words);
        self.end(place);
    }

    /// Reserves room for a record, whose payload is at the returned place.
    #[inline]
    pub(super) fn reserve(
        &mut self,
        header_len: usize,
        len: usize,
    ) -> Result<Option<Place>, Broken> {
        let padded = (header_len + len).next_multiple_of(ALIGN);
        let at = self.tail as usize % RING_LEN;
        let skipped = if at + padded > RING_LEN {
            RING_LEN - at
        } else {
            0
        };
        let end = self.tail + (skipped + padded) as u64;
        if end > self.room_until {
            self.look_for_room()?;
            if end > self.room_until {
                return Ok(None);
            }
        }
        let mut record_at = RING_AT + at;
        if skipped > 0 {
            self.mapping.copy_in(record_at, &WRAP.to_ne_bytes());
            record_at = RING_AT;
        }
        let at = record_at + header_len;
        Ok(Some(Place { at, end }))
    }

    /// Ends a record whose payload is written.
    #[inline]
    pub(crate) fn end(&mut self, place: Place) {
        self.tail = place.end;
    }

    /// Whether a record with a payload of `len` bytes fits, even if the end of the ring must be skipped.
    ///
    /// # Errors
    /// The reader violated the protocol.
    #[inline]
    pub(crate) fn has_room(&mut self, len: usize) -> Result<bool, Broken> {
        let end = self.tail + 2 * (HEADER_LEN + len).next_multiple_of(ALIGN) as u64;
        if end > self.room_until {
            self.look_for_room()?;
        }
        Ok(end <= self.room_until)
    }

    /// Updates `room_until` from the reader's position.
    fn look_for_room(&mut self) -> Result<(), Broken> {
        let used = self
            .tail
            .wrapping_sub(self.head_page.head(self.place).read());
        if used > RING_LEN as u64 {
            return Err(Broken);
        }
        self.room_until = self.tail - used + RING_LEN as u64;
        Ok(())
    }

    /// The address of the payload of a record that was begun.
    #[inline]
    pub(crate) fn addr_of(&self, place: &Place) -> u64 {
        self.mapping.addr() + place.at as u64
    }

    /// Makes all ended records visible to the reader. Returns who must be woken.
    #[inline]
    pub(crate) fn publish(&mut self) -> Sleepers {
        let from = std::mem::replace(&mut self.published, self.tail);
        let head = self.head_page.head(self.place);
        tail_of(&self.mapping).publish(from, self.tail, head, self.head_page.asleep())
    }

    /// Asks the reader to ring this process's bell when there is more room. Try to write once more after this: there
    /// may be room already.
    pub(crate) fn want_room(&self) {
        tail_of(&self.mapping).want_room();
    }

    /// Undoes [`want_room`](Self::want_room).
    pub(crate) fn have_room(&self) {
        tail_of(&self.mapping).have_room();
    }
}

/// A ring whose reader has not answered yet.
#[derive(Debug)]
pub(crate) struct PendingWriter {
    mapping: Arc<Mapping>,
}

impl PendingWriter {
    /// The file, which also contains other state of this process.
    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The writing end, with the reader's head page and the place on it. `None` if the file is not a head page.
    pub(crate) fn open(
        self,
        head_page: BorrowedFd<'_>,
        place: u8,
    ) -> Result<Option<Writer>, Errno> {
        let head_page = HeadPage::open(head_page)?;
        Ok(head_page.map(|head_page| Writer {
            mapping: self.mapping,
            head_page,
            place,
            tail: 0,
            published: 0,
            room_until: 0,
        }))
    }
}

impl Reader {
    /// Opens the reading end of a ring from its file. `None` if the file is not a ring.
    pub(crate) fn open(
        file: BorrowedFd<'_>,
        from: Block,
        place: u8,
        own: &HeadPage,
    ) -> Result<Option<Self>, Errno> {
        let Some(mapping) = Mapping::open(file, FILE_LEN)? else {
            return Ok(None);
        };
        // Another ring may have used the place before.
        let _ = own.head(place).release(0, tail_of(&mapping));
        Ok(Some(Self {
            mapping: Arc::new(mapping),
            from,
            place,
            head: 0,
            addresses: {
                let bytes = [0; ADDRESSES_LEN];
                let (source, destination) = parse_addresses(&bytes);
                (bytes, source, destination)
            },
        }))
    }

    /// The file, which also contains other state of the writer.
    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The block of the writing process.
    pub(crate) fn from(&self) -> Block {
        self.from
    }

    /// The place on this process's head page.
    pub(crate) fn place(&self) -> u8 {
        self.place
    }

    /// Whether the ring has an unread record.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        tail_of(&self.mapping).written() != self.head
    }

    /// Replaces the contents of `records` with copies of the next records, within bounds.
    ///
    /// # Errors
    /// The writer violated the protocol. `records` has the records before that.
    pub(crate) fn read(&mut self, records: &mut Records) -> Result<(), Broken> {
        records.clear();
        let tail = tail_of(&self.mapping).written();
        while records.heads.len() < RECORDS_MAX
            && records.bytes.len() < RECORDS_LEN
            && self.read_one(tail, records)?
        {}
        Ok(())
    }

    /// Copies the next record to `records`. Returns false if there is none before `tail`, or if it is in the short
    /// form.
    fn read_one(&mut self, tail: u64, records: &mut Records) -> Result<bool, Broken> {
        let Some((at, left, word)) = self.next(tail)? else {
            return Ok(false);
        };
        if word & COMPACT != 0 || word == PULL {
            return Ok(false);
        }
        let mut header = [0; HEADER_LEN];
        if left < HEADER_LEN as u64 || !self.mapping.copy_out(RING_AT + at, &mut header) {
            return Err(Broken);
        }
        let (len, packet_len) = parse_header(&header);
        let padded = (HEADER_LEN + len).next_multiple_of(ALIGN);
        if len > PAYLOAD_MAX || padded as u64 > left || at + padded > RING_LEN || packet_len == 0 {
            return Err(Broken);
        }
        let (source, destination) = self.addresses_of(&header);
        let payload_at = RING_AT + at + HEADER_LEN;
        if !self.mapping.append_to(payload_at, len, &mut records.bytes) {
            return Err(Broken);
        }
        self.head += padded as u64;
        let head = RecordHead {
            source,
            destination,
            packet_len,
        };
        records.heads.push((head, records.bytes.len()));
        Ok(true)
    }

    /// The offset of the next record in the ring, the bytes from there to `tail`, and its first word. `None` if there
    /// is no record before `tail`.
    #[inline]
    fn next(&mut self, tail: u64) -> Result<Option<(usize, u64, u32)>, Broken> {
        let mut left = tail.wrapping_sub(self.head);
        if left == 0 {
            return Ok(None);
        }
        if left > RING_LEN as u64 || !tail.is_multiple_of(ALIGN as u64) {
            return Err(Broken);
        }
        let mut at = self.head as usize % RING_LEN;
        let mut word = self.first_word(at);
        if word == WRAP {
            let skipped = (RING_LEN - at) as u64;
            left = left
                .checked_sub(skipped)
                .filter(|left| *left > 0)
                .ok_or(Broken)?;
            self.head += skipped;
            at = 0;
            word = self.first_word(at);
            if word == WRAP {
                return Err(Broken);
            }
        }
        Ok(Some((at, left, word)))
    }

    /// As [`next`](Self::next), before the writer's position.
    #[inline]
    pub(super) fn next_written(&mut self) -> Result<Option<(usize, u64, u32)>, Broken> {
        let tail = tail_of(&self.mapping).written();
        self.next(tail)
    }

    #[inline]
    fn first_word(&self, at: usize) -> u32 {
        let mut word = [0; 4];
        self.mapping.copy_out(RING_AT + at, &mut word);
        u32::from_ne_bytes(word)
    }

    /// The next record, if it is in the short form. [`pass`](Self::pass) it when it is handled.
    ///
    /// # Errors
    /// The writer violated the protocol.
    #[inline]
    pub(crate) fn compact(&mut self) -> Result<Option<CompactRecord>, Broken> {
        let Some((at, left, word)) = self.next_written()? else {
            return Ok(None);
        };
        if word & COMPACT == 0 {
            return Ok(None);
        }
        let mut words = [0; Compact::WORDS];
        if left < COMPACT_LEN as u64 || !self.mapping.copy_words_out(RING_AT + at, &mut words) {
            return Err(Broken);
        }
        words[0] &= !COMPACT;
        let compact = Compact::parse(&words).ok_or(Broken)?;
        let len = compact.send.map_or(0, |send| send.len as usize);
        let padded = (COMPACT_LEN + len).next_multiple_of(ALIGN);
        if padded as u64 > left || at + padded > RING_LEN {
            return Err(Broken);
        }
        Ok(Some(CompactRecord {
            compact,
            at: RING_AT + at + COMPACT_LEN,
            len,
            end: self.head + padded as u64,
        }))
    }

    /// The address of a record's payload, until the record is passed. The writer may change the payload meanwhile.
    #[inline]
    pub(crate) fn addr_of(&self, record: &CompactRecord) -> u64 {
        self.mapping.addr() + record.at as u64
    }

    /// A copy of a record's payload.
    pub(crate) fn payload_of(&self, record: &CompactRecord) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.mapping.append_to(record.at, record.len, &mut bytes);
        bytes
    }

    /// Goes on to the record after this one.
    #[inline]
    pub(crate) fn pass(&mut self, record: &CompactRecord) {
        self.head = record.end;
    }

    #[inline]
    fn addresses_of(&mut self, header: &[u8; HEADER_LEN]) -> (SocketAddr, IpAddr) {
        let mut bytes = [0; ADDRESSES_LEN];
        bytes.copy_from_slice(&header[ADDRESSES_AT..]);
        if self.addresses.0 != bytes {
            let (source, destination) = parse_addresses(&bytes);
            self.addresses = (bytes, source, destination);
        }
        (self.addresses.1, self.addresses.2)
    }

    /// Frees the room of the records that were read. Returns whether the writer waits for room and must be woken.
    #[inline]
    pub(crate) fn release(&self, own: &HeadPage) -> bool {
        own.head(self.place)
            .release(self.head, tail_of(&self.mapping))
    }
}

impl Records {
    fn clear(&mut self) {
        self.bytes.clear();
        self.heads.clear();
    }

    /// The number of records.
    pub(crate) fn len(&self) -> usize {
        self.heads.len()
    }

    /// The records, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Record<'_>> {
        let mut start = 0;
        self.heads.iter().map(move |(head, end)| {
            let payload = self.bytes.get(start..*end).unwrap_or_default();
            start = *end;
            Record {
                head: *head,
                payload,
            }
        })
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;

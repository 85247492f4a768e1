//! A ring of datagrams in a memory file. One process writes, another one reads.
//!
//! The first page of the writer's file shows whether it waits for room, and then comes the ring. The reader's positions
//! are in another file, the [`HeadPage`], with a place for each writer. Neither process can write to the other's file.
//! Data of the other process is checked like a packet from the network. After a violation, the ring is not used any more.
//!
//! The reader finds a record by the mark at its start ([`ring_layout`](super::ring_layout)). The writer publishes several
//! records together: it writes the mark of the first one last.

#![allow(unsafe_code, reason = "atomics in memory that processes share")]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use portolan_port_sharing::Block;
use rustix::io::Errno;

use super::cursor::{Mark, RoomWanted, Sleepers};
use super::head_page::HeadPage;
use super::mapping::Mapping;
pub(crate) use super::record_header::RecordHead;
use super::record_header::{
    ADDRESSES_AT, ADDRESSES_LEN, HEADER_LEN, header_of, parse_addresses, parse_header,
    parse_ip_fields,
};
use super::ring_layout::{
    COMPACT_LEN, FILE_LEN, Kind, LINE, LOOK_EVERY, MARK_LEN, NONE, PAYLOAD_MAX, RING_AT, RING_LEN,
    kind_of, mark_of, offset_of, payload_at, record_len,
};
use super::sync::{Ordering, fence};
use crate::engine::{Compact, CompactWords};

/// Limits of one batch of reads: the maximum of records, and the bytes after which no further record is read.
pub(crate) const RECORDS_MAX: usize = 64;
const RECORDS_LEN: usize = 32 << 10;

/// The writing end of a ring.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(super) mapping: Arc<Mapping>,
    head_page: HeadPage,
    place: u8,
    /// The end of the written records, and the end of those that the reader can see.
    tail: u64,
    published: u64,
    /// The mark of the first record that the reader cannot see, if there is one.
    first_mark: u32,
    /// The end of the free room when the reader's position was last read. Cached, because reading the position fetches
    /// the reader's cache line.
    room_until: u64,
}

/// The payload of a record that was begun.
#[derive(Debug)]
pub(crate) struct Place {
    /// The record's position, behind what is skipped at the end of the ring.
    position: u64,
    /// The payload's offset in the file.
    pub(super) at: usize,
    /// The position of the tail after the record.
    end: u64,
}

impl Place {
    /// The header's offset in the file.
    #[inline]
    pub(super) fn header_at(&self) -> usize {
        RING_AT + offset_of(self.position) + MARK_LEN
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(super) mapping: Arc<Mapping>,
    from: Block,
    place: u8,
    pub(super) head: u64,
    /// The head when the reader last looked whether the writer waits for room.
    looked_at: u64,
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
    pub(crate) compact: CompactWords,
    /// The payload's offset in the file.
    at: usize,
    len: usize,
    /// The position of the head after the record.
    end: u64,
}

/// What is at the start of what is unread.
#[derive(Debug)]
pub(crate) enum Next {
    Nothing,
    /// A record in the short form: see [`Reader::compact`].
    Compact,
    /// A record about a write that is pulled.
    Pull,
    Packets,
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

fn room_wanted_of(mapping: &Mapping) -> &RoomWanted {
    // SAFETY: the first word of every ring's file.
    let wanted = unsafe { mapping.at(0) };
    wanted.unwrap_or_else(|| unreachable!("the file is longer"))
}

/// The mark of the record at a position.
#[inline]
fn mark_at(mapping: &Mapping, position: u64) -> &Mark {
    // SAFETY: where a record begins in this lap, the word is read and written as an atomic. In another lap it may be part of
    // a payload: the head's release and acquire are between the two. Every value is valid for it.
    let mark = unsafe { mapping.at(RING_AT + offset_of(position)) };
    mark.unwrap_or_else(|| unreachable!("the file is longer, and records begin at lines"))
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
        self.end(&place, Kind::Packets);
        Ok(Written::Done(self.publish()))
    }

    /// Begins a record with a payload of `len` bytes, at most [`PAYLOAD_MAX`]. `None` if there is no room. The caller
    /// writes the payload and then ends the record.
    ///
    /// # Errors
    /// The reader violated the protocol.
    #[inline]
    fn begin(&mut self, head: &RecordHead, len: usize) -> Result<Option<Place>, Broken> {
        let place = self.reserve(HEADER_LEN, len)?;
        if let Some(place) = &place {
            let header = header_of(head, len);
            self.mapping.copy_in(place.header_at(), &header);
        }
        Ok(place)
    }

    /// As [`begin`](Self::begin), for a record in the short form. The caller ends it with
    /// [`end_compact`](Self::end_compact).
    ///
    /// # Errors
    /// The reader violated the protocol.
    #[inline(always)]
    pub(crate) fn begin_compact(&mut self, len: usize) -> Result<Option<Place>, Broken> {
        self.reserve(COMPACT_LEN, len)
    }

    /// Ends a record in the short form, whose payload is written.
    #[inline(always)]
    pub(crate) fn end_compact(&mut self, place: Place, compact: &CompactWords) {
        self.mapping
            .copy_words_in(place.header_at(), compact.words());
        self.end(&place, Kind::Compact);
    }

    /// Reserves room for a record, whose payload is at the returned place.
    #[inline(always)]
    pub(super) fn reserve(
        &mut self,
        header_len: usize,
        len: usize,
    ) -> Result<Option<Place>, Broken> {
        let record_len = record_len(header_len, len);
        let at = offset_of(self.tail);
        let skipped = if at + record_len > RING_LEN {
            RING_LEN - at
        } else {
            0
        };
        let position = self.tail + skipped as u64;
        let end = position + record_len as u64;
        if end > self.room_until {
            self.look_for_room()?;
            if end > self.room_until {
                return Ok(None);
            }
        }
        let at = RING_AT + offset_of(position) + payload_at(header_len, len);
        Ok(Some(Place { position, at, end }))
    }

    /// Ends a record whose header and payload are written.
    #[inline(always)]
    pub(super) fn end(&mut self, place: &Place, kind: Kind) {
        // A payload of an earlier lap may look like the next record. If the ring is full, the next record is one that is
        // unread, whose mark is that of the lap before.
        let next = mark_at(&self.mapping, place.end);
        if kind_of(next.read(), place.end).is_some() {
            next.prepare(NONE);
        }
        let is_first = self.tail == self.published;
        let mut mark = mark_of(place.position, kind);
        if place.position != self.tail {
            mark_at(&self.mapping, place.position).prepare(mark);
            mark = mark_of(self.tail, Kind::Wrap);
        }
        if is_first {
            self.first_mark = mark;
        } else {
            mark_at(&self.mapping, self.tail).prepare(mark);
        }
        self.tail = place.end;
    }

    /// Whether a record with a payload of `len` bytes fits, even if the end of the ring must be skipped.
    ///
    /// # Errors
    /// The reader violated the protocol.
    #[inline(always)]
    pub(crate) fn has_room(&mut self, len: usize) -> Result<bool, Broken> {
        let end = self.tail + 2 * record_len(HEADER_LEN, len) as u64;
        if end > self.room_until {
            self.look_for_room()?;
        }
        Ok(end <= self.room_until)
    }

    /// Updates `room_until` from the reader's position.
    #[cold]
    fn look_for_room(&mut self) -> Result<(), Broken> {
        let used = self
            .tail
            .wrapping_sub(self.head_page.head(self.place).read());
        if used > self.tail.min(RING_LEN as u64) {
            return Err(Broken);
        }
        self.room_until = self.tail - used + RING_LEN as u64;
        Ok(())
    }

    /// The address of the payload of a record that was begun.
    #[inline(always)]
    pub(crate) fn addr_of(&self, place: &Place) -> u64 {
        self.mapping.addr() + place.at as u64
    }

    /// Makes all ended records visible to the reader. Returns who must be woken.
    #[inline]
    pub(crate) fn publish(&mut self) -> Sleepers {
        self.publish_with(|| fence(Ordering::SeqCst))
    }

    /// As [`publish`](Self::publish), with the caller's own sequentially consistent fence, which is not called if no record
    /// was ended.
    #[inline(always)]
    pub(crate) fn publish_with(&mut self, fence: impl FnOnce()) -> Sleepers {
        let from = std::mem::replace(&mut self.published, self.tail);
        if from == self.tail {
            return Sleepers::default();
        }
        let head = self.head_page.head(self.place);
        let asleep = self.head_page.asleep();
        mark_at(&self.mapping, from).publish(self.first_mark, from, head, asleep, fence)
    }

    /// Asks the reader to ring this process's bell when there is more room. Try to write once more after this: there
    /// may be room already.
    pub(crate) fn want_room(&self) {
        room_wanted_of(&self.mapping).set();
    }

    /// Undoes [`want_room`](Self::want_room).
    pub(crate) fn have_room(&self) {
        room_wanted_of(&self.mapping).clear();
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
            first_mark: NONE,
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
        let _ = own.head(place).release(0, room_wanted_of(&mapping));
        Ok(Some(Self {
            mapping: Arc::new(mapping),
            from,
            place,
            head: 0,
            looked_at: 0,
            addresses: {
                let bytes = [0; ADDRESSES_LEN];
                let (source, destination) = parse_addresses(&bytes);
                (bytes, source, destination)
            },
        }))
    }

    /// The file, which also contains other state of the writer.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
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
        // The first line of a longer payload, which is written before the mark. So both come from the writer's processor
        // at the same time.
        self.mapping.prefetch(RING_AT + offset_of(self.head) + LINE);
        self.kind().is_some()
    }

    /// What is at the head, if it is written.
    #[inline]
    fn kind(&self) -> Option<Kind> {
        kind_of(mark_at(&self.mapping, self.head).read(), self.head)
    }

    /// Replaces the contents of `records` with copies of the next records, within bounds.
    ///
    /// # Errors
    /// The writer violated the protocol. `records` has the records before that.
    pub(crate) fn read(&mut self, records: &mut Records) -> Result<(), Broken> {
        records.clear();
        while records.heads.len() < RECORDS_MAX
            && records.bytes.len() < RECORDS_LEN
            && self.read_one(records)?
        {}
        Ok(())
    }

    /// Copies the next record to `records`. Returns false if there is none, or if it contains no packets.
    fn read_one(&mut self, records: &mut Records) -> Result<bool, Broken> {
        let Some((at, Kind::Packets)) = self.next_record()? else {
            return Ok(false);
        };
        let mut header = [0; HEADER_LEN];
        self.mapping.copy_out(RING_AT + at + MARK_LEN, &mut header);
        let (len, packet_len) = parse_header(&header);
        if len > PAYLOAD_MAX || at + record_len(HEADER_LEN, len) > RING_LEN || packet_len == 0 {
            return Err(Broken);
        }
        let (source, destination) = self.addresses_of(&header);
        let [traffic_class, hop_limit] = parse_ip_fields(&header);
        let payload_at = RING_AT + at + payload_at(HEADER_LEN, len);
        if !self.mapping.append_to(payload_at, len, &mut records.bytes) {
            return Err(Broken);
        }
        self.head += record_len(HEADER_LEN, len) as u64;
        let head = RecordHead {
            source,
            destination,
            packet_len,
            traffic_class,
            hop_limit,
        };
        records.heads.push((head, records.bytes.len()));
        Ok(true)
    }

    /// The next record: its offset in the ring, and its kind, which is not [`Kind::Wrap`]. `None` if there is none.
    #[inline]
    pub(super) fn next_record(&mut self) -> Result<Option<(usize, Kind)>, Broken> {
        let at = offset_of(self.head);
        match self.kind() {
            Some(Kind::Wrap) => self.wrap(at),
            kind => Ok(kind.map(|kind| (at, kind))),
        }
    }

    /// The record at the start of the ring, after one [`Kind::Wrap`] at this offset.
    #[cold]
    fn wrap(&mut self, at: usize) -> Result<Option<(usize, Kind)>, Broken> {
        if at == 0 {
            return Err(Broken);
        }
        self.head += (RING_LEN - at) as u64;
        match self.kind() {
            Some(kind) if kind != Kind::Wrap => Ok(Some((0, kind))),
            _ => Err(Broken),
        }
    }

    /// What is next.
    ///
    /// # Errors
    /// The writer violated the protocol.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Next, Broken> {
        // Most records are in the short form, and most looks find nothing.
        let mark = mark_at(&self.mapping, self.head).read();
        if mark == mark_of(self.head, Kind::Compact) {
            return Ok(Next::Compact);
        }
        match kind_of(mark, self.head) {
            None => Ok(Next::Nothing),
            Some(_) => self.next_other(),
        }
    }

    #[inline(never)]
    fn next_other(&mut self) -> Result<Next, Broken> {
        match self.next_record()? {
            None => Ok(Next::Nothing),
            Some((_, Kind::Compact)) => Ok(Next::Compact),
            Some((_, Kind::Pull)) => Ok(Next::Pull),
            Some((_, Kind::Packets | Kind::Wrap)) => Ok(Next::Packets),
        }
    }

    /// The record in the short form that is next. [`pass`](Self::pass) it before it is handled.
    ///
    /// # Errors
    /// The writer violated the protocol.
    #[inline(always)]
    pub(crate) fn compact(&self) -> Result<CompactRecord, Broken> {
        let at = offset_of(self.head);
        // The payload's first line, which has to come from the writer's processor. Meanwhile the header is handled.
        self.mapping.prefetch(RING_AT + at + LINE);
        let mut words = [0; Compact::WORDS];
        self.mapping
            .copy_words_out(RING_AT + at + MARK_LEN, &mut words);
        let compact = CompactWords::check(words).ok_or(Broken)?;
        let len = compact.payload_len() as usize;
        let record_len = record_len(COMPACT_LEN, len);
        if at + record_len > RING_LEN {
            return Err(Broken);
        }
        Ok(CompactRecord {
            compact,
            at: RING_AT + at + payload_at(COMPACT_LEN, len),
            len,
            end: self.head + record_len as u64,
        })
    }

    /// The address of a record's payload, until its room is released. The writer may change the payload meanwhile.
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
        bytes.copy_from_slice(&header[ADDRESSES_AT..][..ADDRESSES_LEN]);
        if self.addresses.0 != bytes {
            let (source, destination) = parse_addresses(&bytes);
            self.addresses = (bytes, source, destination);
        }
        (self.addresses.1, self.addresses.2)
    }

    /// Frees the room of the records that were read. Returns whether the writer waits for room and must be woken. It looks
    /// for that once in [`LOOK_EVERY`] bytes: a writer that waits has written more.
    #[inline]
    pub(crate) fn release(&mut self, own: &HeadPage) -> bool {
        let head = own.head(self.place);
        if self.head - self.looked_at < LOOK_EVERY as u64 {
            head.show(self.head);
            return false;
        }
        self.looked_at = self.head;
        head.release(self.head, room_wanted_of(&self.mapping))
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
pub(crate) mod tests;

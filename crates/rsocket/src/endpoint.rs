//! One side of a stream.

use crate::config::{CONTROL_BYTES, CONTROL_MESSAGES, Config, LocalMemory, Signalling};
use crate::conn_data::ConnData;
use crate::error::Violation;
use crate::iomap::{Iomap, Offers};
use crate::message::{Control, Message};
use crate::mutant::{Mutant, is_planted};
use crate::phase::{Arrival, Close, Phase};
use crate::post::{Op, Payload, Pieces, Post, Remote, Ring, Work};
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::sge::Sge;
use crate::table::{TABLE_ENTRIES, Table};
use crate::under_way::UnderWay;

/// One side of a stream.
///
/// After each call and each completion, the caller must post the results of [`Endpoint::next_post`] until that returns
/// `None`.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    memory: LocalMemory,
    pub(crate) phase: Phase,
    /// This side may send.
    pub(crate) sends: bool,
    /// The peer may send, and this side still reads.
    pub(crate) receives: bool,
    /// The peer has ended its direction.
    peer_ended: bool,
    peer: Option<ConnData>,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    /// Address and key of the larger receive buffer.
    pub(crate) grown: (u64, u32),
    /// Number of control messages posted so far, which selects their memory.
    control_posted: u16,
    under_way: UnderWay,
    /// The control message that waits for a slot.
    waiting: Option<Control>,
    /// The second half of a message whose first half is posted.
    second: Option<Post>,
    offers: Offers,
}

impl Endpoint {
    /// Creates an endpoint with a [fitted](Config::fitted) configuration.
    pub fn new(config: Config, memory: LocalMemory) -> Self {
        let config = config.fitted();
        Self {
            sender: Sender::new(&config),
            receiver: Receiver::new(&config),
            grown: (0, 0),
            config,
            memory,
            phase: Phase::Unconnected,
            sends: true,
            receives: true,
            peer_ended: false,
            peer: None,
            control_posted: 0,
            under_way: UnderWay::default(),
            waiting: None,
            second: None,
            offers: Offers::default(),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The private data for the peer.
    pub fn conn_data(&self) -> ConnData {
        ConnData {
            big_endian: self.config.big_endian,
            credits: self.config.receive_queue,
            iomaps: Some(self.config.iomaps),
            table: Sge {
                addr: self.memory.table,
                key: self.memory.table_key,
                length: TABLE_ENTRIES.into(),
            },
            buffer: Sge {
                addr: self.memory.buffer,
                key: self.memory.buffer_key,
                length: self.config.receive_buffer / 2,
            },
        }
    }

    /// Handles the peer's private data. The stream opens.
    pub fn connected(&mut self, peer: ConnData) {
        if self.phase != Phase::Unconnected || peer.table.length == 0 {
            return;
        }
        self.phase = Phase::Open;
        self.sender.connected(&peer);
        self.receiver.connected(&peer);
        let iomaps = peer.iomaps.unwrap_or(0);
        self.offers = Offers::new(iomaps);
        self.peer = Some(peer);
    }

    /// The current phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Bytes that can be read now.
    pub fn unread_bytes(&self) -> u32 {
        self.receiver.unread_bytes()
    }

    /// Number of bytes that were received in all, whether they are read or not; modulo 2^64.
    pub fn received_bytes(&self) -> u64 {
        self.receiver.received_bytes()
    }

    /// Whether no more bytes will arrive.
    pub fn is_read_closed(&self) -> bool {
        !self.receives || self.is_over()
    }

    /// Whether this side may not send any more.
    pub fn is_write_closed(&self) -> bool {
        !self.sends || self.is_over()
    }

    /// Whether this side has ended its own direction.
    pub fn has_closed_write(&self) -> bool {
        !self.sends
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Disconnected | Phase::Failed)
    }

    /// Whether [`Endpoint::next_write`] would return a write.
    pub fn can_send(&self) -> bool {
        self.may_write() && self.sender.can_send()
    }

    fn may_write(&self) -> bool {
        let nothing_before = self.offers.is_empty() && self.second.is_none();
        self.phase == Phase::Open && self.sends && nothing_before
    }

    /// Whether work waits for the completion of earlier work. Only so if [`Endpoint::next_post`] has returned `None`.
    pub fn waits_for_room(&self) -> bool {
        let has_work = self.waiting.is_some()
            || self.second.is_some()
            || !self.offers.is_empty()
            || self.receiver.owes_grant()
            // The stream is disconnected when the peer has the last message.
            || !self.sends && self.under_way.control() > 0;
        has_work && self.phase == Phase::Open
    }

    /// Whether a control message waits to be posted: for the connection to be established, or for credits.
    pub fn has_control_waiting(&self) -> bool {
        self.waiting.is_some() || self.second.is_some()
    }

    /// Whether everything posted has completed and nothing waits to be posted.
    pub fn is_flushed(&self) -> bool {
        let has_arrived = self.under_way.is_empty() || is_planted(Mutant::FlushedEarly);
        has_arrived && !self.has_control_waiting()
    }

    /// Whether data of the program has not reached the peer, or was [lost](Self::on_lost).
    pub fn has_unconfirmed_data(&self) -> bool {
        self.under_way.has_data()
    }

    /// Reserves the next write of at most `wanted` bytes of data. Returns its length and the work to post. Post writes
    /// in the order of these calls. First copy the bytes of [`Payload::Data`] to the send buffer.
    pub fn next_write(&mut self, wanted: usize) -> Option<(u32, Post)> {
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        if wanted == 0 || !self.can_send() {
            if wanted > 0 && self.may_write() {
                self.sender.note_stall();
            }
            return None;
        }
        let (length, pieces, to) = self.sender.reserve(wanted)?;
        let payload = Payload::of(length, pieces);
        let id = Work::Data(length).id();
        self.under_way.post();
        self.under_way.note_data(self.messages_each());
        let message = Message::Data(length);
        Some((
            length,
            self.signalled(id, Work::DataMessage.id(), to, payload, message),
        ))
    }

    /// Reserves a write of at most `wanted` bytes to the peer's memory mapped at `offset`. `None` if there is no
    /// room; `Some(None)` if nothing is mapped there.
    pub fn next_direct(
        &mut self,
        wanted: usize,
        offset: u64,
        table: &dyn Table,
    ) -> Option<Option<(u32, Post)>> {
        let Some(target) = self.mapped(offset, table) else {
            return Some(None);
        };
        if wanted == 0 || !self.can_send_direct() {
            return None;
        }
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let wanted = match is_planted(Mutant::DirectPassesEnd) {
            true => wanted,
            false => wanted.min(target.length),
        };
        let (length, pieces) = self.sender.reserve_direct(wanted);
        let to = Remote {
            addr: target.addr,
            key: target.key,
        };
        self.under_way.post();
        self.under_way.note_data(1);
        let post = Post {
            id: Work::Data(length).id(),
            op: Op::Write(to),
            payload: Payload::of(length, pieces),
        };
        Some(Some((length, post)))
    }

    /// Whether the peer has ended its direction. All of its data have arrived.
    pub fn has_peer_ended(&self) -> bool {
        self.peer_ended
    }

    /// Whether there is room for a write to mapped memory.
    pub fn can_send_direct(&self) -> bool {
        self.may_write() && self.sender.has_room()
    }

    /// The peer's memory from `offset` to the end of its mapped range.
    pub fn mapped(&self, offset: u64, table: &dyn Table) -> Option<Sge> {
        let first = usize::from(TABLE_ENTRIES) * Sge::LEN;
        (0..usize::from(self.config.iomaps)).find_map(|index| {
            let mut bytes = [0; Iomap::LEN];
            table.load(first + index * Iomap::LEN, &mut bytes);
            Iomap::decode(bytes, self.config.big_endian).at(offset)
        })
    }

    /// Offers memory of the program to the peer. Returns its entry of the peer's iomap, or `None` if all are in use.
    pub fn offer(&mut self, iomap: Iomap) -> Option<u16> {
        self.offers.offer(iomap)
    }

    /// Releases an entry. The peer keeps the address and key, so the key must be withdrawn, too.
    pub fn withdraw(&mut self, index: u16) {
        self.offers.withdraw(index);
    }

    /// At most `wanted` unread bytes after the first `skip`, as pieces of a receive buffer. Fewer where the larger buffer
    /// begins.
    pub fn peek(&self, skip: u32, wanted: usize) -> Pieces {
        self.receiver
            .peek(skip, u32::try_from(wanted).unwrap_or(u32::MAX))
    }

    /// Marks the first `bytes` unread bytes as read.
    pub fn consume(&mut self, bytes: u32) {
        self.receiver.consume(bytes);
    }

    /// Ends a direction, or both.
    pub fn close(&mut self, which: Close) {
        let control = match which {
            Close::Both if self.sends || self.receives => Some(Control::Disconnect),
            Close::Write if self.sends && self.receives => Some(Control::Shutdown),
            Close::Write if self.sends => Some(Control::Disconnect),
            Close::Read if self.receives && !self.sends => Some(Control::Disconnect),
            _ => None,
        };
        self.sends &= which == Close::Read;
        self.receives &= which == Close::Write && !is_planted(Mutant::CloseEndsBoth);
        if self.phase == Phase::Open {
            self.waiting = control.or(self.waiting);
        }
    }

    /// Handles a message.
    ///
    /// # Errors
    /// The peer violated the protocol; the stream has failed.
    pub fn on_message(&mut self, number: u32, table: &dyn Table) -> Result<Arrival, Violation> {
        let taken = self.take(number, table);
        if taken.is_err() {
            self.fail();
        }
        taken
    }

    fn take(&mut self, number: u32, table: &dyn Table) -> Result<Arrival, Violation> {
        if self.phase != Phase::Open {
            // The peer sent this before it learned of the end.
            return Ok(Arrival::Nothing);
        }
        match Message::decode(number).ok_or(Violation::UnknownMessage(number))? {
            Message::Data(_) if self.peer_ended => Err(Violation::DataAfterEnd),
            Message::Data(bytes) => {
                self.receiver.on_data(bytes)?;
                Ok(Arrival::Readable)
            }
            Message::Credits(number) => {
                self.sender.on_credits(number, table);
                Ok(Arrival::Writable)
            }
            Message::Iomap(index) if index >= self.config.iomaps.into() => {
                let size = self.config.iomaps;
                Err(Violation::BeyondIomap { index, size })
            }
            Message::Iomap(_) | Message::Control(Control::Keepalive) => Ok(Arrival::Nothing),
            Message::Control(Control::Shutdown) => {
                self.peer_ended = true;
                self.receives = false;
                if !self.sends && !is_planted(Mutant::PeerEndIgnored) {
                    self.phase = Phase::Disconnected;
                }
                Ok(Arrival::Readable)
            }
            Message::Control(Control::Disconnect) => {
                self.peer_ended = true;
                self.phase = Phase::Disconnected;
                // The peer reads nothing more.
                self.waiting = None;
                if is_planted(Mutant::UnreadDropped) {
                    self.receiver.consume(u32::MAX);
                }
                Ok(Arrival::Readable)
            }
        }
    }

    /// The device has taken the bytes of the write that [`Endpoint::next_write`] returned last, so that they need no room.
    /// Post it with the tag [`Post::TAKEN`].
    pub fn on_taken(&mut self, length: u32) {
        self.sender.release_last(length);
    }

    /// Handles the completion of the [`Post`] with this tag.
    pub fn on_sent(&mut self, id: u64) {
        self.complete(id, true);
    }

    /// The [`Post`] with this tag has failed: the peer may not have what it carried.
    pub fn on_lost(&mut self, id: u64) {
        self.complete(id, false);
    }

    fn complete(&mut self, id: u64, is_success: bool) {
        let work = Work::of_id(id);
        self.under_way.complete(work, is_success);
        match work {
            Some(Work::Data(length)) => self.sender.completed(length),
            Some(Work::DataMessage) => self.sender.completed(0),
            Some(Work::Disconnect)
                if self.phase == Phase::Open && !is_planted(Mutant::DisconnectNotNoted) =>
            {
                self.phase = Phase::Disconnected;
            }
            _ => {}
        }
    }

    /// The connection broke: work failed, or the peer disappeared. A stream that had ended in order stays so.
    pub fn fail(&mut self) {
        if self.phase != Phase::Disconnected || is_planted(Mutant::EndIsFailure) {
            self.phase = match is_planted(Mutant::FailureIsEnd) {
                true => Phase::Disconnected,
                false => Phase::Failed,
            };
        }
        if is_planted(Mutant::GoesOnAfterFailure) {
            return;
        }
        self.waiting = None;
        self.second = None;
    }

    /// The next work to post, apart from the program's data.
    pub fn next_post(&mut self) -> Option<Post> {
        let post = self.take_post()?;
        self.under_way.post();
        Some(post)
    }

    fn take_post(&mut self) -> Option<Post> {
        if let Some(second) = self.second.take() {
            return Some(second);
        }
        let is_broken = self.phase == Phase::Failed && !is_planted(Mutant::GoesOnAfterFailure);
        if is_broken || self.phase == Phase::Unconnected {
            return None;
        }
        if self.phase == Phase::Open
            && let Some(post) = self.next_iomap()
        {
            return Some(post);
        }
        if self.waiting.is_some() && self.has_control(1) {
            return self.waiting.take().map(|control| self.control(control));
        }
        if is_planted(Mutant::EndForgotten) {
            self.waiting = None;
        }
        self.next_grant()
    }

    /// A write of no bytes, which the peer's queue pair acknowledges if it is alive. `None` while the maximum of
    /// control messages is in flight.
    pub fn keepalive(&mut self) -> Option<Post> {
        let peer = self
            .peer
            .filter(|_| self.phase == Phase::Open && self.has_control(1))?;
        self.note_control();
        self.under_way.post();
        Some(Post {
            id: Work::Control.id(),
            op: Op::Write(Remote {
                addr: peer.table.addr,
                key: peer.table.key,
            }),
            payload: Payload::Empty,
        })
    }

    fn next_iomap(&mut self) -> Option<Post> {
        if !self.has_control(self.messages_each()) {
            return None;
        }
        let peer = self.peer?;
        let (index, iomap) = self.offers.next()?;
        let first = match is_planted(Mutant::IomapOverTable) {
            true => 0,
            false => u64::from(peer.table.length) * Sge::LEN as u64,
        };
        let to = Remote {
            addr: peer
                .table
                .addr
                .wrapping_add(first + u64::from(index) * Iomap::LEN as u64),
            key: peer.table.key,
        };
        // Takes no credit, because a peer does not count these messages when it grants credits.
        Some(self.control_write(
            to,
            &iomap.encode(self.order_of(&peer)),
            Message::Iomap(index.into()),
        ))
    }

    fn next_grant(&mut self) -> Option<Post> {
        let peer = self.peer?;
        if self.phase != Phase::Open || self.peer_ended || !self.receiver.owes_grant() {
            return None;
        }
        let needed = match self.receiver.frees_half() {
            true => self.messages_each(),
            false => 1,
        };
        if !self.has_control(needed) {
            return None;
        }
        let grant = self.receiver.grant();
        let message = Message::Credits(grant.credits);
        let Some((ring, offset, length, to)) = grant.half else {
            self.note_control();
            return Some(self.bare(Work::Control, message));
        };
        let (addr, key) = match ring {
            Ring::First => (self.memory.buffer, self.memory.buffer_key),
            Ring::Grown => self.grown,
        };
        let half = Sge {
            addr: addr.wrapping_add(offset.into()),
            key,
            length,
        };
        Some(self.control_write(to, &half.encode(self.order_of(&peer)), message))
    }

    /// Number of work requests for a write with its message.
    fn messages_each(&self) -> u16 {
        match self.config.signalling {
            Signalling::Immediate => 1,
            Signalling::Sends => 2,
        }
    }

    /// A write to the peer's table, which counts as a control message.
    fn control_write(&mut self, to: Remote, bytes: &[u8], message: Message) -> Post {
        self.note_control();
        let payload = self.bytes(bytes);
        if self.config.signalling == Signalling::Sends {
            self.note_control();
        }
        let id = Work::Control.id();
        self.signalled(id, id, to, payload, message)
    }

    fn control(&mut self, control: Control) -> Post {
        self.note_control();
        let work = match control {
            Control::Disconnect => Work::Disconnect,
            Control::Shutdown | Control::Keepalive => Work::Control,
        };
        self.bare(work, Message::Control(control))
    }

    /// A message without a write.
    fn bare(&mut self, work: Work, message: Message) -> Post {
        match self.config.signalling {
            Signalling::Immediate => Post {
                id: work.id(),
                op: Op::WriteWithImmediate(Remote::default(), message.encode()),
                payload: Payload::Empty,
            },
            Signalling::Sends => self.send(work.id(), message),
        }
    }

    /// A write, and the message that announces it.
    fn signalled(
        &mut self,
        id: u64,
        second: u64,
        to: Remote,
        payload: Payload,
        message: Message,
    ) -> Post {
        let op = match self.config.signalling {
            Signalling::Immediate => Op::WriteWithImmediate(to, message.encode()),
            Signalling::Sends => {
                let send = self.send(second, message);
                if is_planted(Mutant::MessageFirst) {
                    let op = Op::Write(to);
                    self.second = Some(Post { id, op, payload });
                    return send;
                }
                self.second = Some(send);
                Op::Write(to)
            }
        };
        Post { id, op, payload }
    }

    fn send(&self, id: u64, message: Message) -> Post {
        let number = message.encode();
        let bytes = match self.peer.is_some_and(|peer| peer.big_endian) {
            true => number.to_be_bytes(),
            false => number.to_le_bytes(),
        };
        Post {
            id,
            op: Op::Send,
            payload: self.bytes(&bytes),
        }
    }

    /// Whether numbers in the peer's memory are big-endian.
    fn order_of(&self, peer: &ConnData) -> bool {
        match is_planted(Mutant::ByteOrderIgnored) {
            true => self.config.big_endian,
            false => peer.big_endian,
        }
    }

    fn bytes(&self, bytes: &[u8]) -> Payload {
        let mut all = [0; CONTROL_BYTES as usize];
        all[..bytes.len()].copy_from_slice(bytes);
        let slot = u32::from(self.control_posted % CONTROL_MESSAGES);
        let is_inline = bytes.len() <= self.config.inline as usize;
        Payload::Bytes {
            bytes: all,
            length: bytes.len() as u8,
            place: (!is_inline).then_some(self.config.send_buffer + slot * CONTROL_BYTES),
        }
    }

    fn has_control(&self, needed: u16) -> bool {
        self.under_way.control() + needed <= CONTROL_MESSAGES
            || is_planted(Mutant::ControlUnbounded)
    }

    fn note_control(&mut self) {
        self.control_posted = self.control_posted.wrapping_add(1);
        self.under_way.note_control();
    }
}

//! An established connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::verbs::{Access, Counter, SendOp};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::Qpn;

use super::inner::Inner;
use crate::cm::CmId;
use crate::deadline;
use crate::sys::{Buffer, RemoteMemory, SharedMemory};
use crate::work::{Failed, Message, Transfer};

/// Operand size of an atomic, in bytes.
const ATOMIC_BYTES: usize = 8;

/// A reliable connection (RC).
///
/// Dropping it disconnects and flushes posted work. Messages and transfers that the caller still
/// holds keep their buffers.
///
/// Several threads may use it concurrently; work is executed in the order of posting.
#[derive(Debug)]
pub struct Connection {
    pub(crate) inner: Arc<Inner>,
    peer_private_data: Vec<u8>,
}

impl Connection {
    pub(crate) fn new(inner: Arc<Inner>, peer_private_data: Vec<u8>) -> Self {
        Self {
            inner,
            peer_private_data,
        }
    }

    /// The local address; `None` if the device has no IP address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.inner.addresses.local?.inet()
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.inner.addresses.remote?.inet()
    }

    /// The peer's private data: the whole field of its message, zero-padded.
    pub fn peer_private_data(&self) -> &[u8] {
        &self.peer_private_data
    }

    /// The number of the local queue pair.
    pub fn qp_num(&self) -> Qpn {
        self.inner.queue_pair().qpn()
    }

    /// The underlying id. It does not expose its queue pair or completions, because the safety of
    /// posted buffers depends on them.
    pub fn id(&self) -> &CmId {
        &self.inner.id
    }

    /// Why the connection has ended, for a side that neither sends nor receives; `None` while it works.
    ///
    /// If this side refused a request of the peer, the cause is
    /// [`PeerRequestRefused`](Cause::PeerRequestRefused), with the memory that the request named. The kernel's devices
    /// do not tell: then it is `WorkFailed(WrFlushErr)` or `Disconnected`.
    pub fn ended(&self) -> Option<Error> {
        // Without these looks it would know only what a waiter has seen; what fails there is known by the next wait.
        let _ = self.inner.take_events();
        let _ = self.inner.work.collect();
        self.inner.ended()
    }

    /// The counters of the connection's queue pair: packets, retransmissions, and drops by reason.
    ///
    /// # Errors
    /// The provider failed.
    pub fn counters(&self) -> Result<Vec<Counter>> {
        let counted = self.inner.queue_pair().counters();
        counted.map_err(|error| self.inner.explain(error))
    }

    /// Allocates a registered buffer.
    ///
    /// # Errors
    /// See [`Buffer::new`].
    pub fn buffer(&self, length: usize) -> Result<Buffer> {
        Buffer::new(&self.inner.pd, length).map_err(|error| self.inner.explain(error))
    }

    /// Allocates a registered buffer and copies `bytes` into it.
    ///
    /// # Errors
    /// See [`Buffer::new`].
    pub fn buffer_from(&self, bytes: &[u8]) -> Result<Buffer> {
        let mut buffer = self.buffer(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// Allocates memory that the peer may access.
    ///
    /// # Errors
    /// See [`SharedMemory::new`].
    pub fn share(&self, length: usize, access: Access) -> Result<SharedMemory> {
        let shared = SharedMemory::new(&self.inner.pd, length, access);
        shared.map_err(|error| self.inner.explain(error))
    }

    /// Revokes the peer's access to shared memory, which becomes a buffer.
    ///
    /// # Errors
    /// See [`SharedMemory::revoke`].
    pub fn revoke(&self, memory: SharedMemory) -> Result<Buffer> {
        memory.revoke(&self.inner.pd)
    }

    /// Posts a send of the whole buffer.
    ///
    /// The length is checked only against the device's limit. The size of the peer's receives is
    /// unknown here: the connection protocol does not carry
    /// [`Options::receive_size`](crate::Options::receive_size), and a peer other than Portolan may
    /// post receives of any size. A message longer than the receive that takes it breaks the
    /// connection: the send ends with `WorkFailed(RemInvReqErr)` and the peer's receive with
    /// `WorkFailed(LocLenErr)`. Agree on a maximum message size beforehand, for example in the
    /// private data.
    ///
    /// # Errors
    /// The send queue is full or the connection has ended; the error returns the buffer.
    pub fn send(&self, buffer: Buffer) -> std::result::Result<Transfer, Failed> {
        let length = buffer.len();
        self.post(SendOp::Send, buffer, length)
    }

    /// Posts a send of the buffer's first `length` bytes.
    ///
    /// # Errors
    /// As for [`Connection::send`]; also if `length` exceeds the buffer.
    pub fn send_prefix(
        &self,
        buffer: Buffer,
        length: usize,
    ) -> std::result::Result<Transfer, Failed> {
        self.post(SendOp::Send, buffer, length)
    }

    /// Posts a send of the whole buffer with immediate data.
    ///
    /// # Errors
    /// As for [`Connection::send`].
    pub fn send_with_immediate(
        &self,
        buffer: Buffer,
        imm: u32,
    ) -> std::result::Result<Transfer, Failed> {
        let length = buffer.len();
        self.post(SendOp::SendWithImm(imm), buffer, length)
    }

    /// Posts an RDMA write of the whole buffer to the start of the peer's memory; use
    /// [`RemoteMemory::slice`] for another start.
    ///
    /// # Errors
    /// `BeyondRemoteMemory` if the buffer is longer than the memory: nothing is sent and the
    /// connection stays usable. Otherwise as for [`Connection::send`]. A write that the peer does
    /// not permit (wrong key, revoked memory) breaks the connection.
    pub fn write(&self, buffer: Buffer, to: RemoteMemory) -> std::result::Result<Transfer, Failed> {
        self.post_write(SendOp::RdmaWrite(to.at()), buffer, to)
    }

    /// Posts an RDMA write that also delivers immediate data to one of the peer's receives.
    ///
    /// # Errors
    /// As for [`Connection::write`].
    pub fn write_with_immediate(
        &self,
        buffer: Buffer,
        to: RemoteMemory,
        imm: u32,
    ) -> std::result::Result<Transfer, Failed> {
        self.post_write(SendOp::RdmaWriteWithImm(to.at(), imm), buffer, to)
    }

    /// Posts an RDMA read of the peer's memory into the buffer; the length is the smaller of both.
    ///
    /// # Errors
    /// As for [`Connection::send`].
    pub fn read(
        &self,
        buffer: Buffer,
        from: RemoteMemory,
    ) -> std::result::Result<Transfer, Failed> {
        let length = buffer.len().min(from.length as usize);
        self.post(SendOp::RdmaRead(from.at()), buffer, length)
    }

    /// Posts an atomic addition to eight bytes of the peer's memory;
    /// [`Done::original`](crate::Done::original) holds the previous value. The addition wraps.
    ///
    /// The eight bytes are a word in the peer's byte order, at an address that is a multiple of
    /// eight.
    ///
    /// # Errors
    /// As for [`Connection::send`]; also if the buffer or memory is shorter than eight bytes, or
    /// the address is not a multiple of eight.
    pub fn fetch_add(
        &self,
        buffer: Buffer,
        at: RemoteMemory,
        add: u64,
    ) -> std::result::Result<Transfer, Failed> {
        let remote = at.at();
        self.post_atomic(SendOp::AtomicFetchAdd { remote, add }, buffer, at)
    }

    /// Posts an atomic compare and swap of eight bytes of the peer's memory: stores `swap` if they
    /// equal `compare`. [`Done::original`](crate::Done::original) holds the previous value in
    /// either case.
    ///
    /// # Errors
    /// As for [`Connection::fetch_add`].
    pub fn compare_swap(
        &self,
        buffer: Buffer,
        at: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> std::result::Result<Transfer, Failed> {
        let op = SendOp::AtomicCmpSwap {
            remote: at.at(),
            compare,
            swap,
        };
        self.post_atomic(op, buffer, at)
    }

    /// Posts a receive after those that the connection keeps posted.
    ///
    /// # Errors
    /// The receive queue is full or the connection has ended; the error returns the buffer.
    pub fn post_receive(&self, buffer: Buffer) -> std::result::Result<Transfer, Failed> {
        let key = self.inner.work.post_receive(buffer, false);
        key.map(|key| Transfer::new(self.inner.clone(), key))
            .map_err(|failed| self.explain(failed))
    }

    /// Takes over work whose waiter was cancelled ([`Transfer::abandon`], or a dropped `tokio::Posted`), oldest first;
    /// `None` if there is none. It may still be posted: wait for it, or use [`Transfer::try_finish`].
    ///
    /// The connection keeps as much abandoned work as may be posted at once ([`Options`](crate::Options)`::send_depth` and
    /// `posted_receives`). Of more, the oldest completed work is freed.
    pub fn take_abandoned(&self) -> Option<Transfer> {
        let key = self.inner.work.take_abandoned()?;
        Some(Transfer::new(self.inner.clone(), key))
    }

    /// Waits for the next message in the connection's own receives.
    ///
    /// # Errors
    /// The connection ended and all messages are taken.
    pub fn receive(&self) -> Result<Message> {
        self.receive_until(None)
    }

    /// Waits for the next message, at most for `timeout`.
    ///
    /// # Errors
    /// `TimedOut`, or as for [`Connection::receive`].
    pub fn receive_within(&self, timeout: Duration) -> Result<Message> {
        self.receive_until(Some(deadline::after(timeout)))
    }

    /// Returns the next message if one has arrived.
    ///
    /// # Errors
    /// The connection ended and all messages are taken.
    pub fn try_receive(&self) -> Result<Option<Message>> {
        self.inner.work.collect()?;
        self.inner.take_events()?;
        self.inner.watch_peer();
        self.next_arrival().transpose()
    }

    /// Disconnects and waits for the peer's confirmation, at most for `timeout`. Posted work is
    /// flushed.
    ///
    /// # Errors
    /// `TimedOut` if the peer does not answer; the connection is closed in any case.
    pub fn close(self, timeout: Duration) -> Result<()> {
        self.disconnect()?;
        let deadline = Some(deadline::after(timeout));
        self.inner
            .wait_until(deadline, || self.inner.is_disconnected().then_some(()))
            .map_err(|mut error| {
                error.step = Step::Disconnect;
                error
            })
    }

    /// Disconnects without waiting. Posted work is flushed.
    ///
    /// # Errors
    /// The provider failed. It is not an error if the connection has already ended.
    pub fn disconnect(&self) -> Result<()> {
        self.inner.disconnect()
    }

    /// Waits until either side has ended the connection, at most for `timeout`.
    ///
    /// # Errors
    /// `TimedOut`.
    pub fn wait_disconnected(&self, timeout: Duration) -> Result<()> {
        let deadline = Some(deadline::after(timeout));
        self.inner
            .wait_until(deadline, || self.inner.is_disconnected().then_some(()))
    }

    pub(crate) fn next_arrival(&self) -> Option<Result<Message>> {
        self.arrival().map(Ok).or_else(|| {
            let ended = self.inner.ended()?;
            // Collect again: a completion may have arrived between the last look and the end of the
            // connection, and messages that arrived before the end are delivered.
            let collected = self.inner.work.collect();
            let arrived = collected.map(|_| self.arrival());
            Some(arrived.and_then(|arrived| arrived.ok_or(ended)))
        })
    }

    fn arrival(&self) -> Option<Message> {
        let (buffer, completion) = self.inner.work.arrival()?;
        let (length, imm) = (completion.byte_len as usize, completion.imm_data);
        Some(Message::new(self.inner.clone(), buffer, length, imm))
    }

    fn receive_until(&self, deadline: Option<Instant>) -> Result<Message> {
        self.inner.wait_until(deadline, || self.next_arrival())?
    }

    fn post(
        &self,
        op: SendOp,
        buffer: Buffer,
        length: usize,
    ) -> std::result::Result<Transfer, Failed> {
        if length > buffer.len() {
            let error = Error::invalid(Step::PostSend, "length", buffer.len(), length);
            return Err(Failed {
                error: self.inner.explain(error),
                buffer: Some(buffer),
            });
        }
        let key = self.inner.work.post_send(op, buffer, length);
        key.map(|key| Transfer::new(self.inner.clone(), key))
            .map_err(|failed| self.explain(failed))
    }

    /// Posts a write of the whole buffer. Checks the length first, because a write that does not
    /// fit would break the connection at the peer.
    fn post_write(
        &self,
        op: SendOp,
        buffer: Buffer,
        to: RemoteMemory,
    ) -> std::result::Result<Transfer, Failed> {
        let length = buffer.len();
        if length as u64 > u64::from(to.length) {
            let cause = Cause::BeyondRemoteMemory {
                addr: to.addr,
                available: u64::from(to.length),
                length: length as u64,
            };
            return Err(Failed {
                error: self.inner.explain(Error::new(Step::PostSend, cause)),
                buffer: Some(buffer),
            });
        }
        self.post(op, buffer, length)
    }

    /// Posts an atomic on the word `at`. Checks the address first, because an invalid one would
    /// break the connection at the peer.
    fn post_atomic(
        &self,
        op: SendOp,
        buffer: Buffer,
        at: RemoteMemory,
    ) -> std::result::Result<Transfer, Failed> {
        let wrong = |what, expected, found| Error::invalid(Step::PostSend, what, expected, found);
        let error = if (at.length as usize) < ATOMIC_BYTES {
            let (what, expected) = ("length of an atomic's memory", "8 or more");
            Some(wrong(what, expected, u64::from(at.length)))
        } else if !at.addr.is_multiple_of(ATOMIC_BYTES as u64) {
            let (what, expected) = ("address of an atomic", "a multiple of 8");
            Some(wrong(what, expected, at.addr))
        } else {
            None
        };
        match error {
            None => self.post(op, buffer, ATOMIC_BYTES),
            Some(error) => Err(Failed {
                error: self.inner.explain(error),
                buffer: Some(buffer),
            }),
        }
    }

    fn explain(&self, failed: Failed) -> Failed {
        let error = match self.inner.ended() {
            Some(ended) => Error {
                step: failed.error.step,
                ..ended
            },
            None => self.inner.explain(failed.error),
        };
        Failed {
            error,
            buffer: failed.buffer,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Drop cannot return an error, and the id is destroyed in any case.
        let _ = self.inner.disconnect();
    }
}

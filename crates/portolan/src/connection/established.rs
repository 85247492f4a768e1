//! An established connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::verbs::{Access, Counter, SendOp};
use portolan_provider::{Error, Result, Step};
use portolan_wire::addr::Qpn;

use super::inner::Inner;
use crate::cm::CmId;
use crate::deadline;
use crate::sys::{Buffer, RemoteMemory, SharedMemory};
use crate::work::{Failed, Message, Transfer};

/// Bytes that an atomic works on.
const ATOMIC_BYTES: usize = 8;

/// A reliable connection (RC). Dropping it disconnects: messages and transfers that are kept keep
/// their buffers, and what was still posted is flushed.
///
/// It may be used by several threads at once; work is carried out in the order in which it is
/// posted.
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

    /// Local address; `None` when the device has no IP.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.inner.addresses.local?.inet()
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.inner.addresses.remote?.inet()
    }

    /// The peer's private data: the whole field of its message, zero-padded beyond what it sent.
    pub fn peer_private_data(&self) -> &[u8] {
        &self.peer_private_data
    }

    /// The number of our queue pair.
    pub fn qp_num(&self) -> Qpn {
        self.inner.queue_pair().qpn()
    }

    /// The id beneath. It gives away neither its queue pair nor its completions, on which the safety of
    /// posted buffers rests.
    pub fn id(&self) -> &CmId {
        &self.inner.id
    }

    /// What the connection's queue pair counted: packets, retransmissions, what it dropped and why.
    ///
    /// # Errors
    /// The provider refused.
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

    /// Allocates a registered buffer with these bytes in it.
    ///
    /// # Errors
    /// See [`Buffer::new`].
    pub fn buffer_from(&self, bytes: &[u8]) -> Result<Buffer> {
        let mut buffer = self.buffer(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// Allocates memory that the peer may reach.
    ///
    /// # Errors
    /// See [`SharedMemory::new`].
    pub fn share(&self, length: usize, access: Access) -> Result<SharedMemory> {
        let shared = SharedMemory::new(&self.inner.pd, length, access);
        shared.map_err(|error| self.inner.explain(error))
    }

    /// Withdraws the peer's rights to shared memory; it becomes a buffer.
    ///
    /// # Errors
    /// See [`SharedMemory::revoke`].
    pub fn revoke(&self, memory: SharedMemory) -> Result<Buffer> {
        memory.revoke(&self.inner.pd)
    }

    /// Posts a send of the whole buffer.
    ///
    /// # Errors
    /// The send queue is full or the connection has ended; the buffer comes back.
    pub fn send(&self, buffer: Buffer) -> std::result::Result<Transfer, Failed> {
        let length = buffer.len();
        self.post(SendOp::Send, buffer, length)
    }

    /// Posts a send of the buffer's first `length` bytes.
    ///
    /// # Errors
    /// As for [`Connection::send`]; or the length is more than the buffer's.
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

    /// Posts an RDMA write of the whole buffer to the peer's memory.
    ///
    /// # Errors
    /// As for [`Connection::send`].
    pub fn write(&self, buffer: Buffer, to: RemoteMemory) -> std::result::Result<Transfer, Failed> {
        let length = buffer.len();
        self.post(SendOp::RdmaWrite(to.at()), buffer, length)
    }

    /// Posts an RDMA write that also delivers immediate data to one of the peer's receives.
    ///
    /// # Errors
    /// As for [`Connection::send`].
    pub fn write_with_immediate(
        &self,
        buffer: Buffer,
        to: RemoteMemory,
        imm: u32,
    ) -> std::result::Result<Transfer, Failed> {
        let length = buffer.len();
        self.post(SendOp::RdmaWriteWithImm(to.at(), imm), buffer, length)
    }

    /// Posts an RDMA read of the peer's memory into the buffer, as much as fits both.
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

    /// Posts an atomic addition to eight bytes of the peer's memory; what was there comes back
    /// ([`Done::original`](crate::Done::original)). It wraps around.
    ///
    /// The eight bytes are a word in the peer's byte order, at an address that is a multiple of eight.
    ///
    /// # Errors
    /// As for [`Connection::send`]; or buffer or memory are shorter than eight bytes, or the address is no
    /// multiple of eight.
    pub fn fetch_add(
        &self,
        buffer: Buffer,
        at: RemoteMemory,
        add: u64,
    ) -> std::result::Result<Transfer, Failed> {
        let remote = at.at();
        self.post_atomic(SendOp::AtomicFetchAdd { remote, add }, buffer, at)
    }

    /// Posts an atomic comparison of eight bytes of the peer's memory with `compare`: if they are equal `swap`
    /// is stored. What was there comes back either way ([`Done::original`](crate::Done::original)).
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

    /// Posts a receive by hand, behind those that the connection keeps posted.
    ///
    /// # Errors
    /// The receive queue is full or the connection has ended; the buffer comes back.
    pub fn post_receive(&self, buffer: Buffer) -> std::result::Result<Transfer, Failed> {
        let key = self.inner.work.post_receive(buffer, false);
        key.map(|key| Transfer::new(self.inner.clone(), key))
            .map_err(|failed| self.explain(failed))
    }

    /// Waits for the next message in the connection's own receives.
    ///
    /// # Errors
    /// The connection ended and every message was taken.
    pub fn receive(&self) -> Result<Message> {
        self.receive_until(None)
    }

    /// Waits for the next message, for `timeout` at most.
    ///
    /// # Errors
    /// `TimedOut`, or as for [`Connection::receive`].
    pub fn receive_within(&self, timeout: Duration) -> Result<Message> {
        self.receive_until(Some(deadline::after(timeout)))
    }

    /// The next message if one has arrived.
    ///
    /// # Errors
    /// The connection ended and every message was taken.
    pub fn try_receive(&self) -> Result<Option<Message>> {
        self.inner.work.collect()?;
        self.inner.take_events()?;
        self.inner.watch_peer();
        self.next_arrival().transpose()
    }

    /// Disconnects and waits for the peer's word, for `timeout` at most. Posted work is flushed.
    ///
    /// # Errors
    /// `TimedOut` when the peer does not answer; the connection is closed all the same.
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

    /// Disconnects; posted work is flushed. Waits for nothing.
    ///
    /// # Errors
    /// The provider refused. That the connection has ended before is no error.
    pub fn disconnect(&self) -> Result<()> {
        self.inner.disconnect()
    }

    /// Waits until the connection has ended, by either side, for `timeout` at most.
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
            // What came before the end is taken before it: a completion may have come in between.
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

    /// Posts an atomic of the word `at`; the peer would break the connection over a wrong place.
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
        // Nobody is left to tell of an error, and the id goes in any case.
        let _ = self.inner.disconnect();
    }
}

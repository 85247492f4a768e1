//! Posts work on a connection. Whatever can be checked is checked before anything is posted.

use portolan_provider::verbs::{Access, SendFlags, SendOp};
use portolan_provider::{Cause, Error, Result, Step};

use super::established::Connection;
use crate::sys::{Buffer, RemoteMemory};
use crate::work::{Failed, Gather, Item, Transfer, no_own_receives};

/// Operand size of an atomic, in bytes.
const ATOMIC_BYTES: usize = 8;

type Posted = std::result::Result<Transfer, Failed>;

/// A work request with options; see [`Connection::request`]. (A name to resolve is a
/// [`resolve::Request`](crate::resolve::Request), and a peer's connection request an [`Incoming`](crate::Incoming).)
///
/// ```
/// use portolan::Access;
/// # let (server, client) = portolan::doc_pair()?;
///
/// let memory = server.share(64, Access::REMOTE_WRITE)?;
/// let written = client.request().immediate(7).write(vec![1; 64], memory.remote())?;
/// written.wait()?;
/// assert_eq!(server.receive()?.immediate(), Some(7));
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "nothing is posted yet"]
pub struct Request<'a> {
    connection: &'a Connection,
    flags: SendFlags,
    immediate: Option<u32>,
}

impl Connection {
    /// Starts a work request with options, which a call of [`Request::send`] or the others posts:
    ///
    /// ```no_run
    /// # use portolan::{Buffer, Connection, Failed, RemoteMemory};
    /// # fn publish(connection: &Connection, record: Buffer, log: RemoteMemory) -> Result<(), Failed> {
    /// let done = connection.request().fence().immediate(7).write(record, log)?.wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn request(&self) -> Request<'_> {
        Request {
            connection: self,
            flags: SendFlags::empty(),
            immediate: None,
        }
    }

    /// Posts a send of the whole buffer, vector or gather list ([`Gather`]).
    ///
    /// The length is checked only against the device's limit. The size of the peer's receives is
    /// unknown here: the connection protocol does not carry
    /// [`Options::receive_size`](crate::Options::receive_size), and a peer other than Portolan may
    /// post receives of any size. A message longer than the receive that takes it breaks the
    /// connection: the send ends with `WorkFailed(RemInvReqErr)` and the peer's receive with
    /// `WorkFailed(LocLenErr)`. Agree on a maximum message size beforehand, for example in the
    /// private data.
    ///
    /// ```
    /// # let (server, client) = portolan::doc_pair()?;
    ///
    /// let sending = client.send(b"ahoy".to_vec())?;
    /// assert_eq!(&server.receive()?[..], b"ahoy");
    /// let vector: Vec<u8> = sending.wait()?.buffer.into_memory().expect("the vector");
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Errors
    /// The send queue is full, or the connection has ended and its device refuses work; the error returns the buffer.
    /// If the device accepts the work, waiting for it fails.
    pub fn send(&self, buffer: impl Into<Gather>) -> Posted {
        self.request().send(buffer)
    }

    /// Posts a send of the first `length` bytes.
    ///
    /// # Errors
    /// As for [`Connection::send`]; also if `length` exceeds the buffer.
    pub fn send_prefix(&self, buffer: impl Into<Gather>, length: usize) -> Posted {
        let gather = buffer.into();
        if length > gather.len() {
            let (what, expected) = (
                "length of the prefix",
                format_args!("at most {}", gather.len()),
            );
            let error = Error::invalid(Step::PostSend, what, expected, length);
            return Err(gather.failed(self.inner.explain(error)));
        }
        let item = self.request().send_item(gather);
        self.post(Item { length, ..item })
    }

    /// Posts a send of the whole buffer with immediate data, which [`Message::immediate`](crate::Message::immediate)
    /// returns at the peer.
    ///
    /// # Errors
    /// As for [`Connection::send`].
    pub fn send_with_immediate(&self, buffer: impl Into<Gather>, imm: u32) -> Posted {
        self.request().immediate(imm).send(buffer)
    }

    /// Posts an RDMA write of the whole buffer to the start of the peer's memory; use
    /// [`RemoteMemory::slice`] for another start.
    ///
    /// The buffer may have any length. A write of more than 1 GiB is divided into several work requests, one for each
    /// GiB, which all count against [`Options::send_depth`](crate::Options::send_depth).
    ///
    /// ```
    /// use portolan::Access;
    /// # let (server, client) = portolan::doc_pair()?;
    ///
    /// let memory = server.share(64, Access::REMOTE_WRITE)?;
    /// let second_half = memory.remote().slice(32, 32).expect("within it");
    /// client.write(vec![7; 32], second_half)?.wait()?;
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BeyondRemoteMemory` if the buffer is longer than the memory, and `RemoteRightMissing` if the memory was offered
    /// without the right to write: nothing is sent and the connection stays usable. Otherwise as for
    /// [`Connection::send`]. If the peer refuses the write for a reason that this side cannot check (wrong key, revoked
    /// memory), the connection breaks.
    pub fn write(&self, buffer: impl Into<Gather>, to: RemoteMemory) -> Posted {
        self.request().write(buffer, to)
    }

    /// Posts an RDMA write that also delivers immediate data to one of the peer's receives. When the peer receives that
    /// message, all bytes of the write are in its memory:
    ///
    /// ```
    /// # use portolan::Access;
    /// # let (server, client) = portolan::doc_pair()?;
    /// let memory = server.share(16, Access::REMOTE_WRITE)?;
    /// client.write_with_immediate(b"seven".to_vec(), memory.remote(), 7)?.wait()?;
    /// let message = server.receive()?;
    /// assert_eq!((message.immediate(), message.written()), (Some(7), Some(5)));
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Connection::write`].
    pub fn write_with_immediate(
        &self,
        buffer: impl Into<Gather>,
        to: RemoteMemory,
        imm: u32,
    ) -> Posted {
        self.request().immediate(imm).write(buffer, to)
    }

    /// Posts a send of a few bytes that are copied into the request, at most
    /// [`Options::inline`](crate::Options::inline), which is 0 by default. It needs no buffer, and the transfer returns
    /// none.
    ///
    /// ```
    /// use portolan::{Connector, Listener, Options};
    ///
    /// # let listener = Listener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr()?;
    /// # let server = std::thread::spawn(move || listener.accept()?.accept());
    /// let connector = Connector::new().options(Options::default().inline(64));
    /// let client = connector.connect_to(address)?;
    /// client.send_inline(b"no buffer")?.wait()?;
    /// # assert_eq!(&server.join().unwrap()?.receive()?[..], b"no buffer");
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Connection::send`]; also if there are more than [`Options::inline`](crate::Options::inline) bytes.
    pub fn send_inline(&self, bytes: &[u8]) -> Posted {
        self.post_inline(SendOp::Send, bytes)
    }

    /// Posts a write of a few bytes that are copied into the request; see [`Connection::send_inline`].
    ///
    /// # Errors
    /// As for [`Connection::write`] and [`Connection::send_inline`].
    pub fn write_inline(&self, bytes: &[u8], to: RemoteMemory) -> Posted {
        match self.check_write(bytes.len(), to) {
            Ok(()) => self.post_inline(SendOp::RdmaWrite(to.at()), bytes),
            Err(error) => Err(Gather::from(Vec::<u8>::new()).failed(error)),
        }
    }

    /// Posts an RDMA read of the peer's memory into the buffer. Reads as many bytes as the shorter of the two has.
    ///
    /// The length is not limited, as for [`Connection::write`].
    ///
    /// The read may return the bytes of a write to the same memory that is posted after it: fence that write
    /// ([`Request::fence`]), or wait for the read first. It returns the bytes of all writes that were posted before it.
    ///
    /// ```
    /// use portolan::Access;
    /// # let (server, client) = portolan::doc_pair()?;
    ///
    /// let memory = server.share(64, Access::REMOTE_READ)?;
    /// memory.store(0, b"seven fathoms");
    /// let bytes = client.read(vec![0; 13], memory.remote())?.wait()?.buffer;
    /// assert_eq!(&bytes[..], b"seven fathoms");
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Errors
    /// `RemoteRightMissing` if the memory was offered without the right to read, and `Unsupported` on an unreliable
    /// connection ([`Transport`](crate::Transport)): nothing is sent and the connection stays usable. Otherwise as for [`Connection::send`].
    pub fn read(&self, buffer: impl Into<Gather>, from: RemoteMemory) -> Posted {
        self.request().read(buffer, from)
    }

    /// Posts an atomic addition to eight bytes of the peer's memory;
    /// [`Done::original`](crate::Done::original) holds the previous value. The addition wraps.
    ///
    /// The eight bytes are a word in the peer's byte order, at an address that is a multiple of
    /// eight.
    ///
    /// # Errors
    /// As for [`Connection::send`]; also if the buffer or memory is shorter than eight bytes, the address is not a
    /// multiple of eight, the memory was offered without the right to atomics, or the connection is unreliable
    /// ([`Transport`](crate::Transport)).
    pub fn fetch_add(&self, buffer: impl Into<Buffer>, at: RemoteMemory, add: u64) -> Posted {
        let remote = at.at();
        self.post_atomic(SendOp::AtomicFetchAdd { remote, add }, buffer.into(), at)
    }

    /// Posts an atomic compare and swap of eight bytes of the peer's memory: stores `swap` if they
    /// equal `compare`. [`Done::original`](crate::Done::original) holds the previous value in
    /// either case.
    ///
    /// ```
    /// use portolan::Access;
    /// # let (server, client) = portolan::doc_pair()?;
    ///
    /// let lock = server.share(8, Access::REMOTE_ATOMIC)?;
    /// let done = client.compare_swap(vec![0; 8], lock.remote(), 0, 1)?.wait()?;
    /// assert_eq!(done.original(), Some(0), "the lock was free");
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Connection::fetch_add`].
    pub fn compare_swap(
        &self,
        buffer: impl Into<Buffer>,
        at: RemoteMemory,
        compare: u64,
        swap: u64,
    ) -> Posted {
        let op = SendOp::AtomicCmpSwap {
            remote: at.at(),
            compare,
            swap,
        };
        self.post_atomic(op, buffer.into(), at)
    }

    /// Posts a receive after those that the connection keeps posted.
    ///
    /// # Errors
    /// The receive queue is full or the connection has ended, or its receives are shared (`Unsupported`); the error
    /// returns the buffer.
    pub fn post_receive(&self, buffer: impl Into<Buffer>) -> Posted {
        if self.inner.work.pool.is_some() {
            let error = self.inner.explain(no_own_receives());
            return Err(Gather::from(buffer.into()).failed(error));
        }
        let key = self.inner.work.post_receive(buffer.into(), false);
        key.map(|key| Transfer::new(self.inner.clone(), key))
            .map_err(|failed| self.explain(failed))
    }

    fn post(&self, item: Item) -> Posted {
        let key = self.inner.work.post_send(item);
        key.map(|key| Transfer::new(self.inner.clone(), key))
            .map_err(|failed| self.explain(failed))
    }

    fn post_inline(&self, op: SendOp, bytes: &[u8]) -> Posted {
        let key = self.inner.work.post_inline(op, bytes, SendFlags::empty());
        key.map(|key| Transfer::new(self.inner.clone(), key))
            .map_err(|failed| self.explain(failed))
    }

    /// Checks bounds and rights of a write, because a refusal by the peer breaks the connection.
    fn check_write(&self, length: usize, to: RemoteMemory) -> Result<()> {
        self.check_right("a write", Access::REMOTE_WRITE, to)?;
        if length as u64 <= to.length {
            return Ok(());
        }
        let cause = Cause::BeyondRemoteMemory {
            addr: to.addr,
            available: to.length,
            length: length as u64,
        };
        Err(self.inner.explain(Error::new(Step::PostSend, cause)))
    }

    /// Checks that the peer's memory was offered with a right.
    fn check_right(&self, what: &'static str, needed: Access, memory: RemoteMemory) -> Result<()> {
        if memory.access.contains(needed) {
            return Ok(());
        }
        let cause = Cause::RemoteRightMissing {
            what,
            needed,
            granted: memory.access,
            addr: memory.addr,
            length: memory.length,
        };
        Err(self.inner.explain(Error::new(Step::PostSend, cause)))
    }

    /// Posts an atomic on the word `at`. Checks the address first, because an invalid one would
    /// break the connection at the peer.
    fn post_atomic(&self, op: SendOp, buffer: Buffer, at: RemoteMemory) -> Posted {
        let wrong = |what, expected, found| Error::invalid(Step::PostSend, what, expected, found);
        let known = self
            .transport()
            .check_has("an atomic on an unreliable connection (UC)");
        let known = known.map_err(|error| self.inner.explain(error));
        let right = known.and_then(|()| self.check_right("an atomic", Access::REMOTE_ATOMIC, at));
        let error = if let Err(error) = right {
            Some(error)
        } else if at.length < ATOMIC_BYTES as u64 {
            let (what, expected) = ("length of an atomic's memory", "8 or more");
            Some(wrong(what, expected, at.length))
        } else if !at.addr.is_multiple_of(ATOMIC_BYTES as u64) {
            let (what, expected) = ("address of an atomic", "a multiple of 8");
            Some(wrong(what, expected, at.addr))
        } else {
            None
        };
        let error = error.or_else(|| {
            let (what, expected) = ("length of an atomic's buffer", "8 or more");
            (buffer.len() < ATOMIC_BYTES)
                .then(|| Error::invalid(Step::PostSend, what, expected, buffer.len()))
        });
        let gather = Gather::from(buffer);
        let error = error.or_else(|| gather.check_writable(Step::PostSend).err());
        match error {
            None => self.post(Item {
                op,
                gather,
                length: ATOMIC_BYTES,
                flags: SendFlags::empty(),
            }),
            Some(error) => Err(gather.failed(self.inner.explain(error))),
        }
    }

    pub(super) fn explain(&self, mut failed: Failed) -> Failed {
        failed.error = self.refusal(failed.error);
        failed
    }

    /// The error of posting. If the connection has ended, the reason of its end.
    pub(super) fn refusal(&self, error: Error) -> Error {
        match self.inner.ended() {
            Some(ended) => ended.at(error.step),
            None => self.inner.explain(error),
        }
    }
}

impl Request<'_> {
    /// Starts the request only after this side's earlier reads and atomics have completed. Without a fence, the peer may
    /// execute them after this request, and an earlier read may return the bytes of this write
    /// ([order](Connection#order)).
    ///
    /// ```
    /// use portolan::Access;
    /// # let (server, client) = portolan::doc_pair()?;
    ///
    /// let memory = server.share(3, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    /// memory.store(0, b"old");
    /// let read = client.read(vec![0; 3], memory.remote())?;
    /// let written = client.request().fence().write(b"new".to_vec(), memory.remote())?;
    /// assert_eq!(&read.wait()?.buffer[..], b"old");
    /// written.wait()?;
    /// # Ok::<(), portolan::Error>(())
    /// ```
    pub fn fence(mut self) -> Self {
        self.flags |= SendFlags::FENCE;
        self
    }

    /// Delivers 32 bits with the message, or with a write to one of the peer's receives. Not for reads.
    pub fn immediate(mut self, imm: u32) -> Self {
        self.immediate = Some(imm);
        self
    }

    /// Posts a send; see [`Connection::send`].
    ///
    /// # Errors
    /// As for [`Connection::send`].
    pub fn send(self, buffer: impl Into<Gather>) -> Posted {
        self.connection.post(self.send_item(buffer.into()))
    }

    /// Posts a write; see [`Connection::write`].
    ///
    /// # Errors
    /// As for [`Connection::write`].
    pub fn write(self, buffer: impl Into<Gather>, to: RemoteMemory) -> Posted {
        self.connection.post(self.write_item(buffer.into(), to)?)
    }

    /// Posts a read; see [`Connection::read`].
    ///
    /// # Errors
    /// `InvalidArgument` with immediate data; otherwise as for [`Connection::read`].
    pub fn read(self, buffer: impl Into<Gather>, from: RemoteMemory) -> Posted {
        self.connection.post(self.read_item(buffer.into(), from)?)
    }

    pub(super) fn send_item(self, gather: Gather) -> Item {
        let op = self.immediate.map_or(SendOp::Send, SendOp::SendWithImm);
        self.item(op, gather)
    }

    pub(super) fn write_item(
        self,
        gather: Gather,
        to: RemoteMemory,
    ) -> std::result::Result<Item, Failed> {
        if let Err(error) = self.connection.check_write(gather.len(), to) {
            return Err(gather.failed(error));
        }
        let op = match self.immediate {
            None => SendOp::RdmaWrite(to.at()),
            Some(imm) => SendOp::RdmaWriteWithImm(to.at(), imm),
        };
        Ok(self.item(op, gather))
    }

    pub(super) fn read_item(
        self,
        gather: Gather,
        from: RemoteMemory,
    ) -> std::result::Result<Item, Failed> {
        if let Some(imm) = self.immediate {
            let (what, expected) = ("immediate data of a read", "none");
            let error = Error::invalid(Step::PostSend, what, expected, imm);
            return Err(gather.failed(self.connection.inner.explain(error)));
        }
        let (connection, right) = (self.connection, Access::REMOTE_READ);
        let transport = connection.transport();
        let known = transport.check_has("a read on an unreliable connection (UC)");
        let writable = known.and_then(|()| gather.check_writable(Step::PostSend));
        let writable = writable.map_err(|error| connection.inner.explain(error));
        let checked = writable.and_then(|()| connection.check_right("a read", right, from));
        if let Err(error) = checked {
            return Err(gather.failed(error));
        }
        let most = usize::try_from(from.length).unwrap_or(usize::MAX);
        let length = gather.len().min(most);
        let item = self.item(SendOp::RdmaRead(from.at()), gather);
        Ok(Item { length, ..item })
    }

    fn item(self, op: SendOp, gather: Gather) -> Item {
        Item {
            op,
            length: gather.len(),
            gather,
            flags: self.flags,
        }
    }
}

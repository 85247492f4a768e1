//! The queue pair, completion queue and memory of a stream.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use portolan_provider::traits::{CompChannel, Cq, Device, Notify, Pd, Qp};
use portolan_provider::verbs::{
    Access, QpCap, QpInit, QpType, RecvWr, RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge,
    WorkCompletion,
};
use portolan_provider::{Result, Step};
use portolan_rsocket::{
    CONTROL_BYTES, CONTROL_MESSAGES, Config, LocalMemory, Op, Payload, Pieces, Post, Remote, Ring,
    Signalling, Table, WhichBuffer, table_bytes,
};

use super::core::Signal;
use super::options::{MESSAGE_BYTES, StreamOptions, no_messages};
use crate::cm::{CmId, NewQueuePair};
use crate::sys::SharedMemory;

/// The tag of a receive: this bit, and the number of its place.
const RECEIVE: u64 = 1 << 63;
/// Completions per poll. Few, because each poll clears room for them, and most find at most one.
pub(super) const BATCH: usize = 8;
/// How long a peer waits if it finds no posted receive: 0.64 ms (IBTA 9.7.5.2.8). The standard's code 0 would mean
/// 655 ms.
const MIN_RNR_TIMER: u8 = 12;

/// Maximum of bytes of all larger buffers of the process. Streams beyond it keep their first buffers.
const GROWN_MAX_BYTES: u64 = 256 << 20;
/// Bytes of all larger buffers of the process.
static GROWN_BYTES: AtomicU64 = AtomicU64::new(0);

/// What a completion reports.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reaped {
    /// A post completed.
    Sent(u64),
    /// A message arrived at a receive's place.
    Message { number: u32, place: u32 },
    /// A receive was flushed.
    Flushed,
}

/// Whether a caller that finds no completions drives the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drive {
    No,
    /// It soon sleeps.
    Briefly,
    /// It polls for as long as it finds nothing, and yields the processor now and then.
    Polling,
}

#[derive(Debug)]
pub(super) struct Queues {
    pub(super) qp: Arc<dyn Qp>,
    /// Completions of what was sent. Most callers need not be woken for them.
    pub(super) sends_cq: Arc<dyn Cq>,
    /// Completions of receives: the peer's messages.
    pub(super) receives_cq: Arc<dyn Cq>,
    pub(super) pd: Arc<dyn Pd>,
    pub(super) config: Config,
    /// The send buffer, and the places of control messages.
    sends: SharedMemory,
    /// The receive buffer, and the places of messages that are sends.
    receives: SharedMemory,
    /// The larger buffers that have replaced the first ones.
    grown_sends: OnceLock<Grown>,
    grown_receives: OnceLock<Grown>,
    table: TableMemory,
}

/// A larger buffer, counted in [`GROWN_BYTES`].
#[derive(Debug)]
struct Grown(SharedMemory);

impl Grown {
    /// `None` if the process has enough of them, or if there is no memory.
    fn new(pd: &Arc<dyn Pd>, bytes: u32, access: Access) -> Option<Self> {
        let before = GROWN_BYTES.fetch_add(bytes.into(), Ordering::Relaxed);
        let is_admitted = before + u64::from(bytes) <= GROWN_MAX_BYTES;
        let made = is_admitted.then(|| SharedMemory::new(pd, bytes as usize, access));
        let made = made.and_then(Result::ok).map(Self);
        if made.is_none() {
            GROWN_BYTES.fetch_sub(bytes.into(), Ordering::Relaxed);
        }
        made
    }
}

impl Drop for Grown {
    fn drop(&mut self) {
        GROWN_BYTES.fetch_sub(self.0.len() as u64, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct TableMemory(SharedMemory);

impl Table for TableMemory {
    fn load(&self, offset: usize, into: &mut [u8]) {
        self.0.load(offset, into);
    }

    fn store(&self, offset: usize, from: &[u8]) {
        self.0.store(offset, from);
    }
}

impl Queues {
    /// Creates the objects for a stream of an id that is bound to a device, and posts the receives. Returns also the
    /// channel of the completion queues, if the device does not call `signal`.
    pub(super) fn new(
        id: &CmId,
        device: &Arc<dyn Device>,
        options: &StreamOptions,
        signal: &Arc<Signal>,
    ) -> Result<(Self, Option<Arc<dyn CompChannel>>)> {
        options.check()?;
        let limits = device.attr()?;
        let mut config = options.config(&**device, &limits);
        let pd = crate::device::shared_pd(device)?;
        let sizes = [config.send_queue, config.receive_queue].map(u32::from);
        let ([sends_cq, receives_cq], channel) = completion_queues(&**device, sizes, signal)?;
        if channel.is_some() {
            // A kernel's device pins memory, which is limited (RLIMIT_MEMLOCK).
            (config.grown_send_buffer, config.grown_receive_buffer) = (0, 0);
        }
        let cap = QpCap {
            max_send_wr: config.send_queue.into(),
            max_recv_wr: config.receive_queue.into(),
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: config.inline,
        };
        let new = NewQueuePair {
            pd: &pd,
            send_cq: &sends_cq,
            recv_cq: &receives_cq,
            srq: None,
            init: QpInit {
                qp_type: QpType::Rc,
                cap,
                sq_sig_all: false,
            },
        };
        let qp = id.create_private_queue_pair(&new)?;
        id.set_min_rnr_timer(MIN_RNR_TIMER)?;
        config.inline = qp.query()?.1.cap.max_inline_data;
        let messages = match config.signalling {
            Signalling::Immediate => 0,
            Signalling::Sends if config.inline < MESSAGE_BYTES => return Err(no_messages()),
            Signalling::Sends => u32::from(config.receive_queue) * MESSAGE_BYTES,
        };
        let control = u32::from(CONTROL_MESSAGES) * CONTROL_BYTES;
        let memory = |bytes: u32, access| SharedMemory::new(&pd, bytes as usize, access);
        let table = SharedMemory::new(&pd, table_bytes(config.iomaps), Access::REMOTE_WRITE)?;
        let queues = Self {
            sends: memory(config.send_buffer + control, Access::empty())?,
            receives: memory(config.receive_buffer + messages, Access::REMOTE_WRITE)?,
            grown_sends: OnceLock::new(),
            grown_receives: OnceLock::new(),
            table: TableMemory(table),
            qp,
            sends_cq,
            receives_cq,
            pd,
            config,
        };
        for place in 0..u32::from(config.receive_queue) {
            queues.post_receive(place)?;
        }
        Ok((queues, channel))
    }

    pub(super) fn local_memory(&self) -> LocalMemory {
        let (table, buffer) = (self.table.0.remote(), self.receives.remote());
        LocalMemory {
            table: table.addr,
            table_key: table.rkey,
            buffer: buffer.addr,
            buffer_key: buffer.rkey,
        }
    }

    /// Allocates a larger buffer. Returns its address and key, or `None` if there is none.
    pub(super) fn grow(&self, which: WhichBuffer, bytes: u32) -> Option<(u64, u32)> {
        let (place, access) = match which {
            WhichBuffer::Send => (&self.grown_sends, Access::empty()),
            WhichBuffer::Receive => (&self.grown_receives, Access::REMOTE_WRITE),
        };
        let made = Grown::new(&self.pd, bytes, access)?;
        let memory = place.get_or_init(|| made).0.remote();
        Some((memory.addr, memory.rkey))
    }

    fn memory_of(&self, ring: Ring, which: WhichBuffer) -> &SharedMemory {
        let (first, grown) = match which {
            WhichBuffer::Send => (&self.sends, &self.grown_sends),
            WhichBuffer::Receive => (&self.receives, &self.grown_receives),
        };
        match ring {
            Ring::First => first,
            Ring::Grown => grown.get().map_or(first, |grown| &grown.0),
        }
    }

    pub(super) fn table(&self) -> &TableMemory {
        &self.table
    }

    pub(super) fn post_receive(&self, place: u32) -> Result<()> {
        let sge = match self.config.signalling {
            Signalling::Immediate => None,
            Signalling::Sends => Some(
                self.receives
                    .sge(self.message_at(place), MESSAGE_BYTES as usize),
            ),
        };
        self.qp.post_recv(&RecvWr {
            wr_id: RECEIVE | u64::from(place),
            sges: sge.as_slice(),
        })
    }

    fn message_at(&self, place: u32) -> usize {
        (self.config.receive_buffer + place * MESSAGE_BYTES) as usize
    }

    /// Posts a write of data that the device takes during the call. Returns false, and posts nothing, if it cannot.
    pub(super) fn post_taking(&self, post: &Post, data: &[u8]) -> Result<bool> {
        let wr = request(Post::TAKEN, operation(post.op), SendData::Sges(&[]));
        self.qp.post_taking(&wr, data)
    }

    /// Posts work. `data` is the program's, for payloads that need it.
    pub(super) fn post(&self, post: &Post, data: &[u8]) -> Result<()> {
        let op = operation(post.op);
        let mut sges = [Sge::default(); 2];
        let data = match &post.payload {
            Payload::Empty => SendData::Sges(&[]),
            Payload::InlineData(length) => SendData::Inline(&data[..*length as usize]),
            Payload::Bytes {
                bytes,
                length,
                place: None,
            } => SendData::Inline(&bytes[..usize::from(*length)]),
            Payload::Bytes {
                bytes,
                length,
                place: Some(place),
            } => {
                let bytes = &bytes[..usize::from(*length)];
                self.sends.store(*place as usize, bytes);
                sges[0] = self.sends.sge(*place as usize, bytes.len());
                SendData::Sges(&sges[..1])
            }
            Payload::Data(pieces) => SendData::Sges(self.gather(*pieces, data, &mut sges)),
        };
        self.qp.post_send(&request(post.id, op, data))
    }

    /// Copies data to pieces of a send buffer.
    fn gather<'a>(&self, pieces: Pieces, mut data: &[u8], sges: &'a mut [Sge; 2]) -> &'a [Sge] {
        let memory = self.memory_of(pieces.ring, WhichBuffer::Send);
        let mut count = 0;
        for ((at, length), sge) in pieces.ranges().zip(sges.iter_mut()) {
            let (now, later) = data.split_at(length as usize);
            memory.store(at as usize, now);
            *sge = memory.sge(at as usize, now.len());
            data = later;
            count += 1;
        }
        &sges[..count]
    }

    /// Copies pieces of a receive buffer out.
    pub(super) fn scatter(&self, pieces: Pieces, mut into: &mut [u8]) {
        let memory = self.memory_of(pieces.ring, WhichBuffer::Receive);
        for (at, length) in pieces.ranges() {
            let (now, later) = into.split_at_mut(length as usize);
            memory.load(at as usize, now);
            into = later;
        }
    }

    /// Begins to fetch the bytes that arrive next in the receive buffer.
    pub(super) fn prefetch(&self, next: Pieces) {
        self.memory_of(next.ring, WhichBuffer::Receive)
            .prefetch(next.start as usize);
    }

    /// Takes completions with their results. If there are none, drives the device as `drives` says.
    pub(super) fn reap(
        &self,
        cq: &dyn Cq,
        completions: &mut [WorkCompletion; BATCH],
        drives: Drive,
    ) -> Result<usize> {
        let reaped = match drives {
            Drive::No => cq.take(completions),
            Drive::Polling => cq.poll(completions),
            Drive::Briefly => match cq.take(completions) {
                Ok(0) => {
                    cq.drive();
                    cq.take(completions)
                }
                taken => taken,
            },
        };
        reaped.map_err(|mut error| {
            error.step = Step::Transfer;
            error
        })
    }

    /// The meaning of a completion.
    pub(super) fn read(&self, completion: &WorkCompletion, is_success: bool) -> Reaped {
        if completion.wr_id & RECEIVE == 0 {
            return Reaped::Sent(completion.wr_id);
        }
        let place = (completion.wr_id & !RECEIVE) as u32;
        let number = match completion.imm_data {
            _ if !is_success => return Reaped::Flushed,
            Some(immediate) => u32::from_be(immediate),
            None if self.config.signalling == Signalling::Sends => {
                let mut bytes = [0; MESSAGE_BYTES as usize];
                self.receives.load(self.message_at(place), &mut bytes);
                u32::from_ne_bytes(bytes)
            }
            // A send where only writes with immediate data are expected: an invalid message.
            None => u32::MAX,
        };
        Reaped::Message { number, place }
    }
}

fn operation(op: Op) -> SendOp {
    let remote = |remote: Remote| RemoteAddr {
        addr: remote.addr,
        rkey: remote.key,
    };
    match op {
        Op::Write(to) => SendOp::RdmaWrite(remote(to)),
        Op::WriteWithImmediate(to, number) => SendOp::RdmaWriteWithImm(remote(to), number.to_be()),
        Op::Send => SendOp::Send,
    }
}

fn request(wr_id: u64, op: SendOp, data: SendData<'_>) -> SendWr<'_> {
    SendWr {
        wr_id,
        op,
        data,
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    }
}

/// The completion queues of sends and receives, and their channel.
type CompletionQueues = ([Arc<dyn Cq>; 2], Option<Arc<dyn CompChannel>>);

/// Completion queues of these sizes, and their channel if the device does not call `signal`.
fn completion_queues(
    device: &dyn Device,
    sizes: [u32; 2],
    signal: &Arc<Signal>,
) -> Result<CompletionQueues> {
    let [sends, receives] = sizes;
    let signal: Arc<dyn Notify> = signal.clone();
    if let Some(sends) = device.create_calling_cq(sends, &signal)?
        && let Some(receives) = device.create_calling_cq(receives, &signal)?
    {
        return Ok(([sends, receives], None));
    }
    let channel = device.create_comp_channel()?;
    let queues = [
        device.create_cq(sends, Some(&channel), 0)?,
        device.create_cq(receives, Some(&channel), 1)?,
    ];
    Ok((queues, Some(channel)))
}

impl Drop for Queues {
    fn drop(&mut self) {
        // Before the memory is freed. Drop cannot return an error.
        let _ = self.qp.destroy();
    }
}

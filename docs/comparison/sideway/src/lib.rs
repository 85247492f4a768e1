//! What the five programs share: both ends of a connection, memory, and messages.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sideway::ibverbs::AccessFlags;
use sideway::ibverbs::completion::{BasicCompletionQueue, GenericCompletionQueue};
use sideway::ibverbs::memory_region::MemoryRegion;
use sideway::ibverbs::protection_domain::ProtectionDomain;
use sideway::ibverbs::queue_pair::{
    BasicQueuePair, PostSendGuard, QueuePair, QueuePairState, SetScatterGatherEntry,
    WorkRequestFlags,
};
use sideway::rdmacm::communication_manager::{
    ConnectionParameter, Event, EventChannel, EventType, Identifier, PortSpace,
};

pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

pub const MESSAGE_BYTES: usize = 64;
const RECEIVE: u64 = 0;
const SEND: u64 = 1;

/// Memory that the device may touch, deregistered before it is freed.
pub struct Memory {
    pub region: Arc<MemoryRegion>,
    pub bytes: Box<[u8]>,
}

impl Memory {
    pub fn new(pd: &Arc<ProtectionDomain>, bytes: Vec<u8>, access: AccessFlags) -> Outcome<Self> {
        let mut bytes = bytes.into_boxed_slice();
        // SAFETY: the box stays where it is and outlives the region; it is read only between completions.
        let region = unsafe { pd.reg_mr(bytes.as_mut_ptr() as usize, bytes.len(), access)? };
        Ok(Self { region, bytes })
    }

    pub fn at(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    pub fn offer(&self) -> Vec<u8> {
        [&self.at().to_be_bytes()[..], &self.region.rkey().to_be_bytes()].concat()
    }
}

/// Address and key of what a peer offers.
pub fn offered(message: &[u8]) -> (u64, u32) {
    let (addr, rkey) = message.split_at(8);
    let addr = u64::from_be_bytes(addr.try_into().unwrap());
    (addr, u32::from_be_bytes(rkey.try_into().unwrap()))
}

pub struct End {
    qp: BasicQueuePair,
    cq: Arc<BasicCompletionQueue>,
    ended: Vec<(u64, usize)>,
    pub inbox: Memory,
    outbox: Memory,
    pub pd: Arc<ProtectionDomain>,
    pub id: Arc<Identifier>,
}

pub fn expect(channel: &Arc<EventChannel>, wanted: EventType) -> Outcome<Event> {
    let event = channel.get_cm_event()?;
    match event.event_type() == wanted {
        true => Ok(event),
        false => Err(format!("{:?} instead of {wanted:?}", event.event_type()).into()),
    }
}

impl End {
    fn new(id: Arc<Identifier>) -> Outcome<Self> {
        let context = id.get_device_context().ok_or("no device")?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq_builder().setup_cqe(32).build()?;
        let generic = GenericCompletionQueue::from(cq.clone());
        let mut builder = pd.create_qp_builder();
        builder
            .setup_max_send_wr(16)
            .setup_max_send_sge(1)
            .setup_max_recv_wr(16)
            .setup_max_recv_sge(1)
            .setup_send_cq(generic.clone())
            .setup_recv_cq(generic);
        let qp = builder.build()?;
        let message = || Memory::new(&pd, vec![0; MESSAGE_BYTES], AccessFlags::LocalWrite);
        let (inbox, outbox) = (message()?, message()?);
        let ended = Vec::new();
        Ok(Self { qp, cq, ended, inbox, outbox, pd, id })
    }

    /// Brings the queue pair to each state, which librdmacm does not do for a queue pair that it has not made.
    fn ready(&mut self) -> Outcome<ConnectionParameter> {
        for state in [
            QueuePairState::Init,
            QueuePairState::ReadyToReceive,
            QueuePairState::ReadyToSend,
        ] {
            self.qp.modify(&self.id.get_qp_attr(state)?)?;
            if state == QueuePairState::Init {
                self.post_receive()?;
            }
        }
        Ok(self.parameter())
    }

    fn parameter(&self) -> ConnectionParameter {
        let mut parameter = ConnectionParameter::default();
        parameter.setup_qp_number(self.qp.qp_number());
        parameter
    }

    pub fn connect(address: SocketAddr) -> Outcome<(Self, Arc<EventChannel>)> {
        let channel = EventChannel::new()?;
        let id = channel.create_id(PortSpace::Tcp)?;
        id.resolve_addr(None, address, Duration::from_secs(2))?;
        expect(&channel, EventType::AddressResolved)?.ack()?;
        id.resolve_route(Duration::from_secs(2))?;
        expect(&channel, EventType::RouteResolved)?.ack()?;
        let mut end = Self::new(id)?;
        end.id.connect(end.parameter())?;
        expect(&channel, EventType::ConnectResponse)?.ack()?;
        end.ready()?;
        end.id.establish()?;
        Ok((end, channel))
    }

    /// Accepts a request, whose event it is. ESTABLISHED comes later, at the listener's channel.
    pub fn accept(request: Event) -> Outcome<Self> {
        let mut end = Self::new(request.cm_id().ok_or("no id")?)?;
        request.ack()?;
        let parameter = end.ready()?;
        end.id.accept(parameter)?;
        Ok(end)
    }

    fn post_receive(&mut self) -> Outcome<()> {
        let mut guard = self.qp.start_post_recv();
        let receive = guard.construct_wr(RECEIVE);
        // SAFETY: the inbox is left alone until the receive completes.
        unsafe {
            receive.setup_sge(self.inbox.region.lkey(), self.inbox.at(), MESSAGE_BYTES as u32);
        }
        Ok(guard.post()?)
    }

    /// Polls until one of these has completed; its length. The other kind may complete meanwhile.
    fn wait(&mut self, number: u64) -> Outcome<usize> {
        loop {
            if let Some(at) = self.ended.iter().position(|(ended, _)| *ended == number) {
                return Ok(self.ended.remove(at).1);
            }
            let Ok(completions) = self.cq.start_poll() else {
                std::thread::sleep(Duration::from_micros(20));
                continue;
            };
            for completion in completions {
                if completion.status() != 0 {
                    let (number, status) = (completion.wr_id(), completion.status());
                    return Err(format!("request {number} completed with {status}").into());
                }
                let length = completion.byte_len() as usize;
                self.ended.push((completion.wr_id(), length));
            }
        }
    }

    pub fn send(&mut self, message: &[u8]) -> Outcome<()> {
        self.outbox.bytes[..message.len()].copy_from_slice(message);
        let mut guard = self.qp.start_post_send();
        let send = guard.construct_wr(SEND, WorkRequestFlags::Signaled).setup_send();
        // SAFETY: the outbox is left alone until the send completes.
        unsafe { send.setup_sge(self.outbox.region.lkey(), self.outbox.at(), message.len() as u32) };
        guard.post()?;
        self.wait(SEND).map(drop)
    }

    pub fn receive(&mut self) -> Outcome<Vec<u8>> {
        let length = self.wait(RECEIVE)?;
        let message = self.inbox.bytes[..length.min(MESSAGE_BYTES)].to_vec();
        self.post_receive()?;
        Ok(message)
    }

    pub fn write(&mut self, from: &Memory, to: (u64, u32), imm: u32) -> Outcome<()> {
        let mut guard = self.qp.start_post_send();
        let write = guard.construct_wr(SEND, WorkRequestFlags::Signaled);
        let write = write.setup_write_imm(to.1, to.0, imm);
        // SAFETY: the caller cannot change the memory before this returns.
        unsafe { write.setup_sge(from.region.lkey(), from.at(), from.bytes.len() as u32) };
        guard.post()?;
        self.wait(SEND).map(drop)
    }

    pub fn read(&mut self, into: &mut Memory, from: (u64, u32)) -> Outcome<()> {
        let mut guard = self.qp.start_post_send();
        let read = guard.construct_wr(SEND, WorkRequestFlags::Signaled);
        let read = read.setup_read(from.1, from.0);
        // SAFETY: the caller cannot look at the memory before this returns.
        unsafe { read.setup_sge(into.region.lkey(), into.at(), into.bytes.len() as u32) };
        guard.post()?;
        self.wait(SEND).map(drop)
    }

    pub fn fetch_add(&mut self, into: &mut Memory, at: (u64, u32), add: u64) -> Outcome<()> {
        let mut guard = self.qp.start_post_send();
        let atomic = guard.construct_wr(SEND, WorkRequestFlags::Signaled);
        let atomic = atomic.setup_atomic_fetch_add(at.1, at.0, add);
        // SAFETY: as for a read.
        unsafe { atomic.setup_sge(into.region.lkey(), into.at(), 8) };
        guard.post()?;
        self.wait(SEND).map(drop)
    }
}

/// A listener's channel, which keeps its id.
pub fn listen(address: SocketAddr) -> Outcome<(Arc<EventChannel>, Arc<Identifier>)> {
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::Tcp)?;
    id.bind_addr(address)?;
    id.listen(128)?;
    Ok((channel, id))
}

//! Two connected ids, each on its own channel.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan::Access;
use portolan::cm::{CmId, Event, EventChannel, NewQueuePair};
use portolan::provider::cm::{ConnParam, EventType, Service};
use portolan::provider::traits::{CompChannel, Cq, Device, Mr, Pd, Qp, Srq};
use portolan::provider::verbs::{
    QpCap, QpInit, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, SrqAttr,
    WorkCompletion,
};
use portolan::wire::addr::PortSpace;

pub(crate) use crate::under_test::{active_provider, established, provider};

/// Environment variable with a local address of an RDMA device.
const ADDRESS_ENV: &str = "PORTOLAN_TEST_ADDRESS";
/// Time limit for anything that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The name of an end's completion queue in the events of its channel.
pub(crate) const COOKIE: u64 = 0xfeed_0000_0000_4711;
/// Bytes of memory at each end.
pub(crate) const MEMORY_LEN: usize = 1 << 16;

/// Reliable connections.
const CONNECTIONS: Service = Service {
    port_space: PortSpace::Tcp,
    qp_type: QpType::Rc,
};
/// Datagrams.
pub(crate) const DATAGRAMS: Service = Service {
    port_space: PortSpace::Udp,
    qp_type: QpType::Ud,
};

/// A local address of one of the provider's devices, without a port.
pub(crate) fn local_ip() -> IpAddr {
    let text = std::env::var(ADDRESS_ENV);
    text.as_deref()
        .unwrap_or("127.0.0.1")
        .parse()
        .unwrap_or_else(|error| panic!("{ADDRESS_ENV}: {error}"))
}

pub(crate) fn channel() -> EventChannel {
    EventChannel::open_on(provider()).unwrap()
}

#[track_caller]
pub(crate) fn next(channel: &EventChannel, expected: EventType) -> Event {
    let event = channel.next_event_within(PATIENCE).unwrap();
    assert_eq!(event.event_type(), expected, "{event:?}");
    event
}

/// Moves an id to the device of an address. Binding does that except on loopback, where the device stays open.
pub(crate) fn place(channel: &EventChannel, id: &CmId, at: IpAddr) {
    if !at.is_loopback() {
        return id.bind(SocketAddr::new(at, 0)).unwrap();
    }
    let anyone = SocketAddr::new(at, 7471);
    id.resolve_addr(None, anyone, PATIENCE).unwrap();
    next(channel, EventType::AddrResolved);
}

/// A listening id on its own channel.
pub(crate) struct Passive {
    pub(crate) channel: EventChannel,
    pub(crate) listener: CmId,
    pub(crate) address: SocketAddr,
}

impl Passive {
    pub(crate) fn listen() -> Self {
        Self::listen_for(CONNECTIONS)
    }

    pub(crate) fn listen_for(service: Service) -> Self {
        let channel = channel();
        let listener = CmId::with_service(&channel, service).unwrap();
        listener.bind(SocketAddr::new(local_ip(), 0)).unwrap();
        listener.listen(0).unwrap();
        let local = listener.addresses().unwrap().local.unwrap();
        Self {
            channel,
            listener,
            address: local.inet().unwrap(),
        }
    }

    /// The id of the next connection request.
    #[track_caller]
    pub(crate) fn request(&self) -> CmId {
        next(&self.channel, EventType::ConnectRequest).id().clone()
    }

    /// The end of a request, on its own channel.
    pub(crate) fn end(&self, child: CmId) -> End {
        self.end_drawing_on(child, None)
    }

    fn end_drawing_on(&self, child: CmId, srq: Option<SrqAttr>) -> End {
        let channel = channel();
        child.migrate(&channel, PATIENCE).unwrap();
        End::drawing_on(channel, child, srq)
    }
}

/// An id with a resolved route, on its own channel.
pub(crate) fn routed(to: SocketAddr) -> (EventChannel, CmId) {
    routed_for(CONNECTIONS, to)
}

/// The same for a given service.
pub(crate) fn routed_for(service: Service, to: SocketAddr) -> (EventChannel, CmId) {
    let channel = EventChannel::open_on(active_provider()).unwrap();
    let id = CmId::with_service(&channel, service).unwrap();
    id.resolve_addr(None, to, PATIENCE).unwrap();
    next(&channel, EventType::AddrResolved);
    id.resolve_route(PATIENCE).unwrap();
    next(&channel, EventType::RouteResolved);
    (channel, id)
}

/// Parameters that suit both sides.
pub(crate) fn param(private_data: &[u8]) -> ConnParam {
    ConnParam {
        private_data: private_data.into(),
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        ..ConnParam::default()
    }
}

/// One end: the id's queue pair, and memory that peers may read and write.
pub(crate) struct End {
    pub(crate) channel: EventChannel,
    pub(crate) id: CmId,
    pub(crate) qp: Arc<dyn Qp>,
    pub(crate) mr: Arc<dyn Mr>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) cq: Arc<dyn Cq>,
    pub(crate) comp_channel: Arc<dyn CompChannel>,
    pub(crate) srq: Option<Arc<dyn Srq>>,
    pub(crate) pd: Arc<dyn Pd>,
    // Declared after the registration, so that it is dropped after it.
    pub(crate) memory: Box<[u8]>,
    /// The process that created it.
    pid: u32,
}

impl End {
    pub(crate) fn new(channel: EventChannel, id: CmId) -> Self {
        Self::drawing_on(channel, id, None)
    }

    /// An end that takes its receives from its own shared queue.
    pub(crate) fn drawing_on(channel: EventChannel, id: CmId, srq: Option<SrqAttr>) -> Self {
        let device: Arc<dyn Device> = id.device().unwrap();
        let pd = device.alloc_pd().unwrap();
        let comp_channel = device.create_comp_channel().unwrap();
        let cq = device.create_cq(64, Some(&comp_channel), COOKIE).unwrap();
        let srq = srq.map(|attr| pd.create_srq(&attr).unwrap());
        let init = QpInit {
            qp_type: id.service().qp_type,
            cap: QpCap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 2,
                max_recv_sge: 2,
                max_inline_data: 16,
            },
            sq_sig_all: true,
        };
        let new = NewQueuePair {
            pd: &pd,
            send_cq: &cq,
            recv_cq: &cq,
            srq: srq.as_ref(),
            init,
        };
        let qp = id.create_queue_pair(&new).unwrap();
        let mut memory = vec![0; MEMORY_LEN].into_boxed_slice();
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::MW_BIND;
        let (start, len) = (memory.as_mut_ptr() as u64, MEMORY_LEN as u64);
        // SAFETY: the memory outlives the region (`Drop`), and is read only while no work is in progress.
        #[allow(unsafe_code, reason = "verbs work on plain memory")]
        let mr = unsafe { pd.register(start, len, access) }.unwrap();
        Self {
            channel,
            id,
            qp,
            mr,
            device,
            cq,
            comp_channel,
            srq,
            pd,
            memory,
            pid: std::process::id(),
        }
    }

    pub(crate) fn sge(&self, at: usize, len: usize) -> Sge {
        Sge {
            addr: self.memory.as_ptr() as u64 + at as u64,
            length: len as u32,
            lkey: self.mr.lkey(),
        }
    }

    pub(crate) fn post_recv(&self, wr_id: u64, at: usize, len: usize) {
        let sges = [self.sge(at, len)];
        self.qp.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    }

    pub(crate) fn post_send(&self, wr_id: u64, op: SendOp, at: usize, len: usize) {
        let sges = [self.sge(at, len)];
        let wr = SendWr {
            wr_id,
            op,
            data: SendData::Sges(&sges),
            flags: SendFlags::empty(),
            ud: None,
            srq: None,
        };
        self.qp.post_send(&wr).unwrap();
    }

    /// Posts work that moves no bytes.
    pub(crate) fn work(&self, wr_id: u64, op: SendOp) -> portolan::Result<()> {
        let wr = SendWr {
            wr_id,
            op,
            data: SendData::Sges(&[]),
            flags: SendFlags::empty(),
            ud: None,
            srq: None,
        };
        self.qp.post_send(&wr)
    }

    /// The next completion.
    #[track_caller]
    pub(crate) fn complete(&self) -> WorkCompletion {
        let deadline = Instant::now() + PATIENCE;
        let mut found = [WorkCompletion::EMPTY];
        while self.cq.poll(&mut found).unwrap() == 0 {
            assert!(Instant::now() < deadline, "no completion in time");
            std::thread::yield_now();
        }
        found[0]
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let deregistered = self.mr.deregister();
        // A forked child's copy is refused.
        let is_own = std::process::id() == self.pid;
        assert!(std::thread::panicking() || deregistered.is_ok() == is_own);
    }
}

/// Both ends of an established connection.
pub(crate) fn connected() -> (End, End) {
    connected_drawing_on(None)
}

/// The same; the passive end takes its receives from a shared queue.
pub(crate) fn connected_drawing_on(srq: Option<SrqAttr>) -> (End, End) {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    let active = End::new(channel, id);
    active.id.connect(&param(b"")).unwrap();
    let end = passive.end_drawing_on(passive.request(), srq);
    end.id.accept(&param(b"")).unwrap();
    next(&active.channel, EventType::Established);
    next(&end.channel, EventType::Established);
    established([active.qp.qpn(), end.qp.qpn()]);
    (active, end)
}

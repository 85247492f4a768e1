//! Ids, channels and queue pairs of the low layer, for the tests of its events.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use portolan::cm::{CmId, Event, EventChannel, NewQueuePair};
use portolan::provider::cm::{ConnParam, EventType, Service};
use portolan::provider::traits::{Cq, Device, Pd, Qp};
use portolan::provider::verbs::{QpCap, QpInit, QpState, QpType};
use portolan::wire::addr::{PortSpace, Qpn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::harness::*;

pub(crate) const SHORT: Duration = Duration::from_millis(50);

/// Reliable connections.
pub(crate) const TCP: Service = Service {
    port_space: PortSpace::Tcp,
    qp_type: QpType::Rc,
};

/// Datagrams.
pub(crate) const UDP: Service = Service {
    port_space: PortSpace::Udp,
    qp_type: QpType::Ud,
};

/// Parameters with a queue pair number that does not exist. Each call uses another one, because a queue pair
/// cannot have two connections.
pub(crate) fn param(private_data: &[u8]) -> ConnParam {
    static NEXT: AtomicU32 = AtomicU32::new(0x50_0000);
    ConnParam {
        private_data: private_data.into(),
        retry_count: 7,
        rnr_retry_count: 7,
        qp_num: Qpn::new(NEXT.fetch_add(1, Ordering::Relaxed)),
        ..ConnParam::default()
    }
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

pub(crate) fn readable(channel: &EventChannel) -> bool {
    let fd = channel.as_fd();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

/// A listening id on its own channel.
pub(crate) struct Passive {
    pub(crate) channel: EventChannel,
    pub(crate) listener: CmId,
    pub(crate) address: SocketAddr,
}

impl Passive {
    pub(crate) fn listen() -> Self {
        Self::listen_on(channel(), TCP)
    }

    pub(crate) fn listen_on(channel: EventChannel, service: Service) -> Self {
        let listener = CmId::with_service(&channel, service).unwrap();
        listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.listen(0).unwrap();
        let local = listener.addresses().unwrap().local.unwrap();
        Self {
            channel,
            listener,
            address: local.inet().unwrap(),
        }
    }

    /// The id of the next connection request.
    pub(crate) fn request(&self) -> CmId {
        next(&self.channel, EventType::ConnectRequest).id().clone()
    }

    /// Connects an id that has a queue pair; returns the id of its peer. Both have heard that they are connected.
    pub(crate) fn connect(&self, channel: &EventChannel, id: &CmId) -> CmId {
        id.connect(&param(b"")).unwrap();
        let child = self.request();
        child.accept(&param(b"")).unwrap();
        next(channel, EventType::Established);
        next(&self.channel, EventType::Established);
        child
    }
}

/// A datagram id on the loopback device. Binding alone does not choose the device there.
pub(crate) fn on_loopback(channel: &EventChannel) -> CmId {
    let id = CmId::with_service(channel, UDP).unwrap();
    let anyone = "127.0.0.1:7471".parse().unwrap();
    id.resolve_addr(None, anyone, PATIENCE).unwrap();
    next(channel, EventType::AddrResolved);
    id
}

/// An id with a resolved route, on its own channel.
pub(crate) fn routed(to: SocketAddr) -> (EventChannel, CmId) {
    routed_on(channel(), TCP, to)
}

pub(crate) fn routed_on(
    channel: EventChannel,
    service: Service,
    to: SocketAddr,
) -> (EventChannel, CmId) {
    let id = CmId::with_service(&channel, service).unwrap();
    id.resolve_addr(None, to, PATIENCE).unwrap();
    next(&channel, EventType::AddrResolved);
    id.resolve_route(PATIENCE).unwrap();
    next(&channel, EventType::RouteResolved);
    (channel, id)
}

/// The objects that a queue pair needs.
pub(crate) struct Verbs {
    pub(crate) pd: Arc<dyn Pd>,
    pub(crate) cq: Arc<dyn Cq>,
}

pub(crate) const INIT: QpInit = QpInit {
    qp_type: QpType::Rc,
    cap: QpCap {
        max_send_wr: 4,
        max_recv_wr: 4,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    },
    sq_sig_all: false,
};

impl Verbs {
    pub(crate) fn of(device: &Arc<dyn Device>) -> Self {
        Self {
            pd: device.alloc_pd().unwrap(),
            cq: device.create_cq(16, None, 0).unwrap(),
        }
    }

    pub(crate) fn new_queue_pair(&self) -> NewQueuePair<'_> {
        NewQueuePair {
            pd: &self.pd,
            send_cq: &self.cq,
            recv_cq: &self.cq,
            srq: None,
            init: INIT,
        }
    }

    /// Creates the id's own queue pair.
    pub(crate) fn give(&self, id: &CmId) -> Arc<dyn Qp> {
        id.create_queue_pair(&self.new_queue_pair()).unwrap()
    }

    /// Creates a queue pair that the id does not know.
    pub(crate) fn external(&self) -> Arc<dyn Qp> {
        self.pd.create_qp(&INIT, &self.cq, &self.cq, None).unwrap()
    }
}

pub(crate) fn state_of(qp: &Arc<dyn Qp>) -> QpState {
    qp.query().unwrap().0.state
}

pub(crate) fn bring(qp: &Arc<dyn Qp>, id: &CmId, states: &[QpState]) {
    for state in states {
        let (attr, mask) = id.init_qp_attr(*state).unwrap();
        qp.modify(&attr, mask).unwrap();
    }
}

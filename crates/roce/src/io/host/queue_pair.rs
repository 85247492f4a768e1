//! Queue pairs as the threads that drive the device see them.

use std::sync::Arc;
use std::time::Duration;

use portolan_provider::Result;
use portolan_provider::verbs::QpType;
use portolan_threads::biased::{MendingMutex, MutexGuard};
use portolan_wire::Qpn;

use crate::engine::{QpConfig, QueuePair};
use crate::io::host::completion_queue::CqCore;
use crate::io::host::device::DeviceCore;
use crate::io::host::shared_receive_queue::SrqUse;
use crate::io::host::xrc_domain::XrcDomain;
use crate::io::net::path::Path;
use crate::io::net::shm::rights_layout::Slot;
use crate::io::net::transmit::{Registered, SendSocket};
use portolan_port_sharing::Block;

#[derive(Debug)]
pub(crate) struct QpCore {
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) device: Arc<DeviceCore>,
    pub(crate) completes: Completes,
    state: MendingMutex<LockedQp>,
}

/// Where completions of a queue pair go.
#[derive(Debug)]
pub(crate) enum Completes {
    /// To its own completion queues.
    Own {
        send: Arc<CqCore>,
        receive: Arc<CqCore>,
    },
    /// To those of the shared receive queues of its XRC domain.
    Domain(Arc<XrcDomain>),
}

/// The state under a queue pair's lock.
#[derive(Debug)]
pub(crate) struct LockedQp {
    pub(crate) engine: QueuePair,
    /// Released when the queue pair is destroyed.
    pub(crate) srq: Option<SrqUse>,
    /// Set from RTR on; never for a UD queue pair.
    pub(crate) path: Option<Path>,
    /// The block of the process of this host that has the peer, if it is another process.
    pub(crate) peer: Option<Block>,
    /// The peer's number, and the tag of both addresses from the peer's side.
    pub(crate) peer_qpn: Qpn,
    pub(crate) peer_tag: u32,
    /// The tag of both addresses from this side.
    pub(crate) own_tag: u32,
    /// The queue pair's slot in the table of rights, while its peer may access memory directly.
    pub(crate) given: Option<Slot>,
    /// The slot that was withdrawn when it failed. Its peer may still be in a copy.
    pub(crate) withdrawn: Option<Slot>,
    /// The ring that it sends to; `None` if it sends through the socket.
    pub(crate) link: Option<Arc<SendSocket>>,
    /// How many links had come up when it last looked for one.
    pub(crate) links_seen: u64,
    pub(crate) link_wait: LinkWait,
    /// It is a UD queue pair in RTR or beyond.
    pub(crate) takes_datagrams: bool,
    /// Its next timeout.
    pub(crate) timer: Option<Duration>,
    /// The latest time passed to the engine.
    pub(crate) latest: Duration,
    /// It has more to send and is registered with its full socket.
    pub(crate) deferred: bool,
    /// It has more datagrams to send, and waits for another process.
    pub(crate) datagram_wait: Option<Box<DatagramWait>>,
    /// Its datagrams wait for no other process.
    pub(crate) sends_at_once: bool,
    /// It delays an acknowledgement, or the last packets of a stream, until its owner posts or polls again.
    pub(crate) owes: bool,
    /// A completion queue has overflowed, and `CqErr` was raised.
    pub(crate) overflowed: bool,
    /// Its device is gone, so it has failed.
    pub(crate) device_removed: bool,
    /// The write that the peer is asked to copy.
    pub(crate) pulled: Option<Pulled>,
    /// The bytes that are copied of a request that is copied in turns. Between them, the engine starts no request.
    pub(crate) copied: Option<u32>,
    /// It has more responses to reads, which it sends in its next turn. Until then it sends no packet.
    pub(crate) responds: bool,
    /// The next request is sent as packets, because the peer does not copy it.
    pub(crate) by_packets: bool,
    /// It is destroyed. A thread that still finds it ignores it.
    pub(crate) closed: bool,
}

/// A locked queue pair.
pub(crate) type QpGuard<'a> = MutexGuard<'a, LockedQp, true>;

/// The wait of an unreliable connection for its link.
#[derive(Debug, Default)]
pub(crate) struct LinkWait {
    /// Its end. Set by the first message.
    pub(crate) due: Option<Duration>,
    /// When the queue pair looks again, while it waits.
    pub(crate) next_look: Option<Duration>,
}

/// A wait of datagrams for another process of this host.
#[derive(Debug)]
pub(crate) struct DatagramWait {
    pub(crate) what: Awaited,
    /// When it looks again.
    pub(crate) until: Duration,
}

#[derive(Debug)]
pub(crate) enum Awaited {
    /// Room in this ring, with which it is registered.
    Room(Arc<SendSocket>, Registered),
    /// The link to this process.
    Link(Block),
}

/// A write that the peer is asked to copy.
#[derive(Clone, Debug)]
pub(crate) struct Pulled {
    pub(crate) id: u64,
    /// The link to the peer, which may end before the request does.
    pub(crate) link: Arc<SendSocket>,
    /// The keys of this side's memory.
    pub(crate) lkeys: Vec<u32>,
    /// The place that shows the peer that this process waits.
    pub(crate) slot: u32,
    /// The end of the part that is asked for, and of the request.
    pub(crate) end: u32,
    pub(crate) len: u32,
    pub(crate) deadline: Duration,
}

impl LockedQp {
    /// The time to pass to the engine. It never decreases, although threads may arrive with times out of order.
    #[inline]
    pub(crate) fn not_before(&mut self, now: Duration) -> Duration {
        if self.latest < now {
            self.latest = now;
        }
        self.latest
    }
}

impl QpCore {
    /// Creates a queue pair in RESET.
    pub(crate) fn new(
        device: &Arc<DeviceCore>,
        config: QpConfig,
        completes: Completes,
        srq: Option<SrqUse>,
    ) -> Result<Self> {
        let (qpn, qp_type) = (config.qpn, config.init.qp_type);
        let engine = match (&completes, &srq) {
            (Completes::Domain(domain), _) => {
                let domain = Arc::clone(domain);
                QueuePair::in_domain(config, domain)?
            }
            (_, Some(srq)) => QueuePair::with_shared_receives(config, srq.source())?,
            (_, None) => QueuePair::new(config)?,
        };
        Ok(Self {
            qpn,
            qp_type,
            device: Arc::clone(device),
            completes,
            state: MendingMutex::mending(LockedQp {
                engine,
                srq,
                path: None,
                peer: None,
                link_wait: LinkWait::default(),
                peer_qpn: Qpn::new(0),
                peer_tag: 0,
                own_tag: 0,
                given: None,
                withdrawn: None,
                link: None,
                links_seen: 0,
                takes_datagrams: false,
                timer: None,
                latest: Duration::ZERO,
                deferred: false,
                datagram_wait: None,
                sends_at_once: false,
                overflowed: false,
                owes: false,
                device_removed: false,
                pulled: None,
                copied: None,
                responds: false,
                by_packets: false,
                closed: false,
            }),
        })
    }

    /// Locks the queue pair. If a thread panicked while it held the lock, the queue pair fails.
    #[inline(always)]
    pub(crate) fn lock(&self) -> QpGuard<'_> {
        self.state.lock_or_mend(|state| self.mend(state))
    }

    #[cold]
    fn mend(&self, state: &mut LockedQp) {
        tracing::error!(qpn = %self.qpn, "a thread panicked with the queue pair locked: it fails");
        state.engine.abandon();
    }

    /// Whether a completion of it may be queued. Those of an XRC domain's receives belong to their shared receive queue.
    pub(crate) fn may_have_completions(&self) -> bool {
        match &self.completes {
            Completes::Own { send, receive } => {
                send.may_have(self.qpn) || receive.may_have(self.qpn)
            }
            Completes::Domain(_) => false,
        }
    }

    pub(crate) fn forget_completions(&self) {
        // An XRC domain's receives complete for the shared receive queues, which outlive the queue pair.
        if let Completes::Own { send, receive } = &self.completes {
            send.forget(self.qpn);
            receive.forget(self.qpn);
        }
    }
}

//! Connection-manager ids: an endpoint from its creation to its end.

mod channel_ids;
mod connection;
mod end;
mod ender;
mod queue_pair;

use portolan_threads::lock::Mutex;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use portolan_provider::cm::{
    Ece, EventType, IdAddresses, IdNumber, IdOption, PathRecord, Service, UserId,
};
use portolan_provider::number_map::NumberMap;
use portolan_provider::traits::{CmChannel, Device, Provider};
use portolan_provider::{Cause, Error, Result, Step};

pub(super) use self::channel_ids::ChannelIds;
pub(super) use self::connection::Finished;
use self::connection::Offer;
pub use self::connection::RESOURCES_MAX;
use self::ender::Ender;
use self::queue_pair::OwnQueuePair;
pub(crate) use self::queue_pair::QueuePairOwner;
pub use self::queue_pair::{Completions, NewQueuePair, QueuePairPlan};
use super::counts::Counts;
use super::event_data::EventData;
use super::membership::Held;
use super::name_lookup::NameLookup;

/// A connection-manager id (`struct rdma_cm_id`): created on a channel, bound to addresses and a
/// device, then connected or listening.
///
/// Clones refer to the same id. Dropping the last one destroys it without waiting;
/// [`CmId::destroy`] also waits until its events are acknowledged.
///
/// ```
/// use portolan::cm::{CmId, EventChannel};
///
/// let channel = EventChannel::open()?;
/// let id = CmId::new(&channel)?;
/// id.bind("127.0.0.1:0".parse().unwrap())?;
/// id.listen(8)?;
/// println!("{:?}", id.addresses()?.local);
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct CmId {
    pub(super) shared: Arc<IdShared>,
}

pub(in crate::cm) struct IdShared {
    pub(in crate::cm) channel: Mutex<Arc<ChannelIds>>,
    /// The channels it has left. A thread may have taken an event of its from one and not delivered it yet.
    former: Mutex<Vec<Weak<ChannelIds>>>,
    number: IdNumber,
    uid: UserId,
    service: Service,
    queue_pair: Mutex<Option<OwnQueuePair>>,
    /// See [`CmId::set_min_rnr_timer`].
    min_rnr_timer: AtomicU8,
    ece: Mutex<Options>,
    /// The offer of the connection request that created the id.
    request: Mutex<Option<Offer>>,
    /// Whether the handshake failed on this side.
    has_failed_to_connect: AtomicBool,
    /// Whether the program has rejected the peer.
    has_rejected: AtomicBool,
    pub(in crate::cm) ender: Ender,
    counts: Arc<Counts>,
    pub(in crate::cm) memberships: Mutex<NumberMap<UserId, Held>>,
    // Most ids have neither of these two; boxes keep the empty case small.
    pub(in crate::cm) synchronous: Mutex<Option<Box<Synchronous>>>,
    /// The plan for the queue pairs of a passive endpoint's requests.
    pub(in crate::cm) plan: Mutex<Option<Box<QueuePairPlan>>>,
    /// An endpoint's private data, sent before the user's.
    pub(in crate::cm) connect_prefix: Mutex<Vec<u8>>,
    pub(in crate::cm) name_lookup: Mutex<NameLookup>,
    released: AtomicBool,
}

/// The state of a synchronous id.
#[derive(Debug)]
pub(in crate::cm) struct Synchronous {
    /// How long a call waits for its event.
    pub(in crate::cm) timeout: Duration,
    /// The event of the last call (`rdma_cm_id`'s `event`).
    pub(in crate::cm) last: Option<EventData>,
}

/// The vendor options of both sides.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    local: Ece,
    remote: Ece,
}

/// Largest code of an RNR timer (5 bits).
const MIN_RNR_TIMER_MAX: u8 = 31;

/// Draws a number that no id or membership of this process has ever had.
pub(super) fn next_uid() -> UserId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    UserId(NEXT.fetch_add(1, Ordering::Relaxed))
}

impl CmId {
    pub(super) fn from_shared(shared: Arc<IdShared>) -> Self {
        Self { shared }
    }

    /// Binds to a local address (`rdma_bind_addr(3)`); port 0 selects a free one.
    ///
    /// # Errors
    /// The address is in use, privileged or on no interface.
    pub fn bind(&self, local: SocketAddr) -> Result<()> {
        self.channel().bind(self.number(), local)
    }

    /// Starts to resolve a destination (`rdma_resolve_addr(3)`); ends in `AddrResolved` or
    /// `AddrError`.
    ///
    /// # Errors
    /// The resolution could not start; no event follows.
    pub fn resolve_addr(
        &self,
        source: Option<SocketAddr>,
        destination: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        self.channel()
            .resolve_addr(self.number(), source, destination, timeout)?;
        let ends = [EventType::AddrResolved, EventType::AddrError];
        self.complete(Step::ResolveAddress, &ends)
    }

    /// Starts to resolve the route (`rdma_resolve_route(3)`); ends in `RouteResolved` or
    /// `RouteError`.
    ///
    /// # Errors
    /// The resolution could not start; no event follows.
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        self.channel().resolve_route(self.number(), timeout)?;
        let ends = [EventType::RouteResolved, EventType::RouteError];
        self.complete(Step::ResolveRoute, &ends)
    }

    /// Sets a route that the program has found, instead of resolving one (`RDMA_OPTION_IB_PATH` of `rdma_set_option`).
    ///
    /// `paths` is an array of `struct ib_path_rec_data`. Ends in `RouteResolved` or `RouteError`.
    ///
    /// # Errors
    /// The provider is not the kernel's, or the route is not between the id's addresses. No event follows.
    pub fn set_route(&self, paths: &[u8]) -> Result<()> {
        self.channel().set_route(self.number(), paths)?;
        let ends = [EventType::RouteResolved, EventType::RouteError];
        self.complete(Step::ResolveRoute, &ends)
    }

    /// Listens for connection requests (`rdma_listen(3)`); a backlog of 0 or less selects the
    /// maximum.
    ///
    /// # Errors
    /// The id's state does not permit listening, or the address is in use.
    pub fn listen(&self, backlog: i32) -> Result<()> {
        self.channel().listen(self.number(), backlog)
    }

    /// Reports that data arrived on the queue pair before the handshake's last message
    /// (`rdma_notify(3)` with `IBV_EVENT_COMM_EST`).
    ///
    /// # Errors
    /// The id does not wait for that message.
    pub fn notify_established(&self) -> Result<()> {
        self.channel().notify_established(self.number())
    }

    /// Sets an option (`rdma_set_option(3)`).
    ///
    /// # Errors
    /// The id's state does not permit the option.
    pub fn set_option(&self, option: IdOption) -> Result<()> {
        self.channel().set_option(self.number(), option)
    }

    /// Sets how long a peer that finds no posted receive waits (the kernel's
    /// `rdma_set_min_rnr_timer`): a code of IBTA 9.7.5.2.8, 0 to 31.
    ///
    /// Connecting or accepting applies it to the id's queue pair. The default code is 0, the
    /// longest time: 655 ms.
    ///
    /// # Errors
    /// `InvalidArgument` for a code above 31.
    pub fn set_min_rnr_timer(&self, code: u8) -> Result<()> {
        if code > MIN_RNR_TIMER_MAX {
            let expected = format_args!("0 to {MIN_RNR_TIMER_MAX}");
            return Err(Error::invalid(Step::SetOption, "RNR timer", expected, code));
        }
        self.shared.min_rnr_timer.store(code, Ordering::Relaxed);
        Ok(())
    }

    /// The id's addresses, device and GIDs, as far as known.
    ///
    /// # Errors
    /// The provider no longer has the id.
    pub fn addresses(&self) -> Result<IdAddresses> {
        self.channel().addresses(self.number())
    }

    /// The resolved paths.
    ///
    /// # Errors
    /// The provider no longer has the id.
    pub fn paths(&self) -> Result<Vec<PathRecord>> {
        self.channel().paths(self.number())
    }

    /// The device that the id is bound to.
    ///
    /// # Errors
    /// The id is not bound to a device, or the device is gone.
    pub fn device(&self) -> Result<Arc<dyn Device>> {
        let missing =
            |why: &str| self.explain(Error::new(Step::Query, Cause::NoDevice { why: why.into() }));
        let index = self.channel().device_index(self.number())?;
        let index = index.ok_or_else(|| missing("the id is bound to none yet"))?;
        let device = self.provider().device(index)?;
        device.ok_or_else(|| missing("it is gone"))
    }

    /// The provider of the id's channel.
    pub fn provider(&self) -> Arc<dyn Provider> {
        self.shared.channel.lock().provider.clone()
    }

    /// The port space and queue pair type.
    pub fn service(&self) -> Service {
        self.shared.service
    }

    /// The provider's number of the id.
    pub fn number(&self) -> IdNumber {
        self.shared.number
    }

    /// Queues a `User` event for the id with this status and argument (`rdma_write_cm_event(3)`).
    /// It wakes the threads that wait on the channel.
    ///
    /// # Errors
    /// `LimitReached` if too many such events are queued; `InvalidState` for the id of a request
    /// that is not accepted yet, which cannot receive events.
    pub fn write_event(&self, status: i32, arg: u64) -> Result<()> {
        self.write_library_event(EventType::User, status, arg)
    }

    /// Queues an event for the id. The id must not move to another channel meanwhile: the kernel
    /// knows an id at one channel only, and does not find one that has just moved.
    pub(super) fn write_library_event(
        &self,
        event: EventType,
        status: i32,
        arg: u64,
    ) -> Result<()> {
        let channel = self.shared.channel.lock();
        let number = self.number();
        channel.channel.write_event(number, event, status, arg)
    }

    pub(super) fn counts(&self) -> &Arc<Counts> {
        &self.shared.counts
    }

    /// Registers a number whose events belong to the id.
    pub(super) fn enroll(&self, uid: UserId) {
        self.shared.channel.lock().enroll(uid, &self.shared);
    }

    pub(super) fn disenroll(&self, uid: UserId) {
        self.shared.forget(uid);
    }

    pub(super) fn explain(&self, error: Error) -> Error {
        match self.addresses() {
            Ok(known) => error.between(known.local, known.remote),
            Err(_) => error,
        }
    }

    pub(super) fn channel(&self) -> Arc<dyn CmChannel> {
        self.shared.channel.lock().channel.clone()
    }
}

impl IdShared {
    pub(in crate::cm) fn enrolled(
        channel: &Arc<ChannelIds>,
        number: IdNumber,
        uid: UserId,
        service: Service,
    ) -> Arc<Self> {
        let shared = Arc::new(Self {
            channel: Mutex::new(channel.clone()),
            former: Mutex::default(),
            number,
            uid,
            service,
            queue_pair: Mutex::default(),
            min_rnr_timer: AtomicU8::new(0),
            ece: Mutex::default(),
            request: Mutex::default(),
            has_failed_to_connect: AtomicBool::new(false),
            has_rejected: AtomicBool::new(false),
            ender: Ender::default(),
            counts: Arc::default(),
            memberships: Mutex::default(),
            synchronous: Mutex::default(),
            plan: Mutex::default(),
            connect_prefix: Mutex::default(),
            name_lookup: Mutex::default(),
            released: AtomicBool::new(false),
        });
        channel.enroll(uid, &shared);
        shared
    }

    /// Creates the id of a new connection from a request to `listener`.
    pub(in crate::cm) fn child(
        listener: &Self,
        channel: &Arc<ChannelIds>,
        number: IdNumber,
    ) -> Arc<Self> {
        let uid = next_uid();
        Self::enrolled(channel, number, uid, listener.service)
    }
}

/// Brief: a queue pair's own output would be long.
impl fmt::Debug for IdShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdShared")
            .field("number", &self.number)
            .field("uid", &self.uid)
            .field("service", &self.service)
            .field("counts", &self.counts)
            .field("released", &self.released)
            .finish_non_exhaustive()
    }
}

impl Drop for IdShared {
    fn drop(&mut self) {
        // Drop cannot return an error, and the provider destroys the id in any case.
        let _ = self.release();
    }
}

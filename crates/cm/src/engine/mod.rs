//! The engine: its state, the creation of ids, and its output queues.

mod device;
mod half_open;
pub(crate) mod held;
mod listen;
mod multicast;
mod timewait;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::time::Duration;

use chacha20::ChaCha12Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use portolan_provider::cm::{
    CmEvent, ConnParam, Ece, EventParam, EventType, IdNumber, Service, UserId,
};
use portolan_provider::error::{Cause, Error, Result, Step};
use portolan_provider::verbs::QpType;
use portolan_timers::Timers;
use portolan_wire::PortSpace;
use portolan_wire::Psn;
use portolan_wire::mad::MAD_LEN;

use self::device::Neighbours;
use self::held::Held;
use self::listen::Listeners;
use self::multicast::Groups;
use self::timewait::Remembered;
use crate::comm_ids::CommIds;
use crate::config::{Config, MAX_IDS};
use crate::counters::{Counters, DropReason};
use crate::half_open_requests::Requests;
use crate::hash::Keyed;
use crate::id::{Id, Rejection, RemoteId};
use crate::mutant::{Mutant, is_planted};
use crate::pace::Pace;
use crate::sidr::RemoteRequest;
use crate::table::IdTable;
use crate::types::{Membership, MembershipNumber, Query, Transmit};

/// Maximum number of messages that one input causes, apart from those of a listener's children when it is destroyed.
const TRANSMITS_PER_INPUT: usize = 2;

/// Number of random draws before the space of communication ids counts as full. Ids use at most a sixteenth of the
/// space, so this fails once in 2^256 times.
const COMM_ID_DRAWS: u32 = 64;

/// The connection manager. See the [crate's documentation](crate) for how to drive it.
#[derive(Debug)]
pub struct Cm {
    pub(crate) config: Config,
    comm_ids: CommIds,
    pub(crate) ids: IdTable,
    pub(crate) listeners: Listeners,
    pub(crate) groups: Groups,
    pub(crate) neighbours: Neighbours,
    pub(crate) timers: Timers<IdNumber>,
    /// The half-open connections of all listeners.
    pub(crate) half_open: Requests,
    /// Requests for services whose listeners are expected.
    pub(crate) held: Held,
    /// Children that were displaced before their owner took them.
    pub(crate) displaced: VecDeque<IdNumber>,
    pub(crate) remembered: Remembered<RemoteId, ()>,
    /// Answers to rejected REQs.
    pub(crate) rejections: Remembered<RemoteId, Box<Rejection>>,
    /// Answers of destroyed ids to the SIDR requests that created them.
    pub(crate) answers: Remembered<RemoteRequest, Box<[u8; MAD_LEN]>>,
    pub(crate) counters: Counters,
    rng: ChaCha12Rng,
    events: VecDeque<Queued>,
    queries: VecDeque<Query>,
    transmits: VecDeque<Transmit>,
    pub(crate) pace: Pace,
}

/// A queued event, dropped if its object is destroyed first.
#[derive(Debug)]
struct Queued {
    event: CmEvent,
    membership: Option<MembershipNumber>,
}

impl From<CmEvent> for Queued {
    fn from(event: CmEvent) -> Self {
        Self {
            event,
            membership: None,
        }
    }
}

impl Cm {
    /// Creates an engine. All of its random choices, and so everything that a peer must not guess, derive from `seed`.
    /// Settings outside the engine's limits are adjusted to them.
    pub fn new(mut config: Config, seed: [u8; 32]) -> Self {
        config.max_ids = config.max_ids.min(MAX_IDS);
        config.max_half_open_per_listener = config.max_half_open_per_listener.max(1);
        config.max_half_open = config.max_half_open.max(1);
        config.max_events_queued = config.max_events_queued.max(1);
        config.max_transmits_queued = config.max_transmits_queued.max(TRANSMITS_PER_INPUT);
        config.max_cm_retries = config.max_cm_retries.min(15);
        config.response_timeout_exp = config.response_timeout_exp.min(31);
        config.packet_lifetime_exp = config.packet_lifetime_exp.min(30);
        config.mra_timeout_exp = config.mra_timeout_exp.min(31);
        config.longest_grant_exp = config.longest_grant_exp.min(31);
        let mut rng = ChaCha12Rng::from_seed(seed);
        let hash = Keyed::new(rng.next_u64(), rng.next_u64());
        let comm_ids = CommIds::new(Keyed::new(rng.next_u64(), rng.next_u64()), rng.next_u32());
        Self {
            comm_ids,
            ids: IdTable::new(config.max_ids, hash),
            listeners: Listeners::new(hash, config.max_expected_listeners),
            groups: Groups::new(hash),
            neighbours: Neighbours::new(hash),
            timers: Timers::new(),
            half_open: Requests::default(),
            held: Held::default(),
            displaced: VecDeque::new(),
            remembered: Remembered::new(config.max_timewait_remembered, hash),
            rejections: Remembered::new(config.max_timewait_remembered, hash),
            answers: Remembered::new(config.max_timewait_remembered, hash),
            counters: Counters::default(),
            pace: Pace::new(config.pace_burst, config.pace_interval),
            config,
            rng,
            events: VecDeque::new(),
            queries: VecDeque::new(),
            transmits: VecDeque::new(),
        }
    }

    /// Creates an id (`rdma_create_id`).
    ///
    /// # Errors
    /// `LimitReached`; `InvalidArgument` for a queue pair type that the port space does not serve: UDP
    /// and IPOIB serve UD, TCP the others, IB all (`ucma_get_qp_type`).
    pub fn create_id(&mut self, uid: UserId, service: Service) -> Result<IdNumber> {
        let (served, expected) = match (service.port_space, service.qp_type) {
            (PortSpace::Tcp, qp_type) => (qp_type != QpType::Ud, "RC, UC or XRC"),
            (PortSpace::Udp | PortSpace::Ipoib, qp_type) => (qp_type == QpType::Ud, "UD"),
            (PortSpace::Ib, _) => (true, "any"),
        };
        if !served {
            let what = "queue pair type of the port space";
            let found = service.qp_type;
            return Err(Error::invalid(Step::CreateId, what, expected, found));
        }
        let psn = self.random_psn();
        self.ids
            .insert(Id::new(Some(uid), service, psn), Step::CreateId)
    }

    /// Takes the next message to send. Messages beyond a burst wait for [`Cm::poll_timeout`].
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        if self.transmits.is_empty() || !self.pace.allow() {
            return None;
        }
        self.transmits.pop_front()
    }

    /// Takes the next query to the machine.
    pub fn poll_query(&mut self) -> Option<Query> {
        while let Some(query) = self.queries.pop_front() {
            if self.is_open(&query) {
                return Some(query);
            }
        }
        None
    }

    /// Takes the next event. Skips events of destroyed ids and of groups that were left.
    pub fn poll_event(&mut self) -> Option<CmEvent> {
        while let Some(queued) = self.events.pop_front() {
            let membership = queued.membership;
            let is_member = membership.is_none_or(|number| self.groups.contains(number));
            let is_told = is_member || is_planted(Mutant::LeftGroupStillTold);
            if is_told && self.ids.get(queued.event.id).is_some() {
                return Some(queued.event);
            }
        }
        None
    }

    /// When [`Cm::handle_timeout`] is next due. While delayed messages fill the queue, this is when they may leave,
    /// because nothing could be sent earlier.
    pub fn poll_timeout(&self) -> Option<Duration> {
        let held_back = if self.transmits.is_empty() {
            None
        } else {
            self.pace.resumes_at()
        };
        let due = self.timers.next().into_iter().chain(self.held.next_due());
        let due = due
            .min()
            .filter(|_| !(held_back.is_some() && self.full().is_some()));
        due.into_iter().chain(held_back).min()
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Checks for room for the output of any input.
    pub(crate) fn full(&self) -> Option<DropReason> {
        let waiting = self.events.len().max(self.displaced.len());
        if waiting >= self.config.max_events_queued {
            Some(DropReason::EventsFull)
        } else if self.transmits.len() + TRANSMITS_PER_INPUT > self.config.max_transmits_queued {
            Some(DropReason::TransmitsFull)
        } else {
            None
        }
    }

    /// Starts a command that sends a message, which needs room.
    ///
    /// # Errors
    /// `LimitReached`.
    pub(crate) fn begin(&mut self, now: Duration, step: Step) -> Result<()> {
        self.begin_report(now, step)?;
        match self.full() {
            None => Ok(()),
            Some(_) => Err(limit_reached(
                step,
                "messages waiting to be sent",
                self.config.max_transmits_queued,
            )),
        }
    }

    /// Starts a command that sends no message, but reports an event, which needs room.
    ///
    /// # Errors
    /// `LimitReached`.
    pub(crate) fn begin_report(&mut self, now: Duration, step: Step) -> Result<()> {
        self.pace.refresh(now);
        match self.full() {
            Some(DropReason::EventsFull) => Err(limit_reached(
                step,
                "events waiting to be taken",
                self.config.max_events_queued,
            )),
            _ => Ok(()),
        }
    }

    /// Queues a message. Only the last messages of a listener's children can find the queue full.
    pub(crate) fn transmit(&mut self, transmit: Transmit) {
        if self.transmits.len() < self.config.max_transmits_queued {
            self.transmits.push_back(transmit);
        } else {
            self.counters.drop(DropReason::TransmitsFull);
        }
    }

    /// Queues an event for the owner of `id`, if it has one.
    pub(crate) fn report(
        &mut self,
        id: IdNumber,
        event: EventType,
        status: i32,
        param: EventParam,
        ece: Ece,
    ) {
        match self.ids.get(id).and_then(|id| id.uid) {
            Some(uid) => {
                let event = CmEvent {
                    uid,
                    id,
                    event,
                    status,
                    param,
                    ece,
                };
                self.events.push_back(event.into());
            }
            None => self.counters.drop(DropReason::NoOwner),
        }
    }

    /// Queues an event that has only a status.
    pub(crate) fn report_bare(&mut self, id: IdNumber, event: EventType, status: i32) {
        self.report(id, event, status, EventParam::None, Ece::default());
    }

    /// Queues an event of a connection without private data.
    pub(crate) fn report_empty(&mut self, id: IdNumber, event: EventType, status: i32) {
        let param = EventParam::Conn(ConnParam::default());
        self.report(id, event, status, param, Ece::default());
    }

    /// Queues a connection request for the listener's owner.
    pub(crate) fn report_request(
        &mut self,
        uid: UserId,
        child: IdNumber,
        param: EventParam,
        ece: Ece,
    ) {
        let event = CmEvent {
            uid,
            id: child,
            event: EventType::ConnectRequest,
            status: 0,
            param,
            ece,
        };
        self.events.push_back(event.into());
    }

    /// Queues an event of a multicast membership, under the membership's tag.
    pub(crate) fn report_membership(
        &mut self,
        membership: &Membership,
        uid: UserId,
        event: EventType,
        status: i32,
        param: EventParam,
    ) {
        let event = CmEvent {
            uid,
            id: membership.id,
            event,
            status,
            param,
            ece: Ece::default(),
        };
        let membership = Some(membership.number);
        self.events.push_back(Queued { event, membership });
    }

    /// Queues a query.
    pub(crate) fn ask(&mut self, query: Query) {
        self.queries.push_back(query);
    }

    /// Number of queued queries, including obsolete ones.
    pub(crate) fn queries_waiting(&self) -> usize {
        self.queries.len()
    }

    /// Sets or clears the deadline of an id.
    pub(crate) fn set_deadline(&mut self, number: IdNumber, deadline: Option<Duration>) {
        if let Some(id) = self.ids.get_mut(number) {
            self.timers.set(number, &mut id.deadline, deadline);
        }
    }

    pub(crate) fn random_psn(&mut self) -> Psn {
        Psn::new(self.rng.next_u32())
    }

    pub(crate) fn random_tid(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// A free communication id in this engine's block, never 0.
    pub(crate) fn draw_comm_id(&mut self) -> Option<u32> {
        let mut block = u32::from(self.config.comm_id_block) << 24;
        if is_planted(Mutant::BlockIgnored) {
            block = self.rng.next_u32() & 0xFF00_0000;
        }
        (0..COMM_ID_DRAWS)
            .map(|_| block | self.comm_ids.draw())
            .find(|comm_id| *comm_id != 0 && !self.ids.has_comm_id(*comm_id))
    }
}

fn limit_reached(step: Step, what: &'static str, limit: usize) -> Error {
    let limit = limit as u64;
    Error::new(step, Cause::LimitReached { what, limit })
}

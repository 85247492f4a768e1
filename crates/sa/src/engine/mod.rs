//! Subnet administration queries as a pure state machine: the queries of one agent with their
//! retries and deadlines, and the multi-packet transfers of tables.
//!
//! # The drain rule
//!
//! Each call that changes state takes `now`, the time since an epoch that the caller chooses; it
//! never goes back. After the call, take everything from [`Engine::poll_transmit`] and
//! [`Engine::poll_outcome`]. Then wait for a datagram and pass it in, or wait until
//! [`Engine::poll_timeout`] and call [`Engine::handle_timeout`].
//!
//! # Modules
//!
//! * [`Engine`] here: starts and ends queries.
//! * `flight`: a query in progress and its timer.
//! * `receive`: validates answers.
//! * `transfer` and `reassembly`: multi-packet tables (IBTA 13.6).

mod config;
mod counters;
mod failure;
mod flight;
mod reassembly;
mod receive;
mod transfer;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use chacha20::ChaCha12Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use portolan_timers::Timers;
use portolan_wire::Gid;
use portolan_wire::mad::{MAD_LEN, MadHeaderRepr, Method, MgmtClass, RmppHeader};
use portolan_wire::sa::{
    AttributeId, ComponentMask, PathRecord, Query, Record, SA_DATA_LEN, SaHeader, SaPacket,
};

pub use config::Config;
pub use counters::Counters;
pub use failure::{Failure, Problem};

use crate::transport::{Mad, MadAddress};
use flight::Flight;
use transfer::Finished;

/// A query of an [`Engine`]. Numbers are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueryId(pub u64);

/// Components of a path record (IBTA 15.2.5.16).
const PATH_DGID: u32 = 2;
const PATH_SGID: u32 = 3;

/// The ends of a path, as a query names them.
pub(crate) struct PathEnds {
    pub(crate) dgid: Option<Gid>,
    pub(crate) sgid: Option<Gid>,
}

/// A request to the administrator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    method: Method,
    attribute: AttributeId,
    mask: ComponentMask,
    data: [u8; SA_DATA_LEN],
    /// Length of one record in the answer, in bytes.
    record_len: usize,
}

impl Request {
    /// Requests one record that matches `query`.
    ///
    /// # Errors
    /// [`portolan_wire::Error::OutOfRange`] if a value is wider than its field.
    pub fn get<R: Record>(query: &Query<R>) -> portolan_wire::Result<Self> {
        Self::new(Method::GET, query)
    }

    /// Requests all records that match `query`.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn table<R: Record>(query: &Query<R>) -> portolan_wire::Result<Self> {
        Self::new(Method::GET_TABLE, query)
    }

    /// Creates or changes the record.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn set<R: Record>(query: &Query<R>) -> portolan_wire::Result<Self> {
        Self::new(Method::SET, query)
    }

    /// Deletes the record.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn delete<R: Record>(query: &Query<R>) -> portolan_wire::Result<Self> {
        Self::new(Method::DELETE, query)
    }

    fn new<R: Record>(method: Method, query: &Query<R>) -> portolan_wire::Result<Self> {
        let mut data = [0; SA_DATA_LEN];
        query.record().emit(&mut data)?;
        Ok(Self {
            method,
            attribute: R::ATTRIBUTE,
            mask: query.mask(),
            data,
            record_len: R::LEN,
        })
    }

    /// The method.
    pub const fn method(&self) -> Method {
        self.method
    }

    /// The attribute.
    pub const fn attribute(&self) -> AttributeId {
        self.attribute
    }

    /// The requested path, by the ends that the query names; `None` if it does not request a path.
    pub(crate) fn path(&self) -> Option<PathEnds> {
        if self.attribute != AttributeId::PATH_RECORD {
            return None;
        }
        let like = PathRecord::parse(&self.data).ok()?;
        let is_named = |component: u32| self.mask.0 >> component & 1 == 1;
        Some(PathEnds {
            dgid: is_named(PATH_DGID).then_some(like.dgid),
            sgid: is_named(PATH_SGID).then_some(like.sgid),
        })
    }

    /// Encodes the request.
    fn mad(&self, tid: u32) -> Mad {
        let header = MadHeaderRepr {
            base_version: 0,
            mgmt_class: MgmtClass::SUBN_ADM,
            class_version: 0,
            method: self.method,
            status: 0,
            class_specific: 0,
            tid: tid.into(),
            attribute_id: self.attribute.0,
            attribute_modifier: 0,
        };
        let sa = SaHeader {
            rmpp: RmppHeader::INACTIVE,
            sm_key: 0,
            attribute_offset: 0,
            component_mask: self.mask.0,
        };
        // Emitting cannot fail: the data has the length of its field and the headers hold whole
        // fields.
        SaPacket::emit(&header, &sa, &self.data).unwrap_or([0; MAD_LEN])
    }
}

/// An answer of the administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// One record, at the start.
    Record(Box<[u8; SA_DATA_LEN]>),
    /// A complete table.
    Table {
        /// The records.
        data: Vec<u8>,
        /// Distance from one record to the next, in bytes; zero only if there are none.
        stride: usize,
    },
}

impl Answer {
    /// The records, in the administrator's order. The engine has checked the answer, so no record
    /// is skipped.
    pub fn records<R: Record>(&self) -> Vec<R> {
        let (data, stride) = match self {
            Self::Record(data) => return R::parse(data.as_slice()).into_iter().collect(),
            Self::Table { data, stride } => (data, *stride),
        };
        let chunks = data.chunks(stride.max(1));
        chunks.filter_map(|chunk| R::parse(chunk).ok()).collect()
    }
}

/// A datagram to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The destination.
    pub to: MadAddress,
    /// The datagram.
    pub mad: Box<Mad>,
    /// How long to wait for the answer; zero if none is expected.
    pub answer_within: Duration,
}

/// The queries of one agent. See the [module](self) for its use.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    rng: ChaCha12Rng,
    /// The address of the administrator, if known.
    target: Option<MadAddress>,
    next_id: u64,
    flights: BTreeMap<QueryId, Flight>,
    by_tid: BTreeMap<u32, QueryId>,
    /// Queries not started yet, oldest first.
    waiting: BTreeSet<QueryId>,
    started: usize,
    /// Size of all incomplete tables, in bytes.
    reassembled_bytes: usize,
    timers: Timers<QueryId>,
    finished: Finished,
    transmits: VecDeque<Transmit>,
    outcomes: VecDeque<(QueryId, Result<Answer, Failure>)>,
    counters: Counters,
}

impl Engine {
    /// Creates an engine without an administrator. `seed` generates its transaction ids and must be
    /// unpredictable.
    pub fn new(config: Config, seed: [u8; 32]) -> Self {
        Self {
            config,
            rng: ChaCha12Rng::from_seed(seed),
            target: None,
            next_id: 0,
            flights: BTreeMap::new(),
            by_tid: BTreeMap::new(),
            waiting: BTreeSet::new(),
            started: 0,
            reassembled_bytes: 0,
            timers: Timers::new(),
            finished: Finished::default(),
            transmits: VecDeque::new(),
            outcomes: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Sets the administrator's address; `None` if there is none.
    ///
    /// Queries in flight are sent to the new administrator at once. Without one, they wait until
    /// their deadlines.
    pub fn set_target(&mut self, now: Duration, target: Option<MadAddress>) {
        if self.target == target {
            return;
        }
        self.target = target;
        let started: Vec<QueryId> = self.by_tid.values().copied().collect();
        for id in started {
            self.restart(now, id, None);
        }
    }

    /// The administrator's address.
    pub const fn target(&self) -> Option<MadAddress> {
        self.target
    }

    /// Submits a query. The outcome comes by [`poll_outcome`](Self::poll_outcome), at the latest at
    /// `deadline`. At most [`Config::in_flight_max`] queries are in flight; the others wait.
    ///
    /// # Errors
    /// [`Failure::LimitReached`] when [`Config::queries_max`] are in progress;
    /// [`Failure::NoAdministrator`] when there is no administrator.
    pub fn submit(
        &mut self,
        now: Duration,
        request: Request,
        deadline: Duration,
    ) -> Result<QueryId, Failure> {
        if self.flights.len() >= self.config.queries_max {
            return Err(Failure::LimitReached {
                what: "queries in progress",
                limit: self.config.queries_max as u64,
            });
        }
        if self.target.is_none() {
            return Err(Failure::NoAdministrator);
        }
        let id = QueryId(self.next_id);
        self.next_id += 1;
        let mut flight = Flight::new(request, now, deadline);
        self.timers.set(id, &mut flight.armed, Some(deadline));
        self.flights.insert(id, flight);
        self.waiting.insert(id);
        self.start_waiting(now);
        Ok(id)
    }

    /// Moves a query's deadline. Does nothing if the query has ended.
    pub fn set_deadline(&mut self, id: QueryId, deadline: Duration) {
        if let Some(flight) = self.flights.get_mut(&id) {
            flight.deadline = deadline;
            let due = flight.due();
            self.timers.set(id, &mut flight.armed, Some(due));
        }
    }

    /// Cancels a query: it has no outcome. Does nothing if the query has ended.
    pub fn cancel(&mut self, now: Duration, id: QueryId) {
        self.abandon_transfer(id, portolan_wire::mad::RmppStatus::UNSPECIFIED);
        self.forget(id);
        self.start_waiting(now);
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next query that ended, with its outcome.
    pub fn poll_outcome(&mut self) -> Option<(QueryId, Result<Answer, Failure>)> {
        self.outcomes.pop_front()
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) at the latest; `None` if no timer is
    /// pending.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.timers.next()
    }

    /// Handles the timers that are due.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some(id) = self.timers.pop_due(now) {
            if let Some(flight) = self.flights.get_mut(&id) {
                flight.armed = None;
                self.flight_due(now, id);
            }
        }
        self.start_waiting(now);
    }

    /// Number of queries in progress, including those waiting to be sent.
    pub fn len(&self) -> usize {
        self.flights.len()
    }

    /// Returns whether no query is in progress.
    pub fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Counters of dropped datagrams and of retries.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    fn start_waiting(&mut self, now: Duration) {
        while self.started < self.config.in_flight_max {
            let Some(id) = self.waiting.pop_first() else {
                return;
            };
            if self.flights.contains_key(&id) {
                self.started += 1;
                self.launch(now, id);
            }
        }
    }

    /// Draws an unpredictable transaction id that no query in flight uses.
    fn draw_tid(&mut self) -> u32 {
        loop {
            let tid = self.rng.next_u32();
            if tid != 0 && !self.by_tid.contains_key(&tid) && !self.finished.has(tid) {
                return tid;
            }
        }
    }

    fn end(&mut self, now: Duration, id: QueryId, outcome: Result<Answer, Failure>) {
        if self.forget(id) {
            self.outcomes.push_back((id, outcome));
        }
        self.start_waiting(now);
    }

    /// Removes a query; returns whether it existed.
    fn forget(&mut self, id: QueryId) -> bool {
        let Some(mut flight) = self.flights.remove(&id) else {
            return false;
        };
        self.timers.set(id, &mut flight.armed, None);
        match flight.tid {
            Some(tid) => {
                self.by_tid.remove(&tid);
                self.started -= 1;
            }
            None => {
                self.waiting.remove(&id);
            }
        }
        self.reassembled_bytes -= flight.reassembled_bytes();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);
    const LATER: Duration = Duration::from_secs(60);

    fn engine(config: Config) -> Engine {
        let mut engine = Engine::new(config, [1; 32]);
        engine.set_target(NOW, Some(MadAddress::gsi(7, 0, 0)));
        engine
    }

    fn submit(engine: &mut Engine, deadline: Duration) -> QueryId {
        let request = Request::get(&Query::<PathRecord>::new().dlid(1)).expect("fits");
        engine.submit(NOW, request, deadline).expect("room")
    }

    #[test]
    fn queries_that_end_before_their_turn_leave_nothing_behind() {
        let mut engine = engine(Config {
            in_flight_max: 1,
            ..Config::default()
        });
        let first = submit(&mut engine, LATER);
        for _ in 0..1000 {
            let id = submit(&mut engine, LATER);
            engine.cancel(NOW, id);
            submit(&mut engine, NOW + Duration::from_millis(1));
        }
        assert_eq!((engine.len(), engine.waiting.len()), (1001, 1000));
        engine.handle_timeout(NOW + Duration::from_millis(1));
        assert_eq!((engine.len(), engine.waiting.len()), (1, 0));
        let next = submit(&mut engine, LATER);
        engine.cancel(NOW, first);
        let started = engine.by_tid.values().collect::<Vec<_>>();
        assert_eq!((started, engine.waiting.len()), (vec![&next], 0));
    }

    #[test]
    fn zero_and_infinite_attempt_times_neither_spin_nor_overflow() {
        for each in [Duration::ZERO, Duration::MAX] {
            let mut engine = engine(Config {
                try_first: each,
                try_max: each,
                busy_pause_first: each,
                busy_pause_max: each,
                ..Config::default()
            });
            submit(&mut engine, LATER);
            engine.handle_timeout(NOW);
            assert!(engine.poll_timeout().is_some_and(|due| due > NOW));
            assert!(engine.poll_transmit().is_some() && engine.poll_transmit().is_none());
            engine.handle_timeout(LATER);
            let outcome = engine.poll_outcome();
            assert!(matches!(outcome, Some((_, Err(Failure::TimedOut { .. })))));
        }
    }
}

//! Multiplexes the queries of many callers onto one engine. A pure state machine, like the engine.
//!
//! Identical queries share one request, cached answers need none, and each caller has its own
//! deadline.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use portolan_timers::Timers;
use portolan_wire::Gid;
use portolan_wire::mad::Method;
use portolan_wire::sa::{AttributeId, PathRecord};

use crate::cache::{Cache, CacheConfig};
use crate::engine::{Answer, Config, Engine, Failure, QueryId, Request};
use crate::port::{LinkLayer, Port, PortState};
use crate::transport::MadAddress;

/// The default partition, in which every port may reach the administrator.
const DEFAULT_PARTITION: u16 = 0x7FFF;

/// Maximum number of waiting callers; many may share one query.
const TICKETS_MAX: usize = 65_536;

/// A caller's query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(u64);

/// The outcome of a caller's query.
pub(crate) type Outcome = Result<Arc<Answer>, Failure>;

#[derive(Debug)]
pub(crate) struct QueryCoalescer {
    pub(crate) engine: Engine,
    cache: Cache,
    port: Option<Port>,
    /// Incremented whenever earlier queries' answers become stale.
    generation: u64,
    next: u64,
    tickets: BTreeMap<Ticket, Waiting>,
    asked: BTreeMap<QueryId, Asked>,
    shared: HashMap<Request, QueryId>,
    timers: Timers<Ticket>,
    outcomes: VecDeque<(Ticket, Outcome)>,
}

#[derive(Debug)]
struct Waiting {
    query: QueryId,
    since: Duration,
    deadline: Duration,
    armed: Option<Duration>,
}

#[derive(Debug)]
struct Asked {
    request: Request,
    /// Tickets in order of arrival.
    tickets: BTreeSet<Ticket>,
    generation: u64,
    deadline: Duration,
}

impl QueryCoalescer {
    pub(crate) fn new(config: Config, cache: CacheConfig, seed: [u8; 32]) -> Self {
        Self {
            engine: Engine::new(config, seed),
            cache: Cache::new(cache),
            port: None,
            generation: 0,
            next: 0,
            tickets: BTreeMap::new(),
            asked: BTreeMap::new(),
            shared: HashMap::new(),
            timers: Timers::new(),
            outcomes: VecDeque::new(),
        }
    }

    /// Sets the port's attributes; returns whether they changed.
    pub(crate) fn set_port(&mut self, now: Duration, port: Port) -> bool {
        if self.port.as_ref() == Some(&port) {
            return false;
        }
        self.engine.set_target(now, administrator(&port));
        self.port = Some(port);
        self.forget_answers();
        true
    }

    pub(crate) fn port(&self) -> Option<&Port> {
        self.port.as_ref()
    }

    /// Drops all cached answers, because the subnet may have changed.
    pub(crate) fn forget_answers(&mut self) {
        self.cache.clear();
        self.shared.clear();
        self.generation += 1;
    }

    /// Submits a query. The outcome comes by [`poll_outcome`](Self::poll_outcome), even if it is
    /// known at once.
    pub(crate) fn ask(&mut self, now: Duration, request: Request, deadline: Duration) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        let may_share = may_share(&request);
        if may_share && let Some(kept) = self.cache.find(now, &request) {
            self.outcomes
                .push_back((ticket, kept.map_err(Failure::Status)));
            return ticket;
        }
        if self.tickets.len() >= TICKETS_MAX {
            let failure = Failure::LimitReached {
                what: "waiting callers",
                limit: TICKETS_MAX as u64,
            };
            self.outcomes.push_back((ticket, Err(failure)));
            return ticket;
        }
        let shared = self.shared.get(&request).copied().filter(|_| may_share);
        let query = match shared {
            Some(query) => Ok(query),
            None => self.engine.submit(now, request.clone(), deadline),
        };
        let query = match query {
            Ok(query) => query,
            Err(failure) => {
                self.outcomes.push_back((ticket, Err(failure)));
                return ticket;
            }
        };
        if may_share {
            self.shared.insert(request.clone(), query);
        }
        let asked = self.asked.entry(query).or_insert_with(|| Asked {
            request,
            tickets: BTreeSet::new(),
            generation: self.generation,
            deadline,
        });
        asked.tickets.insert(ticket);
        if asked.deadline < deadline {
            asked.deadline = deadline;
            self.engine.set_deadline(query, deadline);
        }
        let mut waiting = Waiting {
            query,
            since: now,
            deadline,
            armed: None,
        };
        self.timers.set(ticket, &mut waiting.armed, Some(deadline));
        self.tickets.insert(ticket, waiting);
        ticket
    }

    /// Cancels a query: it has no outcome, unless the outcome has arrived.
    pub(crate) fn cancel(&mut self, now: Duration, ticket: Ticket) {
        let Some(query) = self.leave(ticket) else {
            return;
        };
        if self
            .asked
            .get(&query)
            .is_some_and(|asked| asked.tickets.is_empty())
        {
            self.forget_query(query);
            self.engine.cancel(now, query);
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let engine = self.engine.poll_timeout();
        engine.into_iter().chain(self.timers.next()).min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Duration) {
        self.engine.handle_timeout(now);
        // Take the engine's own timeouts first: their failures carry more detail.
        self.take_outcomes(now);
        while let Some(ticket) = self.timers.pop_due(now) {
            let Some(waiting) = self.tickets.get_mut(&ticket) else {
                continue;
            };
            waiting.armed = None;
            let after = waiting.deadline.saturating_sub(waiting.since);
            let failure = self.engine.timed_out(waiting.query, after);
            self.cancel(now, ticket);
            self.outcomes.push_back((ticket, Err(failure)));
        }
    }

    pub(crate) fn poll_outcome(&mut self, now: Duration) -> Option<(Ticket, Outcome)> {
        self.take_outcomes(now);
        self.outcomes.pop_front()
    }

    /// Returns whether answers are pending.
    pub(crate) fn is_busy(&self) -> bool {
        !self.engine.is_empty()
    }

    fn take_outcomes(&mut self, now: Duration) {
        while let Some((query, outcome)) = self.engine.poll_outcome() {
            let Some(asked) = self.forget_query(query) else {
                continue;
            };
            let outcome = outcome.and_then(|answer| checked(&asked.request, answer));
            let outcome = outcome.map(Arc::new);
            if may_share(&asked.request) && asked.generation == self.generation {
                match &outcome {
                    Ok(answer) => self.cache.keep(now, asked.request, Ok(answer.clone())),
                    Err(failure @ Failure::Status(status)) if failure.says_none() => {
                        self.cache.keep(now, asked.request, Err(*status));
                    }
                    Err(_) => {}
                }
            }
            for ticket in asked.tickets {
                if let Some(mut waiting) = self.tickets.remove(&ticket) {
                    self.timers.set(ticket, &mut waiting.armed, None);
                    self.outcomes.push_back((ticket, outcome.clone()));
                }
            }
        }
    }

    fn forget_query(&mut self, query: QueryId) -> Option<Asked> {
        let asked = self.asked.remove(&query)?;
        if self.shared.get(&asked.request) == Some(&query) {
            self.shared.remove(&asked.request);
        }
        Some(asked)
    }

    fn leave(&mut self, ticket: Ticket) -> Option<QueryId> {
        let mut waiting = self.tickets.remove(&ticket)?;
        self.timers.set(ticket, &mut waiting.armed, None);
        let asked = self.asked.get_mut(&waiting.query)?;
        asked.tickets.remove(&ticket);
        Some(waiting.query)
    }
}

/// Returns whether callers may share an answer. Paths change only with the subnet. Services and
/// groups change at any time, so each query for them is sent.
fn may_share(request: &Request) -> bool {
    request.attribute() == AttributeId::PATH_RECORD
        && matches!(request.method(), Method::GET | Method::GET_TABLE)
}

/// Checks that a path connects the requested ports.
fn checked(request: &Request, answer: Answer) -> Result<Answer, Failure> {
    let Some(asked) = request.path() else {
        return Ok(answer);
    };
    let fits = |asked: Option<Gid>, found| asked.is_none_or(|asked| asked.is_answered_by(found));
    let is_between = |path: &PathRecord| fits(asked.sgid, path.sgid) && fits(asked.dgid, path.dgid);
    match answer.records().iter().all(is_between) {
        true => Ok(answer),
        false => Err(Failure::Malformed("a path to or from another GID")),
    }
}

/// The address of this subnet's administrator, which is at the subnet manager (IBTA 13.5.3.1).
fn administrator(port: &Port) -> Option<MadAddress> {
    let is_up = port.link_layer == LinkLayer::InfiniBand
        && port.state >= PortState::Active
        && port.lid != 0
        && port.sm_lid != 0;
    let pkey_index = port.pkey_index(DEFAULT_PARTITION).unwrap_or(0);
    is_up.then(|| MadAddress::gsi(port.sm_lid, port.sm_sl, pkey_index))
}

#[cfg(test)]
mod tests {
    use portolan_wire::PKey;
    use portolan_wire::mad::MadHeaderRepr;
    use portolan_wire::sa::{PathRecord, Query, SaHeader, SaPacket, ServiceRecord, Status};

    use super::*;

    const NOW: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(60);

    fn port() -> Port {
        Port {
            device: "ib0".into(),
            port_num: 1,
            link_layer: LinkLayer::InfiniBand,
            state: PortState::Active,
            lid: 3,
            lmc: 0,
            sm_lid: 7,
            sm_sl: 0,
            gids: vec![Gid([1; 16])],
            pkeys: vec![PKey::DEFAULT],
        }
    }

    fn coalescer() -> QueryCoalescer {
        let mut queries = QueryCoalescer::new(Config::default(), CacheConfig::default(), [1; 32]);
        queries.set_port(NOW, port());
        queries
    }

    fn path(lid: u16) -> Request {
        Request::get(&Query::<PathRecord>::new().dlid(lid)).expect("fits")
    }

    /// Answers all pending queries with `status`; returns their number.
    fn answer_all(queries: &mut QueryCoalescer, now: Duration, status: u16) -> usize {
        answer_with(queries, now, status, None)
    }

    /// Answers all pending queries with this path; returns their number.
    fn answer_with(
        queries: &mut QueryCoalescer,
        now: Duration,
        status: u16,
        path: Option<&PathRecord>,
    ) -> usize {
        let mut count = 0;
        while let Some(sent) = queries.engine.poll_transmit() {
            let packet = SaPacket::new_checked(sent.mad.as_slice()).expect("right");
            let mad = MadHeaderRepr {
                method: Method(packet.mad().method.0 | 0x80),
                status,
                ..*packet.mad()
            };
            let sa: SaHeader = *packet.sa();
            let mut data = *packet.data();
            if let Some(path) = path {
                path.emit(&mut data).expect("fits");
            }
            let answer = SaPacket::emit(&mad, &sa, &data).expect("fits");
            queries.engine.handle_mad(now, &sent.to, &answer);
            count += 1;
        }
        count
    }

    fn outcomes(queries: &mut QueryCoalescer, now: Duration) -> Vec<(Ticket, Outcome)> {
        std::iter::from_fn(|| queries.poll_outcome(now)).collect()
    }

    #[test]
    fn the_same_path_is_queried_once_and_then_cached_for_its_time() {
        let mut queries = coalescer();
        let tickets: Vec<_> = (0..5)
            .map(|_| queries.ask(NOW, path(1), NOW + LONG))
            .collect();
        assert_eq!(answer_all(&mut queries, NOW, 0), 1);
        let over = outcomes(&mut queries, NOW);
        assert_eq!(
            over.iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>(),
            tickets
        );
        assert!(over.iter().all(|(_, outcome)| outcome.is_ok()));
        queries.ask(NOW, path(1), NOW + LONG);
        assert_eq!(outcomes(&mut queries, NOW).len(), 1, "known");
        let later = NOW + CacheConfig::default().found_for;
        queries.ask(later, path(1), later + LONG);
        assert_eq!(answer_all(&mut queries, later, 0), 1, "asked again");
        assert_eq!(outcomes(&mut queries, later).len(), 1);
        assert_eq!(queries.poll_timeout(), None);
    }

    #[test]
    fn callers_that_share_a_query_have_their_own_deadlines() {
        let mut queries = coalescer();
        let short = queries.ask(NOW, path(1), NOW + Duration::from_secs(1));
        let long = queries.ask(NOW, path(1), NOW + LONG);
        let due = NOW + Duration::from_secs(1);
        queries.handle_timeout(due);
        let over = outcomes(&mut queries, due);
        let [(ticket, Err(Failure::TimedOut { after, tries, .. }))] = &over[..] else {
            panic!("{over:?}");
        };
        assert_eq!(
            (*ticket, *after, *tries),
            (short, Duration::from_secs(1), 2)
        );
        assert!(answer_all(&mut queries, due, 0) > 0);
        let over = outcomes(&mut queries, due);
        assert!(matches!(&over[..], [(ticket, Ok(_))] if *ticket == long));
    }

    #[test]
    fn callers_are_bounded_even_if_all_share_a_query() {
        let mut queries = coalescer();
        for _ in 0..TICKETS_MAX {
            queries.ask(NOW, path(1), NOW + LONG);
        }
        let one_more = queries.ask(NOW, path(1), NOW + LONG);
        let over = outcomes(&mut queries, NOW);
        let [(ticket, Err(failure))] = &over[..] else {
            panic!("{over:?}");
        };
        assert_eq!((*ticket, failure.errno()), (one_more, 12));
        assert_eq!(answer_all(&mut queries, NOW, 0), 1);
        assert_eq!(outcomes(&mut queries, NOW).len(), TICKETS_MAX);
    }

    #[test]
    fn a_caller_that_leaves_does_not_cancel_a_shared_query() {
        let mut queries = coalescer();
        let first = queries.ask(NOW, path(1), NOW + LONG);
        let second = queries.ask(NOW, path(1), NOW + LONG);
        queries.cancel(NOW, first);
        assert!(queries.is_busy());
        queries.cancel(NOW, second);
        assert!(!queries.is_busy());
        assert_eq!(
            (queries.poll_timeout(), outcomes(&mut queries, NOW).len()),
            (None, 0)
        );
    }

    #[test]
    fn a_missing_path_is_cached_for_a_moment_and_other_errors_are_not() {
        let mut queries = coalescer();
        for (status, asked_again) in [(Status::NO_RECORDS.0, 0), (0x0500, 0), (0x0100, 1)] {
            queries.forget_answers();
            for expected in [1, asked_again] {
                queries.ask(NOW, path(1), NOW + LONG);
                assert_eq!(
                    answer_all(&mut queries, NOW, status),
                    expected,
                    "{status:#x}"
                );
                let over = outcomes(&mut queries, NOW);
                let failure = Failure::Status(Status(status));
                assert!(matches!(&over[..], [(_, Err(found))] if *found == failure));
            }
        }
    }

    #[test]
    fn changes_of_the_subnet_clear_the_cache() {
        type Change = fn(&mut Port);
        let changes: [Change; 5] = [
            |port| port.lid = 4,
            |port| port.sm_lid = 8,
            |port| port.state = PortState::Init,
            |port| port.gids = vec![Gid([2; 16])],
            |port| port.pkeys.push(PKey(0x8001)),
        ];
        for change in changes {
            let mut queries = coalescer();
            queries.ask(NOW, path(1), NOW + LONG);
            answer_all(&mut queries, NOW, 0);
            outcomes(&mut queries, NOW);
            // Queries sent before the change and answered after it: the caller gets the answer, the
            // cache does not.
            queries.ask(NOW, path(2), NOW + LONG);
            let mut changed = port();
            change(&mut changed);
            assert!(queries.set_port(NOW, changed.clone()));
            assert!(!queries.set_port(NOW, changed), "nothing new");
            queries.set_port(NOW, port());
            answer_all(&mut queries, NOW, 0);
            outcomes(&mut queries, NOW);
            for lid in [1, 2] {
                queries.ask(NOW, path(lid), NOW + LONG);
                assert_eq!(answer_all(&mut queries, NOW, 0), 1, "asked again");
                outcomes(&mut queries, NOW);
            }
        }
    }

    #[test]
    fn a_path_between_other_ports_is_an_error_and_not_cached() {
        let own = Gid([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9]);
        let of_subnet = Gid([0xFE, 0xC0, 0, 0, 0, 0, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9]);
        let other = Gid([7; 16]);
        let query = Query::<PathRecord>::new();
        for (query, answered, is_right) in [
            (query.dgid(own), (own, other), false),
            (query.sgid(own), (other, own), false),
            (query.dgid(other).sgid(own), (other, own), false),
            (query.dgid(own).sgid(other), (other, own), true),
            (query.dgid(own), (other, of_subnet), true),
            (query.dgid(of_subnet), (other, own), false),
            (query.dlid(1), (other, own), true),
        ] {
            let mut queries = coalescer();
            let request = Request::get(&query).expect("fits");
            for asked_again in [true, !is_right] {
                queries.ask(NOW, request.clone(), NOW + LONG);
                let (sgid, dgid) = answered;
                let path = PathRecord {
                    sgid,
                    dgid,
                    ..PathRecord::default()
                };
                let count = answer_with(&mut queries, NOW, 0, Some(&path));
                assert_eq!(count, usize::from(asked_again), "{query:?}");
                let over = outcomes(&mut queries, NOW);
                match (is_right, &over[..]) {
                    (true, [(_, Ok(answer))]) => assert_eq!(answer.records::<PathRecord>(), [path]),
                    (false, [(_, Err(Failure::Malformed(_)))]) => {}
                    _ => panic!("{query:?}: {over:?}"),
                }
            }
        }
    }

    #[test]
    fn services_are_queried_each_time() {
        let mut queries = coalescer();
        let request = Request::get(&Query::<ServiceRecord>::new()).expect("fits");
        for _ in 0..2 {
            queries.ask(NOW, request.clone(), NOW + LONG);
            assert_eq!(answer_all(&mut queries, NOW, 0), 1);
        }
    }

    #[test]
    fn a_port_without_a_manager_or_that_is_down_cannot_query() {
        let mut queries = coalescer();
        for state in [PortState::Down, PortState::Init, PortState::Armed] {
            queries.set_port(NOW, Port { state, ..port() });
            queries.ask(NOW, path(1), NOW + LONG);
            let over = outcomes(&mut queries, NOW);
            assert!(matches!(&over[..], [(_, Err(Failure::NoAdministrator))]));
        }
        assert_eq!(
            administrator(&Port {
                sm_lid: 0,
                ..port()
            }),
            None
        );
        let link_layer = LinkLayer::Ethernet;
        assert_eq!(
            administrator(&Port {
                link_layer,
                ..port()
            }),
            None
        );
        assert_eq!(administrator(&port()), Some(MadAddress::gsi(7, 0, 0)));
    }
}

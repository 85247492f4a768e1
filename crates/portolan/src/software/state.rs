//! The provider's state under the engine's lock: the engine, the queues of its ids, and its outputs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_addrinfo::neighbour::Watch;
use portolan_cm::{Cm, GroupQuery, Query, State, Transmit};
use portolan_provider::cm::{
    CmEvent, Ece, EventParam, EventType, IdNumber, MembershipNumber, Service, UserId,
};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::Qpn;

use super::claim::ClaimId;
use super::queue::{EventQueue, Held};

/// Everything that the engine's lock protects.
#[derive(Debug)]
pub(super) struct ProviderState {
    pub(super) cm: Cm,
    ids: HashMap<IdNumber, IdEntry>,
    /// Ids that have accepted, by the queue pair that they named.
    accepted: HashMap<Qpn, IdNumber>,
    listeners: BTreeSet<IdNumber>,
    /// The time until which the progress thread sleeps, since the epoch.
    pub(super) sleeps_until: Option<Duration>,
}

/// The provider's state of an id.
#[derive(Debug)]
pub(super) struct IdEntry {
    pub(super) uid: UserId,
    /// Created by a request that is not accepted yet. `uid` is undefined.
    pub(super) awaits_answer: bool,
    pub(super) service: Service,
    pub(super) queue: Arc<EventQueue>,
    pub(super) claim: Option<(ClaimId, SocketAddr)>,
    /// Events taken by the user (`events_reported` of the kernel's ABI).
    pub(super) reported: u32,
    /// The request that created it, which is in `queue` or was taken.
    request: Option<Request>,
    /// The queue pair that it accepted with.
    accepted: Option<Qpn>,
    /// Number of events written by the user and not taken yet.
    pub(super) written: u32,
    /// Its memberships in groups.
    pub(super) members: BTreeMap<MembershipNumber, Member>,
    /// Reports changes of its next hop.
    pub(super) watch: Option<Arc<Watch>>,
    /// For each kind of hint, whether one is queued.
    hints_waiting: [bool; HINTS.len()],
}

/// A request that a listener got.
#[derive(Clone, Copy, Debug)]
struct Request {
    listener: IdNumber,
    /// Its ticket in the queue.
    ticket: u64,
}

/// Events that can recur. At most one of each kind is queued.
const HINTS: [EventType; 2] = [EventType::AddrChange, EventType::Unreachable];

/// The provider's state of a membership.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub(super) uid: UserId,
    /// Events of it taken by the user. They do not count among the id's.
    pub(super) reported: u32,
}

/// The engine's outputs, to be executed after its lock is released.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    pub(super) transmits: Vec<Transmit>,
    pub(super) queries: Vec<Query>,
    pub(super) groups: Vec<GroupQuery>,
    /// Events that may have to wait for completions.
    pub(super) held: Vec<Held>,
    /// A timeout is due before the progress thread wakes.
    pub(super) wakes: bool,
}

impl ProviderState {
    pub(super) fn new(cm: Cm) -> Self {
        Self {
            cm,
            ids: HashMap::new(),
            accepted: HashMap::new(),
            listeners: BTreeSet::new(),
            sleeps_until: None,
        }
    }

    /// Whether the progress thread sleeps beyond `due`.
    pub(super) fn is_due_in_sleep(&self, due: Duration) -> bool {
        self.sleeps_until.is_none_or(|until| due < until)
    }

    /// Takes the engine's outputs. Events go to their channels at once, so that they stay in order.
    pub(super) fn drain(&mut self) -> Outputs {
        let mut outputs = Outputs::default();
        while let Some(event) = self.cm.poll_event() {
            outputs.held.extend(self.dispatch(event));
        }
        while let Some(child) = self.cm.poll_displaced() {
            self.forget_displaced(child);
        }
        while let Some(transmit) = self.cm.poll_transmit() {
            outputs.transmits.push(transmit);
        }
        while let Some(query) = self.cm.poll_query() {
            outputs.queries.push(query);
        }
        while let Some(query) = self.cm.poll_group_query() {
            outputs.groups.push(query);
        }
        outputs
    }

    /// Passes an event to its channel. Returns one that the channel holds.
    fn dispatch(&mut self, event: CmEvent) -> Option<Held> {
        if event.event == EventType::ConnectRequest {
            let id = event.id;
            let listener = self.cm.listener_of(id)?;
            let entry = self.ids.get(&listener)?;
            let (queue, service) = (entry.queue.clone(), entry.service);
            let ticket = queue.push(event);
            let mut child = IdEntry::new(UserId(0), service, queue);
            child.awaits_answer = true;
            child.request = Some(Request { listener, ticket });
            self.insert(id, child);
        } else if let Some(entry) = self.ids.get_mut(&event.id) {
            if !is_of_group(event.event) {
                entry.uid = event.uid;
            }
            // Not a hint, but the end of a handshake: no hint of this type comes to a closed id.
            let is_closed = self.cm.state(event.id) == Ok(State::Closed);
            let is_last = event.event == EventType::Unreachable && is_closed;
            let waits = entry.hint_waiting(event.event).filter(|_| !is_last);
            if waits.is_some_and(|waits| std::mem::replace(waits, true)) {
                return None;
            }
            let is_end = event.event == EventType::Disconnected;
            if let Some(qpn) = self.cm.ended_by_peer(event.id).filter(|_| is_end) {
                let held = Held::new(event.id, qpn, &entry.queue);
                entry.queue.hold(event);
                return Some(held);
            }
            entry.queue.push(event);
        }
        None
    }

    /// The listener that got the request which created an id.
    pub(super) fn listener_of(&self, id: IdNumber) -> Option<IdNumber> {
        Some(self.ids.get(&id)?.request?.listener)
    }

    /// Stores the new ticket of the request that created an id.
    pub(super) fn note_ticket(&mut self, id: IdNumber, ticket: u64) {
        let entry = self.ids.get_mut(&id);
        if let Some(request) = entry.and_then(|entry| entry.request.as_mut()) {
            request.ticket = ticket;
        }
    }

    /// Whether an event goes to the queue of an id: one of its own, or a request to it.
    pub(super) fn belongs_to(&self, event: &CmEvent, id: IdNumber) -> bool {
        match event.event {
            EventType::ConnectRequest => self.listener_of(event.id) == Some(id),
            _ => event.id == id,
        }
    }

    /// Returns whether the id did not listen before.
    pub(super) fn add_listener(&mut self, id: IdNumber) -> bool {
        self.listeners.insert(id)
    }

    pub(super) fn remove_listener(&mut self, id: IdNumber) {
        self.listeners.remove(&id);
    }

    /// Removes a child that a newer request displaced, and its request.
    fn forget_displaced(&mut self, child: IdNumber) {
        if let Some(entry) = self.remove(child)
            && let Some(request) = entry.request
        {
            entry.queue.take_back(request.ticket);
        }
    }

    /// Queues an event with only a status for the listener on the port of a claim. Scans all listeners.
    pub(super) fn tell_listener(&mut self, claim: ClaimId, event: EventType, status: i32) {
        let is_its = |entry: &IdEntry| entry.claim.is_some_and(|(held, _)| held == claim);
        let mut listeners = self.listeners.iter();
        let found = listeners.find(|id| self.ids.get(id).is_some_and(is_its));
        if let Some((&id, entry)) = found.and_then(|id| self.ids.get_key_value(id)) {
            entry.queue.push(CmEvent {
                uid: entry.uid,
                id,
                event,
                status,
                param: EventParam::None,
                ece: Ece::default(),
            });
        }
    }

    pub(super) fn insert(&mut self, id: IdNumber, entry: IdEntry) {
        entry.queue.enroll(id);
        self.ids.insert(id, entry);
    }

    pub(super) fn remove(&mut self, id: IdNumber) -> Option<IdEntry> {
        let entry = self.ids.remove(&id)?;
        entry.queue.remove(id);
        if let Some(qp) = entry.accepted
            && self.accepted.get(&qp) == Some(&id)
        {
            self.accepted.remove(&qp);
        }
        self.remove_listener(id);
        Some(entry)
    }

    /// Stores the number and the queue pair that an id accepted with.
    pub(super) fn note_accepted(&mut self, id: IdNumber, uid: UserId, qp: Qpn) {
        if let Some(entry) = self.ids.get_mut(&id) {
            (entry.uid, entry.awaits_answer) = (uid, false);
            entry.accepted = Some(qp);
            self.accepted.insert(qp, id);
        }
    }

    /// The id that accepted with a queue pair.
    pub(super) fn accepted_with(&self, qp: Qpn) -> Option<IdNumber> {
        self.accepted.get(&qp).copied()
    }

    /// Redirects the events of an id to another queue.
    pub(super) fn redirect(&mut self, id: IdNumber, to: &Arc<EventQueue>) {
        if let Some(entry) = self.ids.get_mut(&id) {
            entry.queue.remove(id);
            to.enroll(id);
            entry.queue = to.clone();
        }
    }

    pub(super) fn entry(&self, id: IdNumber, step: Step) -> Result<&IdEntry> {
        self.ids
            .get(&id)
            .ok_or(Error::new(step, Cause::NoSuchObject("the id")))
    }

    pub(super) fn entry_mut(&mut self, id: IdNumber, step: Step) -> Result<&mut IdEntry> {
        self.ids
            .get_mut(&id)
            .ok_or(Error::new(step, Cause::NoSuchObject("the id")))
    }
}

impl IdEntry {
    pub(super) fn new(uid: UserId, service: Service, queue: Arc<EventQueue>) -> Self {
        Self {
            uid,
            awaits_answer: false,
            service,
            queue,
            claim: None,
            reported: 0,
            request: None,
            accepted: None,
            written: 0,
            members: BTreeMap::new(),
            watch: None,
            hints_waiting: Default::default(),
        }
    }

    /// Checks that the id has an owner, which receives the events written to it.
    pub(super) fn check_owned(&self) -> Result<()> {
        if !self.awaits_answer {
            return Ok(());
        }
        let (expected, found) = ("an id of one's own", "one whose request is not accepted");
        Err(Error::new(
            Step::Event,
            Cause::InvalidState { expected, found },
        ))
    }

    /// Whether a hint of this type is queued; `None` for other events.
    pub(super) fn hint_waiting(&mut self, event: EventType) -> Option<&mut bool> {
        let kind = HINTS.iter().position(|hint| *hint == event)?;
        self.hints_waiting.get_mut(kind)
    }

    /// The membership that an event with this number belongs to.
    pub(super) fn member_named(&mut self, uid: UserId) -> Option<&mut Member> {
        self.members.values_mut().find(|member| member.uid == uid)
    }
}

/// Whether events of this type have the number of a membership instead of the id's.
pub(super) fn is_of_group(event: EventType) -> bool {
    matches!(event, EventType::MulticastJoin | EventType::MulticastError)
}

#[cfg(test)]
mod tests {
    use portolan_provider::error::errno::ETIMEDOUT;
    use portolan_provider::traits::Provider;
    use portolan_provider::verbs::QpType;
    use portolan_wire::addr::PortSpace;
    use portolan_wire::cm::SidrStatus;

    use super::super::own_group;
    use super::*;

    /// Longer than it takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_datagram_id_hears_that_it_was_refused_although_a_hint_waits() {
        let provider = own_group::provider();
        let channel = provider.open_channel().unwrap();
        let next = || channel.wait_event(Some(PATIENCE)).unwrap();
        let service = Service {
            port_space: PortSpace::Udp,
            qp_type: QpType::Ud,
        };
        let id = channel.create_id(UserId(1), service).unwrap();
        let nobody = "127.0.0.1:9".parse().unwrap();
        channel.resolve_addr(id, None, nobody, PATIENCE).unwrap();
        assert_eq!(next().event, EventType::AddrResolved);
        channel.resolve_route(id, PATIENCE).unwrap();
        assert_eq!(next().event, EventType::RouteResolved);
        let hint = || CmEvent {
            uid: UserId(1),
            id,
            event: EventType::Unreachable,
            status: -ETIMEDOUT,
            param: EventParam::None,
            ece: Ece::default(),
        };
        for _ in 0..2 {
            // As if its neighbour had another hardware address.
            assert!(provider.core.state().dispatch(hint()).is_none());
        }
        let param = Default::default();
        channel.connect(id, &param, Ece::default()).unwrap();
        let deadline = crate::deadline::after(PATIENCE);
        while provider.core.state().cm.state(id) != Ok(State::Closed) {
            assert!(!crate::deadline::left(deadline).is_zero(), "no answer");
            std::thread::sleep(Duration::from_millis(1));
        }
        let told = [next(), next()].map(|event| (event.event, event.status));
        let unsupported = SidrStatus::UNSUPPORTED.0.into();
        let unreachable = EventType::Unreachable;
        assert_eq!(
            told,
            [(unreachable, -ETIMEDOUT), (unreachable, unsupported)]
        );
        assert!(channel.take_event().is_err(), "one hint is queued once");
    }
}

//! The coordinator's view of its members: their connections and blocks, and what a new coordinator still waits for.
//! Pure: connections are numbers, the time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::block::{Block, BlockSet};
use super::config::{
    HELLO_TIMEOUT, OBSERVER_TIMEOUT, OBSERVERS_MAX, REPLAY_GRACE, RETIRE_INTERVAL, RETURN_TIME_MAX,
    STRANGERS_MAX,
};
use super::message::{Refusal, VERSION};
use super::requests::RequestId;
use super::trust::{Credentials, Own, Trust};

/// Number of a connection to the coordinator; never reused in one process.
pub(super) type ConnectionId = u64;

/// Minimum time that a coordinator asks a process to wait.
const LATER_MIN: Duration = Duration::from_millis(5);

/// The coordinator's members.
#[derive(Debug)]
pub(super) struct Registry {
    own: Block,
    own_user: Own,
    connections: BTreeMap<ConnectionId, Peer>,
    blocks: BTreeMap<Block, ConnectionId>,
    strangers: usize,
    observers: usize,
    /// Blocks whose members have not registered again yet.
    missing: BTreeSet<Block>,
    since: Instant,
    /// Blocks that members left, or whose members have not reconnected to this new coordinator. The block's name shows
    /// whether the process is alive; the last look at it is kept.
    retiring: BTreeMap<Block, Option<Look>>,
    retire_at: Instant,
    /// Blocks of dead processes that were not reassigned since.
    dead: BlockSet,
    /// The block assigned last. The search continues after it, so that a released block is reused last and packets in
    /// flight to it are dropped.
    last_given: Block,
}

/// A look at a block's name.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    was_free: bool,
}

/// What is known of the process of a block without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// It is dead, or there never was one.
    Dead,
    /// It lives, or may return.
    Alive,
    /// Only the block's name shows it. Pass the answer to [`Registry::looked`].
    Unknown,
}

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug)]
struct Peer {
    credentials: Credentials,
    state: PeerState,
    /// The last of the requests that it was asked to repeat, until it has repeated that one.
    postponed: Option<RequestId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerState {
    /// Has not sent a hello.
    Stranger { until: Instant },
    /// Has a block.
    Member(Block),
    /// An observer.
    Observer { until: Instant },
}

impl PeerState {
    /// When its time ends, if it is limited.
    fn until(self) -> Option<Instant> {
        match self {
            Self::Stranger { until } | Self::Observer { until } => Some(until),
            Self::Member(_) => None,
        }
    }
}

/// How to answer a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// Assign a block: one of [`Registry::candidates`] whose name is free.
    Newcomer,
    /// It keeps its block.
    Returns(Block),
    /// Ask it to connect again later.
    Later(Duration),
    /// Refuse it.
    Refuse(Refusal),
    /// It already sent a hello.
    Violation,
}

/// How to answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Answer it.
    Answer(Block),
    /// Ask again later: not all members have registered again.
    Later(Duration),
    /// The sender has no block.
    Violation,
}

impl Registry {
    /// Creates the registry of a new coordinator. `alive` are the blocks that living processes hold; their members have
    /// [`REPLAY_GRACE`] to reconnect and register again. `dead` are blocks without a holder.
    pub(super) fn new(
        own: Block,
        own_user: Own,
        alive: BlockSet,
        dead: BlockSet,
        now: Instant,
    ) -> Self {
        Self {
            own,
            own_user,
            connections: BTreeMap::new(),
            blocks: BTreeMap::new(),
            strangers: 0,
            observers: 0,
            missing: alive.iter().collect(),
            since: now,
            retiring: alive
                .iter()
                .filter(|block| *block != own)
                .map(|block| (block, None))
                .collect(),
            retire_at: now,
            dead,
            last_given: own,
        }
    }

    /// A process connected.
    ///
    /// # Errors
    /// The refusal to send before closing the connection.
    pub(super) fn connected(
        &mut self,
        id: ConnectionId,
        credentials: Credentials,
        trust: &Trust,
        now: Instant,
    ) -> Result<(), Hello> {
        if !trust.admits(self.own_user, credentials.uid) {
            return Err(Hello::Refuse(Refusal::NotTrusted {
                uid: credentials.uid,
            }));
        }
        if self.strangers >= STRANGERS_MAX {
            return Err(Hello::Later(LATER_MIN));
        }
        let state = PeerState::Stranger {
            until: now + HELLO_TIMEOUT,
        };
        let peer = Peer {
            credentials,
            state,
            postponed: None,
        };
        self.connections.insert(id, peer);
        self.strangers += 1;
        Ok(())
    }

    /// Checks a hello.
    pub(super) fn hello(&self, id: ConnectionId, version: u8, rejoin: Option<Block>) -> Hello {
        if !matches!(self.state(id), Some(PeerState::Stranger { .. })) {
            return Hello::Violation;
        }
        if version != VERSION {
            return Hello::Refuse(Refusal::Version {
                coordinator: VERSION,
            });
        }
        match rejoin {
            None => Hello::Newcomer,
            Some(block) if block == self.own || block == Block::COORDINATOR => {
                Hello::Refuse(Refusal::BlockTaken { block })
            }
            // Its former connection may not be closed yet.
            Some(block) if self.blocks.contains_key(&block) => Hello::Later(LATER_MIN),
            Some(block) => Hello::Returns(block),
        }
    }

    /// A process wants to observe.
    ///
    /// # Errors
    /// The refusal to send before closing the connection.
    pub(super) fn observes(
        &mut self,
        id: ConnectionId,
        version: u8,
        now: Instant,
    ) -> Result<(), Hello> {
        if !matches!(self.state(id), Some(PeerState::Stranger { .. })) {
            return Err(Hello::Violation);
        }
        if version != VERSION {
            return Err(Hello::Refuse(Refusal::Version {
                coordinator: VERSION,
            }));
        }
        if self.observers >= OBSERVERS_MAX {
            return Err(Hello::Later(LATER_MIN));
        }
        if let Some(peer) = self.connections.get_mut(&id) {
            let until = now + OBSERVER_TIMEOUT;
            peer.state = PeerState::Observer { until };
            self.strangers -= 1;
            self.observers += 1;
        }
        Ok(())
    }

    /// Whether a connection is an observer's.
    pub(super) fn is_observer(&self, id: ConnectionId) -> bool {
        matches!(self.state(id), Some(PeerState::Observer { .. }))
    }

    /// Blocks without a known member. A block's name shows whether a living process holds it.
    pub(super) fn candidates(&self) -> impl Iterator<Item = Block> {
        let (before, after) = (Block::members(), Block::members());
        let last = self.last_given;
        let in_turn = after
            .filter(move |b| *b > last)
            .chain(before.filter(move |b| *b <= last));
        in_turn.filter(|b| *b != self.own && !self.blocks.contains_key(b))
    }

    /// A newcomer got a block.
    pub(super) fn give(&mut self, id: ConnectionId, block: Block) {
        self.admit(id, block);
        self.last_given = block;
    }

    /// Stores that a process has its block.
    pub(super) fn admit(&mut self, id: ConnectionId, block: Block) {
        if let Some(peer) = self.connections.get_mut(&id) {
            if matches!(peer.state, PeerState::Stranger { .. }) {
                self.strangers -= 1;
            }
            peer.state = PeerState::Member(block);
            self.blocks.insert(block, id);
            self.retiring.remove(&block);
            self.dead.remove(block);
        }
    }

    /// A connection closed; returns its block.
    pub(super) fn closed(&mut self, id: ConnectionId, now: Instant) -> Option<Block> {
        match self.connections.remove(&id)?.state {
            PeerState::Stranger { .. } => {
                self.strangers -= 1;
                None
            }
            PeerState::Observer { .. } => {
                self.observers -= 1;
                None
            }
            PeerState::Member(block) => {
                // If it has not registered again yet, it stays missing: it may live and connect once more.
                self.blocks.remove(&block);
                self.retiring.insert(block, None);
                self.retire_at = now;
                Some(block)
            }
        }
    }

    /// A member, or this process, has replayed all registrations.
    pub(super) fn replayed(&mut self, block: Block) {
        self.missing.remove(&block);
    }

    /// How long new requests must wait, if at all.
    pub(super) fn grace(&self, now: Instant) -> Option<Duration> {
        if self.missing.is_empty() {
            return None;
        }
        let left = (self.since + REPLAY_GRACE).saturating_duration_since(now);
        Some(left).filter(|left| !left.is_zero())
    }

    /// Whether a living process has not registered again yet. Then a service may have a listener that is not registered.
    pub(super) fn is_incomplete(&self, now: Instant) -> bool {
        !self.missing.is_empty() && now < self.since + RETURN_TIME_MAX
    }

    /// A member sent a request. A request may depend on earlier ones, so one that is new waits, too, while the member has
    /// not repeated those that were postponed. A member sends and repeats its requests in the order of their numbers. It may
    /// give some up.
    pub(super) fn asks(&mut self, id: ConnectionId, request: RequestId, now: Instant) -> Ask {
        let grace = self.grace(now);
        let Some(Peer {
            state: PeerState::Member(block),
            postponed,
            ..
        }) = self.connections.get_mut(&id)
        else {
            return Ask::Violation;
        };
        let is_behind = postponed.is_some_and(|last| request > last);
        if grace.is_some() || is_behind {
            *postponed = (*postponed).max(Some(request));
            // Not the whole time, because the grace period ends early when all have returned.
            return Ask::Later(grace.map_or(LATER_MIN, |left| left.min(LATER_MIN)));
        }
        if *postponed == Some(request) {
            *postponed = None;
        }
        Ask::Answer(*block)
    }

    /// The block of the member at the other end of a connection.
    pub(super) fn member(&self, id: ConnectionId) -> Option<Block> {
        match self.state(id)? {
            PeerState::Stranger { .. } | PeerState::Observer { .. } => None,
            PeerState::Member(block) => Some(block),
        }
    }

    /// The connection of a block's member.
    pub(super) fn connection(&self, block: Block) -> Option<ConnectionId> {
        self.blocks.get(&block).copied()
    }

    /// The connections of all members.
    pub(super) fn member_connections(&self) -> Vec<ConnectionId> {
        self.blocks.values().copied().collect()
    }

    /// Connections whose time to send a hello, or to observe, is over.
    pub(super) fn overdue(&self, now: Instant) -> Vec<ConnectionId> {
        if self.strangers + self.observers == 0 {
            return Vec::new();
        }
        let is_overdue = |peer: &Peer| peer.state.until().is_some_and(|until| until <= now);
        self.connections
            .iter()
            .filter(|(_, p)| is_overdue(p))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Blocks to retire now if their names are free. The others are returned again later.
    pub(super) fn take_retiring(&mut self, now: Instant) -> Vec<Block> {
        if self.retiring.is_empty() || now < self.retire_at {
            return Vec::new();
        }
        self.retire_at = now + RETIRE_INTERVAL;
        self.retiring.keys().copied().collect()
    }

    /// A block was retired: its process is dead and will not register anything.
    pub(super) fn retired(&mut self, block: Block) {
        self.retiring.remove(&block);
        self.missing.remove(&block);
        self.dead.insert(block);
    }

    /// Whether a member left the block or has not returned to it, and its process is not known to be dead.
    pub(super) fn is_departed(&self, block: Block) -> bool {
        self.retiring.contains_key(&block)
    }

    /// Whether a block's process may live. A check of a block's name is expensive, and any sender of a datagram selects the
    /// block. So this checks only the name of a departed block, at most once in [`RETIRE_INTERVAL`].
    pub(super) fn absent(&self, block: Block, now: Instant) -> Absent {
        if block == self.own || self.blocks.contains_key(&block) || self.grace(now).is_some() {
            return Absent::Alive;
        }
        match self.retiring.get(&block) {
            None => Absent::Dead,
            Some(Some(look)) if now < look.at + RETIRE_INTERVAL => match look.was_free {
                true => Absent::Dead,
                false => Absent::Alive,
            },
            Some(_) => Absent::Unknown,
        }
    }

    /// Notes whether a departed block's name was free.
    pub(super) fn looked(&mut self, block: Block, was_free: bool, now: Instant) {
        if let Some(look) = self.retiring.get_mut(&block) {
            *look = Some(Look { at: now, was_free });
        }
    }

    /// Blocks of dead processes that were not reassigned since.
    pub(super) fn dead(&self) -> BlockSet {
        self.dead
    }

    /// When to check again.
    pub(super) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let hello = (self.strangers + self.observers > 0).then(|| {
            let until = |peer: &Peer| peer.state.until();
            self.connections.values().filter_map(until).min()
        });
        let grace = self.grace(now).map(|left| now + left);
        let retire = (!self.retiring.is_empty()).then_some(self.retire_at);
        [hello.flatten(), grace, retire].into_iter().flatten().min()
    }

    /// Members by block.
    pub(super) fn members(&self) -> impl Iterator<Item = (Block, Credentials)> {
        self.blocks.iter().filter_map(|(block, id)| {
            self.connections
                .get(id)
                .map(|peer| (*block, peer.credentials))
        })
    }

    fn state(&self, id: ConnectionId) -> Option<PeerState> {
        self.connections.get(&id).map(|peer| peer.state)
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;

//! What the coordinator knows of its members: which are connected, which block each has, and what a new coordinator
//! still waits for. Pure: connections are numbers, the time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::block::{Block, BlockSet};
use super::config::{
    HELLO_TIMEOUT, OBSERVER_TIMEOUT, OBSERVERS_MAX, REPLAY_GRACE, RETIRE_INTERVAL, STRANGERS_MAX,
};
use super::message::{Refusal, VERSION};
use super::trust::{Credentials, Own, Trust};

/// A connection to the coordinator; never used twice in one process.
pub(super) type ConnectionId = u64;

/// Shortest time a coordinator asks somebody to wait.
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
    /// Blocks whose members have yet to register again.
    missing: BTreeSet<Block>,
    since: Instant,
    /// Blocks left by members, or of members that have yet to come back to this new coordinator: the name
    /// says whether the process lives.
    retiring: BTreeSet<Block>,
    retire_at: Instant,
    /// Blocks whose processes are dead, and that were not given away since.
    dead: BlockSet,
    /// The block given out last: the search continues from there, so that a block just left is the
    /// last to be used again, and packets still in flight to it are dropped.
    last_given: Block,
}

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug)]
struct Peer {
    credentials: Credentials,
    state: PeerState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerState {
    /// Has not said hello.
    Stranger { until: Instant },
    /// Has a block.
    Member(Block),
    /// Looks on.
    Observer { until: Instant },
}

impl PeerState {
    /// When its time is over, if it has only so much.
    fn until(self) -> Option<Instant> {
        match self {
            Self::Stranger { until } | Self::Observer { until } => Some(until),
            Self::Member(_) => None,
        }
    }
}

/// What to do about a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// Find it a block: one of [`Registry::candidates`] whose name is free.
    Newcomer,
    /// It has its block back.
    Returns(Block),
    /// Ask it to come again.
    Later(Duration),
    /// Refuse it.
    Refuse(Refusal),
    /// It has said hello before.
    Violation,
}

/// What to do about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Answer it.
    Answer(Block),
    /// Ask for it again: the others' registrations are not all known yet.
    Later(Duration),
    /// It comes from somebody without a block.
    Violation,
}

impl Registry {
    /// The registry of a new coordinator. `alive` are the blocks that living processes hold; their members
    /// have [`REPLAY_GRACE`] to come back and register again. `dead` are those that nobody holds any
    /// more.
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
            retiring: alive.iter().filter(|block| *block != own).collect(),
            retire_at: now,
            dead,
            last_given: own,
        }
    }

    /// A process connected.
    ///
    /// # Errors
    /// The answer to give before closing the connection.
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
        self.connections.insert(id, Peer { credentials, state });
        self.strangers += 1;
        Ok(())
    }

    /// A process said hello.
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
            // Its former connection may still have to be seen closing.
            Some(block) if self.blocks.contains_key(&block) => Hello::Later(LATER_MIN),
            Some(block) => Hello::Returns(block),
        }
    }

    /// A process wants to look on.
    ///
    /// # Errors
    /// The answer to give before closing the connection.
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

    /// Whether somebody at the other end of a connection looks on.
    pub(super) fn is_observer(&self, id: ConnectionId) -> bool {
        matches!(self.state(id), Some(PeerState::Observer { .. }))
    }

    /// Blocks that no member is known to have. Whether a living process holds one of them says its
    /// name.
    pub(super) fn candidates(&self) -> impl Iterator<Item = Block> {
        let (before, after) = (Block::members(), Block::members());
        let last = self.last_given;
        let in_turn = after
            .filter(move |b| *b > last)
            .chain(before.filter(move |b| *b <= last));
        in_turn.filter(|b| *b != self.own && !self.blocks.contains_key(b))
    }

    /// A newcomer has been given a block.
    pub(super) fn give(&mut self, id: ConnectionId, block: Block) {
        self.admit(id, block);
        self.last_given = block;
    }

    /// A process has its block.
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

    /// A connection is closed; the block it had.
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
                self.blocks.remove(&block);
                self.missing.remove(&block);
                self.retiring.insert(block);
                self.retire_at = now;
                Some(block)
            }
        }
    }

    /// A member, or this process, has registered everything again.
    pub(super) fn replayed(&mut self, block: Block) {
        self.missing.remove(&block);
    }

    /// How long new requests have to wait, if they have to.
    pub(super) fn grace(&self, now: Instant) -> Option<Duration> {
        if self.missing.is_empty() {
            return None;
        }
        let left = (self.since + REPLAY_GRACE).saturating_duration_since(now);
        Some(left).filter(|left| !left.is_zero())
    }

    /// A member asks something.
    pub(super) fn asks(&self, id: ConnectionId, now: Instant) -> Ask {
        match (self.member(id), self.grace(now)) {
            (None, _) => Ask::Violation,
            // Not the whole time: the grace ends early if all are back.
            (Some(_), Some(left)) => Ask::Later(left.min(LATER_MIN)),
            (Some(block), None) => Ask::Answer(block),
        }
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

    /// Connections that had their time, to say hello or to look on.
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

    /// Blocks to put out of use now, if their names are free. The rest stay to be asked for again.
    pub(super) fn take_retiring(&mut self, now: Instant) -> Vec<Block> {
        if self.retiring.is_empty() || now < self.retire_at {
            return Vec::new();
        }
        self.retire_at = now + RETIRE_INTERVAL;
        self.retiring.iter().copied().collect()
    }

    /// A block has been put out of use: its process is dead, and registers nothing any more.
    pub(super) fn retired(&mut self, block: Block) {
        self.retiring.remove(&block);
        self.missing.remove(&block);
        self.dead.insert(block);
    }

    /// Whether a block was left by a member, or is to be come back with, and its process is not known to
    /// be dead yet.
    pub(super) fn is_departed(&self, block: Block) -> bool {
        self.retiring.contains(&block)
    }

    /// The blocks of dead processes that were not given away since.
    pub(super) fn dead(&self) -> BlockSet {
        self.dead
    }

    /// When to look again.
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

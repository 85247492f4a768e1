//! Processes that share an address and its UDP port. One of them is the coordinator: it has the
//! port table and decides which process gets a management datagram.
//!
//! The decisions are made by the engines' own code: the port table, and communication ids and queue
//! pair numbers with their owner's block in the high byte. The transport (sockets, election,
//! connections to the coordinator) is modelled:
//!
//! - Members notice the coordinator's death at once. After a while a candidate succeeds it. The new
//!   coordinator answers no claim before every living member has registered.
//! - The coordinator notices each death after a while, and announces it to every living member.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use portolan_cm::ports::{BindOptions, BindingId, PortConfig, PortTable};
use portolan_wire::PortSpace;
use portolan_wire::cm::{CmMessage, RejectReason};

use super::packet::Datagram;
use super::rng::Rng;

/// Datagrams that the shared socket holds while there is no coordinator.
const WAITING_MAX: usize = 100;

/// Largest block of a process. Blocks begin at 1.
const BLOCK_MAX: u8 = 127;

/// When a claim that the coordinator could not answer is repeated.
pub(super) const CLAIM_PAUSE: Duration = Duration::from_millis(10);

/// One incarnation of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Process {
    pub(super) host: usize,
    pub(super) boot: u32,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{}, incarnation {}", self.host, self.boot)
    }
}

/// An address that a process holds for an id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) space: PortSpace,
    pub(super) local: SocketAddr,
    pub(super) options: BindOptions,
    pub(super) listens: bool,
    /// Binding in the current coordinator's table. `None` until the id is registered there.
    pub(super) binding: Option<BindingId>,
}

/// The recipient of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipient {
    /// The listening process.
    Process(Process),
    /// The process with this block.
    Block(u8),
    /// The coordinator itself, which answers that there is no such service.
    Coordinator,
    /// Every process: the message does not name the receiver's communication id.
    Everyone,
    Nobody,
}

/// A death that the coordinator has not noticed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    pub(super) at: Duration,
    /// The dead process's block.
    pub(super) block: u8,
}

#[derive(Debug)]
pub(super) struct PortGroup {
    pub(super) addr: IpAddr,
    pub(super) coordinator: Option<Process>,
    pub(super) ports: PortTable<Process>,
    /// Living members that have not registered with the coordinator.
    pub(super) unregistered: BTreeSet<Process>,
    /// Dead members whose death the coordinator has not noticed.
    pub(super) dead_members: BTreeMap<Process, Departure>,
    /// Dead members to which the coordinator tries to announce a death. It reads nothing from them
    /// meanwhile. Only with a planted defect.
    pub(super) behind: BTreeSet<Process>,
    /// Datagrams that arrived while there was no coordinator.
    pub(super) waiting: VecDeque<Datagram>,
    /// The block allocated last.
    last_block: u8,
}

impl PortGroup {
    pub(super) fn new(addr: IpAddr, rng: &mut Rng) -> Self {
        Self {
            addr,
            coordinator: None,
            ports: PortTable::new(PortConfig::default(), rng.next_u64()),
            unregistered: BTreeSet::new(),
            dead_members: BTreeMap::new(),
            behind: BTreeSet::new(),
            waiting: VecDeque::new(),
            last_block: 0,
        }
    }

    /// Allocates a block. Used blocks are reused as late as possible.
    pub(super) fn next_block(&mut self) -> u8 {
        self.last_block = self.last_block % BLOCK_MAX + 1;
        self.last_block
    }

    /// Whether the coordinator answers claims.
    pub(super) fn is_ready(&self) -> bool {
        self.coordinator.is_some() && self.unregistered.is_empty() && self.dead_members.is_empty()
    }

    /// The coordinator died, and its state with it.
    pub(super) fn lose_coordinator(&mut self, seed: u64) {
        self.coordinator = None;
        self.ports = PortTable::new(PortConfig::default(), seed);
        self.unregistered.clear();
        self.dead_members.clear();
        self.behind.clear();
    }

    /// Keeps a datagram for the next coordinator if there is room.
    pub(super) fn keep(&mut self, datagram: Datagram) -> bool {
        let has_room = self.waiting.len() < WAITING_MAX;
        if has_room {
            self.waiting.push_back(datagram);
        }
        has_room
    }

    /// The recipient of a management datagram.
    pub(super) fn recipient(&self, mad: &[u8]) -> Recipient {
        let Ok((_, message)) = CmMessage::parse(mad) else {
            return Recipient::Nobody;
        };
        let service = match &message {
            CmMessage::Req(req) => Some(req.service_id),
            CmMessage::SidrReq(req) => Some(req.service_id),
            _ => None,
        };
        if let Some(service) = service {
            return match self.ports.lookup(service, self.addr, 0) {
                Some(listener) => Recipient::Process(listener),
                // Its listener may not have registered yet.
                None if !self.unregistered.is_empty() => Recipient::Nobody,
                None => Recipient::Coordinator,
            };
        }
        match message.remote_comm_id() {
            Some(0) if is_withdrawal(&message) => Recipient::Everyone,
            Some(comm_id) if comm_id >> 24 == 0 => Recipient::Coordinator,
            Some(comm_id) => Recipient::Block((comm_id >> 24) as u8),
            None => Recipient::Nobody,
        }
    }
}

/// Whether a message withdraws a request that its receiver has not answered.
fn is_withdrawal(message: &CmMessage) -> bool {
    matches!(message, CmMessage::Rej(rej) if rej.reason == RejectReason::TIMEOUT)
}

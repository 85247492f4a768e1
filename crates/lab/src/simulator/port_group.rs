//! Processes that share an address and its UDP port: the coordinator among them, which has the port table and
//! says whose a management datagram is.
//!
//! What decides is the engines' own: the port table, and the communication ids and queue pair numbers
//! with their owner's block in the high byte. What carries it (sockets, the election, connections to
//! the coordinator) is modelled: a member sees that the coordinator is dead at once, one of those that stand for it is
//! the next after a while, and that one answers no claim before every living member has registered. The coordinator sees each
//! death after a while of its own, and tells every member that is not dead by then.

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

/// Blocks that processes can have: 1 to this.
const BLOCK_MAX: u8 = 127;

/// When a claim that the coordinator does not answer yet is made again.
pub(super) const CLAIM_PAUSE: Duration = Duration::from_millis(10);

/// One life of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Process {
    pub(super) host: usize,
    pub(super) boot: u32,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{}, started {} times before", self.host, self.boot)
    }
}

/// An address of an id that its process holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) space: PortSpace,
    pub(super) local: SocketAddr,
    pub(super) options: BindOptions,
    pub(super) listens: bool,
    /// In the present coordinator's table; `None` until that coordinator was told.
    pub(super) binding: Option<BindingId>,
}

/// To whom a management datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipient {
    /// The process that listens.
    Process(Process),
    /// The process that has the block.
    Block(u8),
    /// The coordinator's own, which says that there is no such service.
    Coordinator,
    /// Every process: it names the connection otherwise than by its receiver's id.
    Everyone,
    Nobody,
}

/// A death that the coordinator has not seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    pub(super) at: Duration,
    /// The block that the process had.
    pub(super) block: u8,
}

#[derive(Debug)]
pub(super) struct PortGroup {
    pub(super) addr: IpAddr,
    pub(super) coordinator: Option<Process>,
    pub(super) ports: PortTable<Process>,
    /// Living members of which the coordinator does not know yet what they hold.
    pub(super) unregistered: BTreeSet<Process>,
    /// Dead members of whose death the coordinator does not know yet.
    pub(super) departed: BTreeMap<Process, Departure>,
    /// Members that the coordinator waits for to take its news, and reads nothing of meanwhile: only with a planted defect.
    pub(super) behind: BTreeSet<Process>,
    /// What came for a coordinator while there was none.
    pub(super) waiting: VecDeque<Datagram>,
    /// The block given out last.
    last_block: u8,
}

impl PortGroup {
    pub(super) fn new(addr: IpAddr, rng: &mut Rng) -> Self {
        Self {
            addr,
            coordinator: None,
            ports: PortTable::new(PortConfig::default(), rng.next_u64()),
            unregistered: BTreeSet::new(),
            departed: BTreeMap::new(),
            behind: BTreeSet::new(),
            waiting: VecDeque::new(),
            last_block: 0,
        }
    }

    /// A block for a newcomer; one that was used is used again as late as can be.
    pub(super) fn next_block(&mut self) -> u8 {
        self.last_block = self.last_block % BLOCK_MAX + 1;
        self.last_block
    }

    /// Whether the coordinator answers claims.
    pub(super) fn is_ready(&self) -> bool {
        self.coordinator.is_some() && self.unregistered.is_empty() && self.departed.is_empty()
    }

    /// The coordinator is dead, and what it knew with it.
    pub(super) fn lose_coordinator(&mut self, seed: u64) {
        self.coordinator = None;
        self.ports = PortTable::new(PortConfig::default(), seed);
        self.unregistered.clear();
        self.departed.clear();
        self.behind.clear();
    }

    /// Keeps a datagram for the next coordinator, if there is room.
    pub(super) fn keep(&mut self, datagram: Datagram) -> bool {
        let has_room = self.waiting.len() < WAITING_MAX;
        if has_room {
            self.waiting.push_back(datagram);
        }
        has_room
    }

    /// Whose a management datagram is.
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
            return match self.ports.lookup(service, self.addr) {
                Some(listener) => Recipient::Process(listener),
                // Its listener may be one that has yet to register.
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

/// Whether a message takes back what its receiver has not answered yet.
fn is_withdrawal(message: &CmMessage) -> bool {
    matches!(message, CmMessage::Rej(rej) if rej.reason == RejectReason::TIMEOUT)
}

//! Processes that share an address and its UDP port: the hub among them, which has the port table and
//! says whose a management datagram is.
//!
//! What decides is the engines' own: the port table, and the communication ids and queue pair numbers
//! with their owner's block in the high byte. What carries it (sockets, the election, connections to
//! the hub) is modelled: a member sees that the hub is dead at once, one of those that stand for it is
//! the next after a while, and that one answers no claim before every living member has registered.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use portolan_cm::ports::{BindOptions, BindingId, PortConfig, PortTable};
use portolan_wire::PortSpace;
use portolan_wire::cm::{CmMessage, RejectReason};

use super::packet::Datagram;
use super::rng::Rng;

/// Datagrams that the shared socket holds while there is no hub.
const WAITING_MAX: usize = 100;

/// Blocks that processes can have: 1 to this.
const BLOCK_MAX: u8 = 127;

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
    /// In the present hub's table; `None` until that hub was told.
    pub(super) binding: Option<BindingId>,
}

/// To whom a management datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipient {
    /// The process that listens.
    Process(Process),
    /// The process that has the block.
    Block(u8),
    /// The hub's own, which says that there is no such service.
    Hub,
    /// Every process: it names the connection otherwise than by its receiver's id.
    Everyone,
    Nobody,
}

#[derive(Debug)]
pub(super) struct PortGroup {
    pub(super) addr: IpAddr,
    pub(super) hub: Option<Process>,
    pub(super) ports: PortTable<Process>,
    /// Living members of which the hub does not know yet what they hold.
    pub(super) unregistered: BTreeSet<Process>,
    /// Dead members of whose death the hub does not know yet.
    pub(super) departed: BTreeSet<Process>,
    /// What came for a hub while there was none.
    pub(super) waiting: VecDeque<Datagram>,
    /// The block given out last.
    last_block: u8,
}

impl PortGroup {
    pub(super) fn new(addr: IpAddr, rng: &mut Rng) -> Self {
        Self {
            addr,
            hub: None,
            ports: PortTable::new(PortConfig::default(), rng.next_u64()),
            unregistered: BTreeSet::new(),
            departed: BTreeSet::new(),
            waiting: VecDeque::new(),
            last_block: 0,
        }
    }

    /// A block for a newcomer; one that was used is used again as late as can be.
    pub(super) fn next_block(&mut self) -> u8 {
        self.last_block = self.last_block % BLOCK_MAX + 1;
        self.last_block
    }

    /// Whether the hub answers claims.
    pub(super) fn is_ready(&self) -> bool {
        self.hub.is_some() && self.unregistered.is_empty() && self.departed.is_empty()
    }

    /// The hub is dead, and what it knew with it.
    pub(super) fn lose_hub(&mut self, seed: u64) {
        self.hub = None;
        self.ports = PortTable::new(PortConfig::default(), seed);
        self.unregistered.clear();
        self.departed.clear();
    }

    /// Keeps a datagram for the next hub, if there is room.
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
                None => Recipient::Hub,
            };
        }
        match message.remote_comm_id() {
            Some(0) if is_withdrawal(&message) => Recipient::Everyone,
            Some(comm_id) if comm_id >> 24 == 0 => Recipient::Hub,
            Some(comm_id) => Recipient::Block((comm_id >> 24) as u8),
            None => Recipient::Nobody,
        }
    }
}

/// Whether a message takes back what its receiver has not answered yet.
fn is_withdrawal(message: &CmMessage) -> bool {
    matches!(message, CmMessage::Rej(rej) if rej.reason == RejectReason::TIMEOUT)
}

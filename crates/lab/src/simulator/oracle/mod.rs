//! The oracle: it sees both ends of everything and checks invariants.
//!
//! An [`Endpoint`] represents a queue pair from creation to destruction, with all work posted to
//! it. Programs name their endpoints in their private data, so the oracle can match the two ends
//! whatever the numbers on the wire are.
//!
//! - `stream`: each placed byte is the next byte of the peer's next message, at the right address.
//!   So nothing is lost, repeated, reordered, altered, or written without permission.
//! - `work`: each request completes once, in order, with a truthful status.
//! - `wire`: PSNs are in sequence, and only what arrived is acknowledged.
//! - `life`: the events of an id are in a legal order, in time, and have a cause.
//! - `inquiry`: a question is reported once, and its answer is one that the service gave.
//! - `silence`: a queue pair without answers gives up in time.

mod inquiry;
mod life;
mod place;
mod silence;
mod stream;
mod wire;
mod work;

use std::time::Duration;

use portolan_wire::{Psn, Qpn};

pub(super) use inquiry::{Inquiry, Question, Told};
pub(super) use life::{Life, Phase};
pub(super) use place::{Cursor, Target};
pub(super) use silence::Lateness;
pub(super) use wire::{Path, packets};
pub(super) use work::{Circumstances, Posted, Receive};

use super::content::Noise;
use super::plan::{Side, Use};

/// An index in the oracle's list of endpoints.
pub(super) type EndpointIndex = usize;

/// A region of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arena {
    pub(super) addr: u64,
    /// IOVA: the address of its first byte in work requests.
    pub(super) iova: u64,
    pub(super) key: u32,
    pub(super) len: u32,
    /// Its initial content.
    pub(super) noise: Noise,
    /// Bytes allocated to requests.
    pub(super) used: u32,
    /// Whether it was deregistered early.
    pub(super) is_revoked: bool,
}

/// The regions of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arenas {
    /// Memory to send from.
    pub(super) outgoing: Arena,
    /// Memory for receives and read results.
    pub(super) incoming: Arena,
    /// Memory that its peer may write.
    pub(super) target: Arena,
    /// Memory that its peer may read.
    pub(super) source: Arena,
}

impl Arenas {
    pub(super) fn of_mut(&mut self, use_of_region: Use) -> &mut Arena {
        match use_of_region {
            Use::Outgoing => &mut self.outgoing,
            Use::Incoming => &mut self.incoming,
            Use::Target => &mut self.target,
            Use::Source => &mut self.source,
        }
    }

    pub(super) fn all(&self) -> [&Arena; 4] {
        [&self.outgoing, &self.incoming, &self.target, &self.source]
    }
}

/// A queue pair and its work.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) index: EndpointIndex,
    pub(super) conversation: usize,
    pub(super) side: Side,
    pub(super) host: usize,
    pub(super) qpn: Qpn,
    pub(super) arenas: Arenas,
    /// The other end, once a message has named it.
    pub(super) peer: Option<EndpointIndex>,
    /// First PSNs that the ids negotiated: expected, then sent.
    pub(super) ids_psns: Option<(Psn, Psn)>,
    /// First expected PSN, once it is ready to receive.
    pub(super) rq_psn: Option<Psn>,
    /// First sent PSN.
    pub(super) sq_psn: Option<Psn>,
    pub(super) sends: Vec<Posted>,
    pub(super) receives: Vec<Receive>,
    /// Completed sends and receives, counted from the oldest.
    pub(super) sends_done: usize,
    pub(super) receives_done: usize,
    /// The next byte that the peer's sends and writes will place here.
    pub(super) inbound: Cursor,
    /// The next byte that this endpoint's own reads will place here.
    pub(super) reading: Cursor,
    pub(super) silence: silence::Silence,
    pub(super) wire: wire::Wire,
    /// The program accepted the connection: `establish` on the active side, `accept` on the
    /// passive.
    pub(super) agreed: bool,
    /// The program disconnected, rejected or destroyed its id, or its machine crashed.
    pub(super) left: bool,
}

/// All endpoints of the run.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    pub(super) endpoints: Vec<Endpoint>,
}

impl Oracle {
    pub(super) fn add(
        &mut self,
        conversation: usize,
        side: Side,
        host: usize,
        qpn: Qpn,
        arenas: Arenas,
    ) -> EndpointIndex {
        let index = self.endpoints.len();
        self.endpoints.push(Endpoint {
            index,
            conversation,
            side,
            host,
            qpn,
            arenas,
            peer: None,
            ids_psns: None,
            rq_psn: None,
            sq_psn: None,
            sends: Vec::new(),
            receives: Vec::new(),
            sends_done: 0,
            receives_done: 0,
            inbound: Cursor::default(),
            reading: Cursor::default(),
            silence: silence::Silence::default(),
            wire: wire::Wire::default(),
            agreed: false,
            left: false,
        });
        index
    }

    pub(super) fn peer(&self, index: EndpointIndex) -> Option<&Endpoint> {
        self.endpoints.get(self.endpoints[index].peer?)
    }

    /// Number of endpoints that accepted this conversation's request before this one.
    pub(super) fn accepts_before(&self, index: EndpointIndex) -> u32 {
        let here = &self.endpoints[index];
        let accepting = match here.side {
            Side::Active => here.peer.unwrap_or_default(),
            Side::Passive => index,
        };
        let before = self.endpoints[..accepting].iter();
        let others = before
            .filter(|other| (other.conversation, other.side) == (here.conversation, Side::Passive));
        others.count() as u32
    }

    /// The endpoints that may receive from this one: its peer, and one that accepted the same
    /// request again after the peer's machine crashed, and got the same number. The sender knows
    /// only the first.
    pub(super) fn receivers(&self, index: EndpointIndex) -> impl Iterator<Item = &Endpoint> {
        let peer = self.peer(index);
        let later = peer.and_then(|peer| self.endpoints.get(peer.index + 1..));
        let is_heir = move |later: &&Endpoint| {
            later.peer == Some(index)
                && peer.is_some_and(|peer| (peer.host, peer.qpn) == (later.host, later.qpn))
        };
        peer.into_iter()
            .chain(later.unwrap_or_default().iter().filter(is_heir))
    }

    /// Whether all requests of the endpoint are complete, and all messages of its peer arrived.
    pub(super) fn is_all_done(&self, index: EndpointIndex, ops: usize, messages: usize) -> bool {
        let endpoint = &self.endpoints[index];
        endpoint.sends.len() == ops
            && endpoint.sends_done == ops
            && endpoint.receives_done >= messages
    }
}

/// A time by which something must have happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub(super) at: Duration,
    pub(super) what: &'static str,
}

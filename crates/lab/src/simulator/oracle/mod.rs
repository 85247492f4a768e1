//! The oracle: it sees both ends of everything, and knows what must be.
//!
//! An [`Endpoint`] stands for a queue pair from its creation to its end, with all the work that was
//! posted to it. The programs name their endpoints in their private data, so the oracle knows which
//! two belong together whatever the numbers on the wire are.
//!
//! * `stream`: each byte placed is the next byte of the peer's next message, at its place: so
//!   nothing is lost, repeated, reordered, altered, or written where it was not granted.
//! * `work`: each request completes once, in order, with a status that is true.
//! * `wire`: numbers in sequence, and acknowledgements of nothing but what arrived.
//! * `life`: the events of an id come in a legal order, in time, and each has its cause.
//! * `inquiry`: a question is reported once, and its answer is one that the service gave.
//! * `silence`: a queue pair that hears nothing gives up in time.

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

/// Where an endpoint is in the oracle's list.
pub(super) type EndpointIndex = usize;

/// A region of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arena {
    pub(super) addr: u64,
    /// What its owner and its peers call its first byte.
    pub(super) iova: u64,
    pub(super) key: u32,
    pub(super) len: u32,
    /// What it holds at first.
    pub(super) noise: Noise,
    /// Bytes given out.
    pub(super) used: u32,
    /// Deregistered before its time.
    pub(super) is_revoked: bool,
}

/// The regions of an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arenas {
    /// What it sends.
    pub(super) outgoing: Arena,
    /// What it receives or reads.
    pub(super) incoming: Arena,
    /// What its peer may write.
    pub(super) target: Arena,
    /// What its peer may read.
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
    /// The other end, once a message named it.
    pub(super) peer: Option<EndpointIndex>,
    /// First PSNs as the ids negotiated them: those expected here and those sent.
    pub(super) ids_psns: Option<(Psn, Psn)>,
    /// First PSN that it expects, once it is ready to receive.
    pub(super) rq_psn: Option<Psn>,
    /// First PSN that it sends.
    pub(super) sq_psn: Option<Psn>,
    pub(super) sends: Vec<Posted>,
    pub(super) receives: Vec<Receive>,
    /// Sends and receives that are complete, counted from the oldest.
    pub(super) sends_done: usize,
    pub(super) receives_done: usize,
    /// The next byte that the peer's sends and writes will place here.
    pub(super) inbound: Cursor,
    /// The next byte that this endpoint's own reads will place here.
    pub(super) reading: Cursor,
    pub(super) silence: silence::Silence,
    pub(super) wire: wire::Wire,
    /// The program called: the active side `establish`, the passive one `accept`.
    pub(super) agreed: bool,
    /// The program disconnected, or destroyed its id, or rejected; or its machine crashed.
    pub(super) left: bool,
}

/// Every endpoint there was.
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

    /// How many endpoints had accepted a conversation's request before the one of this connection did.
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

    /// The endpoints that take what this one sends: its peer, and after a crash of the peer's machine one that accepted
    /// the same request again and got the same number. The sender knows only the first.
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

    /// Whether everything posted at the endpoint is complete, and all that the peer posted arrived.
    pub(super) fn is_all_done(&self, index: EndpointIndex, ops: usize, messages: usize) -> bool {
        let endpoint = &self.endpoints[index];
        endpoint.sends.len() == ops
            && endpoint.sends_done == ops
            && endpoint.receives_done >= messages
    }
}

/// A moment by which something must have happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub(super) at: Duration,
    pub(super) what: &'static str,
}

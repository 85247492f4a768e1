//! The UDP datagrams of a datagram socket: peers announce their queue pairs, and send their first data.

use std::io;
use std::net::SocketAddr;

use portolan_provider::cm::EventType;
use portolan_provider::{Result, Step};
use portolan_rsocket::datagram::Announcement;
use portolan_wire::addr::Qpn;

use super::{ARRIVED_MAX, Local, PEERS_MAX, Rsocket, State, announcement};
use crate::cm::{CmId, Event, EventChannel};
use crate::connection::{Attempt, Steps};

/// Maximum of UDP datagrams read in one turn.
const BATCH: usize = 64;
/// Maximum of announced peers whose addresses are being resolved. Others are known after a later datagram of theirs.
const NEWCOMERS_MAX: usize = 16;
/// Maximum length of a peer's UDP datagram.
const UDP_BYTES_MAX: usize = 4096 + 64;

/// A peer that has announced a queue pair and whose address is being resolved. No call waits for an answer from the
/// network: the sender of a UDP datagram need not exist.
#[derive(Debug)]
pub(super) struct Newcomer {
    peer: SocketAddr,
    qpn: Qpn,
    /// It asked for the number of the queue pair here.
    asks: bool,
    resolving: Resolving,
}

impl Rsocket {
    /// Takes the datagrams that have arrived at the UDP socket, and the peers that are known by now.
    pub(super) fn take_udp(&self, state: &mut State) {
        self.take_announcements(state);
        self.take_newcomers(state);
    }

    fn take_announcements(&self, state: &mut State) {
        let mut bytes = [0; UDP_BYTES_MAX];
        for _ in 0..BATCH {
            if state.arrived.len() >= ARRIVED_MAX {
                return;
            }
            let (length, peer) = match self.udp.recv_from(&mut bytes) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // An ICMP error for a datagram sent before.
                Err(_) => continue,
            };
            let announced = Announcement::decode(&bytes[..length], peer.is_ipv6());
            if let Some((announcement, data)) = announced
                && let Err(error) = self.take_announcement(state, peer, announcement, data)
            {
                tracing::debug!(%error, %peer, "datagram of rsocket");
                // It may have waited for the process that holds the port.
                return;
            }
        }
    }

    fn take_announcement(
        &self,
        state: &mut State,
        peer: SocketAddr,
        announced: Announcement,
        data: &[u8],
    ) -> io::Result<()> {
        if announced.has_data {
            state.arrived.push_back((peer, data.to_vec()));
        }
        let known = state.peers.get(&peer);
        if let Some(known) = known.filter(|_| announced.has_data) {
            self.answer(&state.locals[known.local], peer)?;
        }
        let is_known = known.is_some();
        let qpn = Qpn::new(announced.qpn);
        let asks = announced.has_data && !is_known;
        let mut newcomers = state.newcomers.iter_mut();
        if let Some(newcomer) = newcomers.find(|newcomer| newcomer.peer == peer) {
            (newcomer.qpn, newcomer.asks) = (qpn, newcomer.asks || asks);
            return Ok(());
        }
        let known = known.and_then(|peer| peer.known.as_ref());
        if known.is_some_and(|known| known.qpn == qpn) {
            return Ok(());
        }
        let is_full = !is_known && state.peers.len() >= PEERS_MAX;
        if is_full || state.newcomers.len() >= NEWCOMERS_MAX {
            return Ok(());
        }
        let source = SocketAddr::new(self.source_towards(peer)?.ip(), 0);
        let resolving = self.begin(source, peer)?;
        let events = resolving.steps.events.descriptor()?;
        self.ready.add(events, Step::ResolveAddress)?;
        state.newcomers.push(Newcomer {
            peer,
            qpn,
            asks,
            resolving,
        });
        Ok(())
    }

    /// Sends a peer the number of the queue pair here.
    fn answer(&self, local: &Local, peer: SocketAddr) -> io::Result<()> {
        let answer = announcement(&local.queues, local.addr, false);
        self.udp.send_to(answer.encode().bytes(), peer).map(drop)
    }

    /// Takes the newcomers whose addresses are resolved.
    fn take_newcomers(&self, state: &mut State) {
        let mut at = 0;
        while let Some(newcomer) = state.newcomers.get_mut(at) {
            let resolved = match newcomer.resolving.take_events() {
                Ok(None) => {
                    at += 1;
                    continue;
                }
                Ok(Some((id, _events))) => Ok(id),
                Err(error) => Err(io::Error::from(error)),
            };
            let newcomer = state.newcomers.swap_remove(at);
            let known = resolved.and_then(|id| self.admit(state, &newcomer, &id));
            if let Err(error) = known {
                tracing::debug!(%error, peer = %newcomer.peer, "peer of rsocket");
            }
        }
    }

    /// The neighbour that `id` has resolved is known now, so no answer from the network is needed.
    fn admit(&self, state: &mut State, newcomer: &Newcomer, id: &CmId) -> io::Result<()> {
        let index = self.local_towards(state, newcomer.peer)?;
        let local = &state.locals[index];
        let destination = local.queues.towards(&id.addresses()?, newcomer.qpn)?;
        if newcomer.asks {
            self.answer(local, newcomer.peer)?;
        }
        if let Some(peer) = state.peers.get_mut(&newcomer.peer) {
            peer.known = Some(destination);
        }
        Ok(())
    }
}

/// An id whose address towards a peer is being resolved.
#[derive(Debug)]
pub(super) struct Resolving {
    pub(super) steps: Steps,
}

impl Attempt for Resolving {
    type Prize = (CmId, EventChannel);

    fn steps(&self) -> &Steps {
        &self.steps
    }

    fn take_step(&mut self, event: &Event) -> Result<Option<Self::Prize>> {
        match event.event_type() {
            EventType::AddrResolved => Ok(Some((self.steps.id.clone(), self.steps.events.clone()))),
            _ => Err(self.steps.unexpected(event)),
        }
    }
}

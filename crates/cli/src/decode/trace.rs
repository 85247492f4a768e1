//! Draws packets as a ladder: the sender of each, and its contents.
//!
//! Hosts are identified by their addresses. If both ends have the same address, as on loopback, they are distinguished
//! by side: the active side sent the connection request, and the communication ids and queue pairs in the handshake
//! identify the side of later packets.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use portolan_wire::Qpn;
use portolan_wire::cm::CmMessage;

use super::describe::{in_short, kind};
use super::dissect::{Body, RocePacket};
use crate::ladder::{Arrow, Ladder, Lane, Local};
use crate::terminal::Theme;

/// Maximum number of communication ids, and of queue pairs, remembered for connections within one address. Beyond it,
/// packets are drawn as if the active side had sent them.
const MAX_KNOWN: usize = 65_536;

/// A side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// The side that requests the connection.
    Active,
    /// It listens.
    Passive,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Active => Side::Passive,
            Side::Passive => Side::Active,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Side::Active => "active",
            Side::Passive => "passive",
        }
    }
}

/// Draws packets and the program's own events as a ladder.
#[derive(Debug)]
pub(crate) struct Tracer {
    ladder: Ladder,
    sides: Sides,
}

impl Tracer {
    /// Creates an empty trace.
    pub(crate) fn new() -> Tracer {
        Tracer {
            ladder: Ladder::new(),
            sides: Sides::default(),
        }
    }

    /// Adds a packet. `at` is the time since the start of the trace; add packets and events in that order.
    pub(crate) fn packet(&mut self, at: Duration, packet: &RocePacket<'_>) {
        let (src, dst) = (
            packet.src.ip().to_canonical(),
            packet.dst.ip().to_canonical(),
        );
        let (from, to) = if src == dst {
            let from = self.sides.sender(src, &packet.body);
            (self.side_lane(src, from), self.side_lane(src, from.other()))
        } else {
            (
                self.ladder.lane(&src.to_string()),
                self.ladder.lane(&dst.to_string()),
            )
        };
        self.ladder.arrow(Arrow {
            at,
            from,
            to,
            label: in_short(packet),
            kind: kind(packet),
            payload_len: match &packet.body {
                Body::Packet(packet) => packet.payload().len() as u64,
                _ => 0,
            },
        });
    }

    /// Adds an event at the end `local` of a connection to `peer`, on the given side.
    pub(crate) fn event(
        &mut self,
        at: Duration,
        local: IpAddr,
        peer: IpAddr,
        side: Side,
        label: impl Into<String>,
    ) {
        let (local, peer) = (local.to_canonical(), peer.to_canonical());
        let lane = if local == peer {
            self.side_lane(local, side)
        } else {
            self.ladder.lane(&local.to_string())
        };
        self.ladder.local(Local {
            at,
            lane,
            label: label.into(),
        });
    }

    /// Draws the ladder; one string per line.
    pub(crate) fn finish(self, theme: &Theme) -> Vec<String> {
        self.ladder.finish(theme)
    }

    fn side_lane(&mut self, ip: IpAddr, side: Side) -> Lane {
        self.ladder.lane(&format!("{ip} {}", side.name()))
    }
}

/// The side of each communication id and queue pair, as learned from handshakes.
#[derive(Debug, Default)]
struct Sides {
    comm_ids: HashMap<(IpAddr, u32), Side>,
    qpns: HashMap<(IpAddr, Qpn), Side>,
}

impl Sides {
    /// The side that sent a packet from an address to itself; learns from handshakes.
    fn sender(&mut self, ip: IpAddr, body: &Body<'_>) -> Side {
        match body {
            Body::Cm(_, message) => self.message_sender(ip, message),
            Body::Packet(packet) => {
                let from = packet.deth().map(|deth| deth.src_qp);
                self.data_sender(ip, packet.bth().dest_qp, from)
            }
            Body::Cut(Ok(headers), _) => {
                let from = headers.deth.map(|deth| deth.src_qp);
                self.data_sender(ip, headers.bth.dest_qp, from)
            }
            Body::Mad(..) | Body::Cut(..) | Body::Malformed(_) => Side::Active,
        }
    }

    fn message_sender(&mut self, ip: IpAddr, message: &CmMessage) -> Side {
        let local = (ip, message.local_comm_id());
        let sender = match message {
            CmMessage::Req(_) | CmMessage::SidrReq(_) => Side::Active,
            CmMessage::Rep(_) | CmMessage::SidrRep(_) => Side::Passive,
            _ => {
                let remote = message.remote_comm_id().map(|id| (ip, id));
                let receiver = remote.and_then(|id| self.comm_ids.get(&id));
                let by_receiver = receiver.map(|side| side.other());
                by_receiver
                    .or_else(|| self.comm_ids.get(&local).copied())
                    .unwrap_or(Side::Active)
            }
        };
        let qpn = match message {
            CmMessage::Req(req) => Some(req.local_qpn),
            CmMessage::Rep(rep) => Some(rep.local_qpn),
            CmMessage::SidrRep(rep) => Some(rep.qpn),
            _ => None,
        };
        // A SIDR answer repeats the request's id, which therefore identifies no side.
        let names_side = matches!(message, CmMessage::Req(_) | CmMessage::Rep(_));
        if names_side && self.comm_ids.len() < MAX_KNOWN {
            self.comm_ids.insert(local, sender);
        }
        if let Some(qpn) = qpn {
            self.learn(ip, qpn, sender);
        }
        sender
    }

    fn data_sender(&mut self, ip: IpAddr, to: Qpn, from: Option<Qpn>) -> Side {
        if let Some(receiver) = self.qpns.get(&(ip, to)) {
            return receiver.other();
        }
        let sender = from.and_then(|from| self.qpns.get(&(ip, from)).copied());
        // The handshake was not captured. Assume that the side that sends first is the active one, and that an answer
        // shows its peer's queue pair.
        let sender = sender.unwrap_or(match self.qpns.len() % 2 {
            0 => Side::Active,
            _ => Side::Passive,
        });
        self.learn(ip, to, sender.other());
        sender
    }

    fn learn(&mut self, ip: IpAddr, qpn: Qpn, side: Side) {
        if self.qpns.len() < MAX_KNOWN {
            self.qpns.insert((ip, qpn), side);
        }
    }
}

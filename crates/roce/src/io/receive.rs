//! Taking packets from the sockets and bringing them to their queue pairs.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::SystemTime;

use portolan_wire::Qpn;
use portolan_wire::bth::{BthPacket, Opcode};
use portolan_wire::icrc::{self, Flow, Identification};
use portolan_wire::rocev2::Packet;

use super::counters::Monitor;
use super::drive::Answer;
use super::group::{Block, BlockSocket, Datagram};
use super::multicast::Group;
use super::receive_batch::{Coalesced, ReceiveBatch};
use super::shared::Shared;
use super::tap::{Direction, TappedPacket};

/// System calls on one socket before others have their turn.
const CALLS_PER_TURN: usize = 4;

/// Reads the sockets; one thread at a time does.
#[derive(Debug)]
pub(super) struct Receiver {
    batch: ReceiveBatch,
    /// The packets of the batch that passed every check; kept for its memory.
    accepted: Vec<Accepted>,
    /// See [`take_one_sided`](Self::take_one_sided).
    one_sided: bool,
}

/// A packet of the batch.
#[derive(Clone, Copy, Debug)]
struct Accepted {
    qpn: Qpn,
    identification: u16,
    datagram: u32,
    offset: u32,
    len: u32,
}

/// A packet with its addresses, its ICRC checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived<'a> {
    pub(super) source: SocketAddr,
    pub(super) destination: IpAddr,
    /// Other fields of the IP header.
    pub(super) ip: IpFields,
    /// The UDP payload.
    pub(super) payload: &'a [u8],
}

/// Fields of a packet's IP header that only UD receives show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IpFields {
    /// IPv4 identification, as the ICRC tells it; 0 over IPv6.
    pub(super) identification: u16,
    /// IPv4 type of service or IPv6 traffic class; 0 if the process has had no UD queue pair.
    pub(super) traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; likewise.
    pub(super) hop_limit: u8,
    /// IPv6 flow label; likewise.
    pub(super) flow_label: u32,
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self {
            batch: ReceiveBatch::new(),
            accepted: Vec::new(),
            one_sided: false,
        }
    }

    /// Takes what waits in the sockets that connected queue pairs use, within bounds; how many
    /// datagrams that were.
    pub(super) fn turn(&mut self, shared: &Shared, answer: Answer) -> usize {
        let mut taken = 0;
        if shared.progress.is_stopping() {
            // The sockets are closed, or about to be.
            return taken;
        }
        for socket in shared.group.sockets() {
            if !shared.progress.is_connected(socket.family().into()) {
                continue;
            }
            taken += self.drain(shared, socket, answer);
        }
        taken
    }

    /// Whether there was, since the last time, a request of a peer that no completion tells this program of: a write
    /// without immediate data, a read, an atomic.
    pub(super) fn take_one_sided(&mut self) -> bool {
        std::mem::take(&mut self.one_sided)
    }

    /// Takes what waits in one socket, within bounds; how many datagrams that were.
    pub(super) fn drain(&mut self, shared: &Shared, socket: &BlockSocket, answer: Answer) -> usize {
        let mut taken = 0;
        for _ in 0..CALLS_PER_TURN {
            match self.batch.receive(socket.as_fd()) {
                Ok(0) => break,
                Ok(count) => {
                    shared.monitor.counters.receive_calls.up();
                    taken += count;
                    self.dispatch(shared, count, answer);
                    if !self.batch.is_full() {
                        break;
                    }
                }
                // ICMP errors do not reach these sockets; whatever it is, the next call tells.
                Err(error) => {
                    tracing::debug!(%error, "recvmmsg");
                    break;
                }
            }
        }
        taken
    }

    /// Takes what waits in a multicast group's socket, within bounds: each queue pair attached to the
    /// group gets a copy.
    pub(super) fn drain_group(&mut self, shared: &Shared, group: &Group) {
        for _ in 0..CALLS_PER_TURN {
            let count = match self.batch.receive(group.socket()) {
                Ok(0) => return,
                Ok(count) => count,
                Err(error) => {
                    tracing::debug!(%error, "recvmmsg");
                    return;
                }
            };
            let counters = &shared.monitor.counters;
            counters.receive_calls.up();
            self.accept(shared, count);
            let all = self.accepted.len();
            self.accepted.retain(|packet| packet.qpn == Qpn::MULTICAST);
            let (batch, accepted) = (&self.batch, &self.accepted);
            let attached = group.for_each(|qp| {
                let packets = accepted.iter().filter_map(|packet| arrived(batch, packet));
                shared.receive_datagrams(qp, packets);
            });
            let taken = if attached > 0 { accepted.len() } else { 0 };
            counters.dropped_no_queue_pair.add(all - taken);
            if !self.batch.is_full() {
                return;
            }
        }
    }

    /// Brings the packets of the batch to their queue pairs: consecutive ones of the same queue pair
    /// together, so that it is locked once and answers once.
    fn dispatch(&mut self, shared: &Shared, count: usize, answer: Answer) {
        self.accept(shared, count);
        let batch = &self.batch;
        for run in self.accepted.chunk_by(|a, b| a.qpn == b.qpn) {
            let Some(qpn) = run.first().map(|packet| packet.qpn) else {
                continue;
            };
            let packets = run.iter().filter_map(|packet| arrived(batch, packet));
            match shared.qps.find(qpn) {
                Some(qp) => shared.receive(&qp, packets, answer),
                None => misdirected(shared, qpn, packets),
            }
        }
    }

    /// Checks each packet of the batch: form and ICRC.
    fn accept(&mut self, shared: &Shared, count: usize) {
        self.accepted.clear();
        for index in 0..count {
            let Some(datagram) = self.batch.datagram(index) else {
                shared.monitor.counters.dropped_truncated.up();
                continue;
            };
            let mut offset = 0;
            for (place, packet) in datagram.bytes.chunks(datagram.packet_len).enumerate() {
                let checked = check(
                    &shared.monitor,
                    &datagram,
                    place as u16,
                    packet,
                    shared.port(),
                );
                if let Some((qpn, opcode, identification)) = checked {
                    self.one_sided |= is_one_sided(opcode);
                    self.accepted.push(Accepted {
                        qpn,
                        identification,
                        datagram: index as u32,
                        offset,
                        len: packet.len() as u32,
                    });
                }
                offset += packet.len() as u32;
            }
        }
    }
}

fn arrived<'a>(batch: &'a ReceiveBatch, packet: &Accepted) -> Option<Arrived<'a>> {
    let datagram = batch.datagram(packet.datagram as usize)?;
    let payload = datagram
        .bytes
        .get(packet.offset as usize..)?
        .get(..packet.len as usize)?;
    let (source, destination) = (datagram.source, datagram.destination);
    Some(Arrived {
        source,
        destination,
        ip: IpFields {
            identification: packet.identification,
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
            flow_label: datagram.flow_label,
        },
        payload,
    })
}

/// Checks form and ICRC of a packet and gives its queue pair's number and IPv4 identification. Counts
/// those that fail.
fn check(
    monitor: &Monitor,
    datagram: &Coalesced<'_>,
    place: u16,
    packet: &[u8],
    port: u16,
) -> Option<(Qpn, Opcode, u16)> {
    let Ok(bth) = BthPacket::new_checked(packet) else {
        monitor.counters.dropped_malformed.up();
        return None;
    };
    let (source, destination) = (datagram.source, SocketAddr::new(datagram.destination, port));
    let identification = verify(monitor, source, destination, place, packet)?;
    Some((bth.dest_qp(), bth.opcode().ok()?, identification))
}

fn is_one_sided(opcode: Opcode) -> bool {
    opcode.is_request() && !opcode.is_send() && !opcode.has_immdt()
}

/// Checks form and ICRC of a packet; counts it and shows it to the tap. Gives its IPv4 identification, which is most likely
/// its `place` in its datagram: from zero on, the kernel numbers the packets that it cuts one into.
pub(super) fn verify(
    monitor: &Monitor,
    source: SocketAddr,
    destination: SocketAddr,
    place: u16,
    packet: &[u8],
) -> Option<u16> {
    if Packet::parse(packet).is_err() {
        monitor.counters.dropped_malformed.up();
        return None;
    }
    let flow = Flow::between(source, destination)?;
    let Ok(valid) = icrc::verify(&flow, Identification::Guessed(place), packet) else {
        monitor.counters.dropped_icrc.up();
        return None;
    };
    monitor.counters.received_packets.up();
    monitor.counters.received_bytes.add(packet.len());
    if monitor.tap.is_plugged() {
        monitor.tap.packet(&TappedPacket {
            direction: Direction::Received,
            source,
            destination,
            identification: valid.identification,
            traffic_class: 0,
            hop_limit: 0,
            payload: packet,
            time: SystemTime::now(),
        });
    }
    Some(valid.identification)
}

/// Deals with packets for a queue pair that this process does not have. The kernel brings each to the
/// process of its block, but those it coalesced all go where the first one belongs.
#[cold]
fn misdirected<'a>(shared: &Shared, qpn: Qpn, packets: impl Iterator<Item = Arrived<'a>>) {
    let block = Block::of_qpn(qpn.value());
    for arrived in packets {
        match block {
            Some(block) if block != shared.group.block() => {
                shared.monitor.counters.strays.up();
                shared.group.forward(
                    block,
                    Datagram {
                        source: arrived.source,
                        destination: arrived.destination,
                        interface: 0,
                        traffic_class: arrived.ip.traffic_class,
                        hop_limit: arrived.ip.hop_limit,
                        payload: arrived.payload,
                    },
                );
            }
            _ => shared.monitor.counters.dropped_no_queue_pair.up(),
        }
    }
}

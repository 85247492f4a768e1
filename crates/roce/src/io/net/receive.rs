//! Taking packets from a socket: each is parsed once, and its ICRC checked.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::SystemTime;

use portolan_port_sharing::Block;
use portolan_wire::Qpn;
use portolan_wire::icrc::{self, Flow, Identification};
use portolan_wire::rocev2::Packet;

use crate::io::net::counters::Monitor;
use crate::io::net::receive_batch::ReceiveBatch;
use crate::io::net::shm::handshake::Incoming;
use crate::io::net::shm::ring::{Board, Broken};
use crate::io::net::tap::{Direction, TappedPacket, with_icrc};

/// System calls on one socket before others have their turn.
const CALLS_PER_TURN: usize = 4;
/// Records of one ring before others have their turn.
const RECORDS_PER_TURN: usize = 64;
/// A poller whose queue pairs all send by rings looks at the sockets once in so many times.
const LOOKS_AT_RINGS: u32 = 64;

/// Reads sockets; one thread at a time does.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// The UDP port that the sockets are bound to.
    port: u16,
    batch: ReceiveBatch,
    /// Memory for the packets of a batch.
    spare: Vec<Arrived<'static>>,
    /// Rings that processes of this host write to.
    incoming: Vec<Incoming>,
    /// Looks at the rings since the sockets were looked at.
    looks: u32,
}

/// A packet with its addresses. Its form and its ICRC are right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: IpAddr,
    /// Other fields of the IP header.
    pub(crate) ip: IpFields,
    pub(crate) packet: Packet<'a>,
    /// The process that wrote it into a ring; `None` for packets of the network.
    pub(crate) writer: Option<Block>,
}

/// Fields of a packet's IP header that only UD receives show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IpFields {
    /// IPv4 identification, recovered from the ICRC; 0 over IPv6.
    pub(crate) identification: u16,
    /// IPv4 type of service or IPv6 traffic class; 0 if the process has had no UD queue pair.
    pub(crate) traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; likewise.
    pub(crate) hop_limit: u8,
    /// IPv6 flow label; likewise.
    pub(crate) flow_label: u32,
}

/// A UDP datagram's payload with what the socket says of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unchecked<'a> {
    pub(crate) source: SocketAddr,
    /// With the UDP port.
    pub(crate) destination: SocketAddr,
    /// But for the identification, which the ICRC tells.
    pub(crate) ip: IpFields,
    pub(crate) payload: &'a [u8],
}

impl Receiver {
    pub(crate) fn new(port: u16) -> Self {
        Self {
            port,
            batch: ReceiveBatch::new(),
            spare: Vec::new(),
            incoming: Vec::new(),
            looks: 0,
        }
    }

    /// Reads a ring from now on.
    pub(crate) fn add_ring(&mut self, incoming: Incoming) {
        self.incoming.push(incoming);
    }

    /// Reads the ring with that place on the board no more.
    pub(crate) fn remove_ring(&mut self, place: u8) {
        self.incoming
            .retain(|incoming| incoming.reader.place() != place);
    }

    /// Whether the sockets are worth a look though all queue pairs send by rings: a peer may not do so yet.
    pub(crate) fn is_time_for_sockets(&mut self) -> bool {
        self.looks = (self.looks + 1) % LOOKS_AT_RINGS;
        self.looks == 0
    }

    /// Whether the ring with that place on the board has packets.
    pub(crate) fn has_more_from(&self, place: u8) -> bool {
        self.incoming
            .iter()
            .any(|incoming| incoming.reader.place() == place && incoming.reader.has_more())
    }

    /// Whether there is something in a ring.
    pub(crate) fn has_more(&self) -> bool {
        self.incoming
            .iter()
            .any(|incoming| incoming.reader.has_more())
    }

    /// Reads the rings, within bounds, and hands on the valid packets, those of one record at a time; how many records
    /// were taken.
    pub(crate) fn drain_rings(
        &mut self,
        board: &Board,
        monitor: &Monitor,
        mut deliver: impl FnMut(&[Arrived<'_>]),
    ) -> usize {
        let mut taken = 0;
        let port = self.port;
        let mut arrived: Vec<Arrived<'_>> = std::mem::take(&mut self.spare);
        self.incoming.retain_mut(|incoming| {
            let Incoming { reader, bell } = incoming;
            if !reader.has_more() {
                return true;
            }
            let from = reader.from();
            for _ in 0..RECORDS_PER_TURN {
                let record = match reader.read() {
                    Ok(Some(record)) => record,
                    Ok(None) => break,
                    Err(Broken) => {
                        tracing::warn!(?from, "a ring is wrong and is not read any more");
                        return false;
                    }
                };
                taken += 1;
                let mut packets: Vec<Arrived<'_>> = emptied(std::mem::take(&mut arrived));
                for (place, payload) in (0..).zip(record.payload.chunks(record.packet_len)) {
                    let unchecked = Unchecked {
                        source: record.source,
                        destination: SocketAddr::new(record.destination, port),
                        ip: IpFields::default(),
                        payload,
                    };
                    packets.extend(take_from_ring(&unchecked, from, place, monitor));
                }
                let through_memory = &monitor.counters.received_through_memory;
                through_memory.add(packets.len());
                deliver(&packets);
                arrived = emptied(packets);
                if reader.release(board) {
                    bell.ring();
                }
            }
            true
        });
        self.spare = emptied(arrived);
        taken
    }

    /// Reads a socket, within bounds, and hands on the valid packets, those of one system call at a time;
    /// how many datagrams were taken.
    pub(crate) fn drain(
        &mut self,
        socket: BorrowedFd<'_>,
        monitor: &Monitor,
        mut deliver: impl FnMut(&[Arrived<'_>]),
    ) -> usize {
        let mut taken = 0;
        for _ in 0..CALLS_PER_TURN {
            let count = match self.batch.receive(socket) {
                Ok(0) => break,
                Ok(count) => count,
                // ICMP errors do not reach these sockets; whatever it is, the next call tells.
                Err(error) => {
                    tracing::debug!(%error, "recvmmsg");
                    break;
                }
            };
            monitor.counters.receive_calls.up();
            taken += count;
            let mut arrived: Vec<Arrived<'_>> = std::mem::take(&mut self.spare);
            check_batch(&self.batch, count, self.port, monitor, &mut arrived);
            deliver(&arrived);
            self.spare = emptied(arrived);
            if !self.batch.is_full() {
                break;
            }
        }
        taken
    }
}

/// The same memory, whose packets may refer to other bytes the next time.
fn emptied(mut arrived: Vec<Arrived<'_>>) -> Vec<Arrived<'static>> {
    arrived.clear();
    arrived.into_iter().map_while(|_| None).collect()
}

/// Checks each packet of a batch.
fn check_batch<'a>(
    batch: &'a ReceiveBatch,
    count: usize,
    port: u16,
    monitor: &Monitor,
    arrived: &mut Vec<Arrived<'a>>,
) {
    for index in 0..count {
        let Some(datagram) = batch.datagram(index) else {
            monitor.counters.dropped_truncated.up();
            continue;
        };
        let packets = datagram.bytes.chunks(datagram.packet_len);
        for (place, payload) in (0..).zip(packets) {
            let unchecked = Unchecked {
                source: datagram.source,
                destination: SocketAddr::new(datagram.destination, port),
                ip: IpFields {
                    identification: 0,
                    traffic_class: datagram.traffic_class,
                    hop_limit: datagram.hop_limit,
                    flow_label: datagram.flow_label,
                },
                payload,
            };
            // From zero on, the kernel numbers the packets that it cuts a datagram into.
            if let Some(packet) = check(&unchecked, Identification::Guessed(place), monitor) {
                arrived.push(packet);
            }
        }
    }
}

/// Parses a packet and checks its ICRC. Counts it, and shows it to the tap. `identification` is the IPv4 header's,
/// if known.
#[inline]
pub(crate) fn check<'a>(
    unchecked: &Unchecked<'a>,
    identification: Identification,
    monitor: &Monitor,
) -> Option<Arrived<'a>> {
    let Unchecked {
        source,
        destination,
        ip,
        payload,
    } = *unchecked;
    // No flow: source and destination are of different IP versions.
    let (Ok(packet), Some(flow)) = (Packet::parse(payload), Flow::between(source, destination))
    else {
        monitor.counters.dropped_malformed.up();
        return None;
    };
    let Ok(valid) = icrc::verify(&flow, identification, payload) else {
        monitor.counters.dropped_icrc.up();
        return None;
    };
    let ip = IpFields {
        identification: valid.identification,
        ..ip
    };
    monitor.counters.received_packets.up();
    monitor.counters.received_bytes.add(payload.len());
    if monitor.tap.is_plugged() {
        monitor.tap.packet(&TappedPacket {
            direction: Direction::Received,
            source,
            destination,
            identification: ip.identification,
            traffic_class: ip.traffic_class,
            hop_limit: ip.hop_limit,
            payload,
            time: SystemTime::now(),
        });
    }
    Some(Arrived {
        source,
        destination: destination.ip(),
        ip,
        packet,
        writer: None,
    })
}

/// Parses a packet of a ring, which has no ICRC. Counts it, and shows it to the tap as it would be with one.
#[inline]
fn take_from_ring<'a>(
    unchecked: &Unchecked<'a>,
    from: Block,
    place: u16,
    monitor: &Monitor,
) -> Option<Arrived<'a>> {
    let Unchecked {
        source,
        destination,
        ip,
        payload,
    } = *unchecked;
    let Ok(packet) = Packet::parse(payload) else {
        monitor.counters.dropped_malformed.up();
        return None;
    };
    monitor.counters.received_packets.up();
    monitor.counters.received_bytes.add(payload.len());
    if monitor.tap.is_plugged()
        && let Some(flow) = Flow::between(source, destination)
    {
        let identification = if source.is_ipv4() { place } else { 0 };
        monitor.tap.packet(&TappedPacket {
            direction: Direction::Received,
            source,
            destination,
            identification,
            traffic_class: ip.traffic_class,
            hop_limit: ip.hop_limit,
            payload: &with_icrc(&flow, identification, payload),
            time: SystemTime::now(),
        });
    }
    Some(Arrived {
        source,
        destination: destination.ip(),
        ip,
        packet,
        writer: Some(from),
    })
}

impl Arrived<'_> {
    /// The queue pair that it is for.
    #[inline]
    pub(crate) fn dest_qp(&self) -> Qpn {
        self.packet.bth().dest_qp
    }

    /// Whether it belongs to a one-sided request: a write without immediate data, a read, an atomic.
    #[inline]
    pub(crate) fn is_one_sided(&self) -> bool {
        let opcode = self.packet.bth().opcode;
        opcode.is_request() && !opcode.is_send() && !opcode.has_immdt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_for_packets_is_kept() {
        let arrived = Vec::with_capacity(100);
        let memory = arrived.as_ptr();
        let kept = emptied(arrived);
        assert_eq!((kept.as_ptr(), kept.capacity()), (memory, 100));
    }

    #[test]
    fn every_dropped_packet_is_counted() {
        let monitor = Monitor::default();
        let (v4, v6) = ("10.0.0.1:4791", "[2001:db8::1]:4791");
        let good_form = [
            0x04, 0, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        for (source, payload) in [(v4, &[][..]), (v6, &good_form[..]), (v4, &good_form[..])] {
            let unchecked = Unchecked {
                source: source.parse().unwrap(),
                destination: v4.parse().unwrap(),
                ip: IpFields::default(),
                payload,
            };
            assert!(check(&unchecked, Identification::Guessed(0), &monitor).is_none());
        }
        let counters = monitor.counters.read();
        assert_eq!((counters.dropped_malformed, counters.dropped_icrc), (2, 1));
    }
}

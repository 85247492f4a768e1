//! Receives packets from sockets and rings. Each packet is parsed once, and its ICRC is checked.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::SystemTime;

use portolan_port_sharing::Block;
use portolan_wire::Qpn;
use portolan_wire::icrc::{self, Flow, Identification};
use portolan_wire::rocev2::{ICRC_LEN, Packet};

use crate::engine::Compact;
use crate::io::net::counters::Monitor;
use crate::io::net::path::Path;
use crate::io::net::receive_batch::ReceiveBatch;
use crate::io::net::shm::handshake::Incoming;
use crate::io::net::shm::head_page::HeadPage;
use crate::io::net::shm::pull::{Asker, Pull};
use crate::io::net::shm::ring::{Broken, RECORDS_MAX, Reader, Records};
use crate::io::net::tap::{Direction, TappedPacket, with_icrc};
use crate::io::polling::socket_turns::SocketTurns;

/// System calls on one socket in one turn.
const CALLS_PER_TURN: usize = 4;
/// Batches of records read from one ring in one turn.
const BATCHES_PER_TURN: usize = 2;
/// How often a poll looks at rings that are empty.
const LOOKS_PER_POLL: usize = 8;
/// Rounds of looks before a poll that expects an answer reads the rings.
const LONG_LOOKS: usize = 6;

/// Reads the sockets and rings. One thread at a time uses it.
#[derive(Debug)]
pub(crate) struct Receiver<Q> {
    /// The UDP port that the sockets are bound to.
    port: u16,
    batch: ReceiveBatch,
    /// Reused memory for the packets of a batch.
    spare: Vec<Arrived<'static>>,
    /// Memory for the records of a batch.
    records: Records,
    /// The rings of other processes of this host.
    incoming: Vec<Incoming>,
    /// When pollers read the sockets.
    pub(crate) sockets: SocketTurns,
    /// The queue pair of the last record in the short form: the next one is probably for it, too.
    recent: Option<Arc<Q>>,
}

/// A valid packet with its addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: IpAddr,
    /// Other fields of the IP header.
    pub(crate) ip: IpFields,
    pub(crate) packet: Packet<'a>,
    /// The process that wrote the packet to a ring; `None` for a packet from the network.
    pub(crate) writer: Option<Block>,
}

/// Fields of a packet's IP header that only UD receives report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IpFields {
    /// IPv4 identification, recovered from the ICRC; 0 over IPv6.
    pub(crate) identification: u16,
    /// IPv4 type of service or IPv6 traffic class; 0 if the process has had no UD queue pair.
    pub(crate) traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; 0 as above.
    pub(crate) hop_limit: u8,
    /// IPv6 flow label; 0 as above.
    pub(crate) flow_label: u32,
}

/// A UDP datagram's payload with what the socket reports about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unchecked<'a> {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    /// The identification is 0; only the ICRC reveals it.
    pub(crate) ip: IpFields,
    pub(crate) payload: &'a [u8],
}

/// Takes what arrives in rings.
pub(crate) trait RingSink<Q> {
    /// Takes packets.
    fn packets(&mut self, arrived: &[Arrived<'_>]);

    /// Takes a record in the short form from a process. Its payload is at an address in the ring until this returns.
    /// The other process may change it meanwhile. `recent` is the queue pair of the record before, and then of this
    /// one.
    fn compact(
        &mut self,
        from: Block,
        compact: &Compact,
        payload: u64,
        recent: &mut Option<Arc<Q>>,
    ) -> Handled;

    /// Takes a record about a write that is pulled.
    fn pull(&mut self, from: Block, pull: &Pull, asker: &Asker);
}

/// What became of a record in the short form.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handled {
    Done,
    /// It was not for this process's queue pairs, and is counted as dropped.
    Dropped,
    /// The packets that the rest of it stands for, which use this path, must be handled instead.
    NeedsPackets(Path, Compact),
}

impl<Q> Receiver<Q> {
    pub(crate) fn new(port: u16) -> Self {
        Self {
            port,
            batch: ReceiveBatch::new(),
            spare: Vec::new(),
            records: Records::default(),
            incoming: Vec::new(),
            sockets: SocketTurns::default(),
            recent: None,
        }
    }

    /// Forgets the queue pair of the last record.
    pub(crate) fn forget_recent(&mut self) {
        self.recent = None;
    }

    /// Adds a ring to be read.
    pub(crate) fn add_ring(&mut self, incoming: Incoming) {
        self.incoming.push(incoming);
    }

    /// Removes the ring with that place on the head page.
    pub(crate) fn remove_ring(&mut self, place: u8) {
        self.incoming
            .retain(|incoming| incoming.reader.place() != place);
    }

    /// Whether the ring with that place on the head page has packets.
    pub(crate) fn has_more_from(&self, place: u8) -> bool {
        self.incoming
            .iter()
            .any(|incoming| incoming.reader.place() == place && incoming.reader.has_more())
    }

    /// Whether a ring has its first packets. Says so once for each ring. [`Self::drain_rings`] skips the ring until then, so that
    /// the caller can read the sockets first, where earlier packets of the same sender may wait.
    #[inline]
    pub(crate) fn begins_ring(&mut self) -> bool {
        let mut begins = false;
        for incoming in &mut self.incoming {
            if incoming.is_new && incoming.reader.has_more() {
                incoming.is_new = false;
                begins = true;
            }
        }
        begins
    }

    /// Frees the room of what a thread had read when it panicked. The writers take the reader for busy until then, and do not
    /// wake it.
    pub(crate) fn release_rings(&self, head_page: &HeadPage) {
        for incoming in &self.incoming {
            if incoming.reader.release(head_page) {
                incoming.bell.ring();
            }
        }
    }

    /// Whether any ring has packets.
    pub(crate) fn has_more(&self) -> bool {
        self.incoming
            .iter()
            .any(|incoming| incoming.reader.has_more())
    }

    /// Looks at the rings until one has packets, for a fraction of a microsecond. A caller that comes again and again looks
    /// only for a part of its time otherwise.
    #[inline]
    pub(crate) fn await_more(&self) {
        if self.incoming.is_empty() {
            return;
        }
        for _ in 0..LONG_LOOKS {
            if self.finds_more() {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Reads the rings, within bounds. Delivers records in the short form one by one, and the valid packets of several
    /// other records at a time. Returns the number of records.
    pub(crate) fn drain_rings(
        &mut self,
        head_page: &HeadPage,
        monitor: &Monitor,
        sink: &mut impl RingSink<Q>,
    ) -> usize {
        if !self.finds_more() {
            return 0;
        }
        self.sockets.rings_had_packets();
        let mut taken = 0;
        let mut at = 0;
        while let Some(incoming) = self.incoming.get_mut(at) {
            if incoming.is_new {
                at += 1;
                continue;
            }
            let mut result = Ok(());
            for _ in 0..BATCHES_PER_TURN {
                if !incoming.reader.has_more() {
                    break;
                }
                let (reader, asker) = (&mut incoming.reader, &incoming.asker);
                let recent = &mut self.recent;
                let (count, ended) = drain_compact(reader, asker, recent, self.port, monitor, sink);
                taken += count;
                result = ended;
                if result.is_ok() && reader.has_more() {
                    let (records, spare) = (&mut self.records, &mut self.spare);
                    result = reader.read(records);
                    // The records are copies, so their room can be freed before they are handled.
                    if reader.release(head_page) {
                        incoming.bell.ring();
                    }
                    taken += records.len();
                    let from = reader.from();
                    deliver_records(records, spare, from, self.port, monitor, sink);
                } else if reader.release(head_page) {
                    incoming.bell.ring();
                }
                if result.is_err() {
                    break;
                }
            }
            if result.is_err() {
                let from = incoming.reader.from();
                tracing::warn!(?from, "a ring is wrong and is not read any more");
                self.incoming.remove(at);
            } else {
                at += 1;
            }
        }
        taken
    }

    /// Whether any ring has packets. Looks several times: that costs less than another call, and packets that arrive
    /// meanwhile are found sooner.
    #[inline]
    fn finds_more(&self) -> bool {
        for look in 0..LOOKS_PER_POLL {
            if self.has_more() {
                return true;
            }
            if look == LOOKS_PER_POLL / 2 {
                // Another thread of the same core gets on faster meanwhile. It may be the one that answers.
                std::hint::spin_loop();
            }
        }
        false
    }

    /// Reads a socket, within bounds, and delivers the valid packets of one system call at a time. Returns the number
    /// of datagrams.
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
                // These sockets get no ICMP errors. For any other error, the next call reports again.
                Err(error) => {
                    tracing::debug!(%error, "recvmmsg");
                    break;
                }
            };
            monitor.counters.receive_calls.up();
            self.sockets.had_packets();
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

/// Delivers records in the short form, within bounds. Returns their number.
fn drain_compact<Q>(
    reader: &mut Reader,
    asker: &Asker,
    recent: &mut Option<Arc<Q>>,
    port: u16,
    monitor: &Monitor,
    sink: &mut impl RingSink<Q>,
) -> (usize, Result<(), Broken>) {
    let (mut count, mut packets, mut bytes) = (0, 0, 0);
    let mut result = Ok(());
    while count < RECORDS_MAX && reader.has_more() {
        let record = match reader.compact() {
            Ok(Some(record)) => record,
            Ok(None) => match reader.pull() {
                // It neither copies this process's memory nor is copied from.
                Ok(Some(_)) if !asker.is_trusted_with_memory() => {
                    result = Err(Broken);
                    break;
                }
                Ok(Some(pull)) => {
                    count += 1;
                    sink.pull(reader.from(), &pull, asker);
                    continue;
                }
                Ok(None) => break,
                Err(Broken) => {
                    result = Err(Broken);
                    break;
                }
            },
            Err(Broken) => {
                result = Err(Broken);
                break;
            }
        };
        if record.compact.has_placed_bytes() && !asker.is_trusted_with_memory() {
            // It cannot have written them.
            result = Err(Broken);
            break;
        }
        count += 1;
        // A panic must not repeat the record. Its room is not freed yet, so the payload stays.
        reader.pass(&record);
        let (compact, payload) = (&record.compact, reader.addr_of(&record));
        match sink.compact(reader.from(), compact, payload, recent) {
            Handled::Done => {
                let (these, their_bytes) = compact.traffic();
                packets += these;
                bytes += their_bytes;
            }
            Handled::Dropped => {}
            Handled::NeedsPackets(path, left) => {
                let (all, left_of_all) = (compact.traffic(), left.traffic());
                packets += all.0 - left_of_all.0;
                bytes += all.1 - left_of_all.1;
                let payload = reader.payload_of(&record);
                deliver_packets(&left, &payload, reader.from(), &path, port, monitor, sink);
            }
        }
    }
    if packets > 0 {
        monitor.from_rings.add(packets, bytes);
    }
    (count, result)
}

/// Delivers the valid packets of copied records.
fn deliver_records<Q>(
    records: &mut Records,
    spare: &mut Vec<Arrived<'static>>,
    from: Block,
    port: u16,
    monitor: &Monitor,
    sink: &mut impl RingSink<Q>,
) {
    // A panic while they are handled must not deliver them again.
    let taken = std::mem::take(records);
    let mut packets: Vec<Arrived<'_>> = emptied(std::mem::take(spare));
    for record in taken.iter() {
        let head = &record.head;
        for (place, payload) in (0..).zip(record.payload.chunks(head.packet_len)) {
            let unchecked = Unchecked {
                source: head.source,
                destination: SocketAddr::new(head.destination, port),
                ip: IpFields {
                    traffic_class: head.traffic_class,
                    hop_limit: head.hop_limit,
                    ..IpFields::default()
                },
                payload,
            };
            packets.extend(take_from_ring(&unchecked, from, place, monitor));
        }
    }
    count_from_ring(&packets, monitor);
    sink.packets(&packets);
    *spare = emptied(packets);
    *records = taken;
}

/// Delivers the packets that a record in the short form stands for.
#[cold]
fn deliver_packets<Q>(
    compact: &Compact,
    payload: &[u8],
    from: Block,
    path: &Path,
    port: u16,
    monitor: &Monitor,
    sink: &mut impl RingSink<Q>,
) {
    let both = [
        (compact.ack_headers(), &[][..]),
        (compact.send_headers(), payload),
    ];
    for (headers, payload) in both {
        let Some(headers) = headers else { continue };
        let tail_len = usize::from(headers.bth.pad_count) + ICRC_LEN;
        let mut packet = vec![0; headers.len() + payload.len() + tail_len];
        let written = headers.emit(&mut packet).unwrap_or_default();
        if let Some(place) = packet.get_mut(written..written + payload.len()) {
            place.copy_from_slice(payload);
        }
        let unchecked = Unchecked {
            source: SocketAddr::new(path.remote.ip(), compact.source_port),
            destination: SocketAddr::new(path.local, port),
            ip: IpFields::default(),
            payload: &packet,
        };
        if let Some(arrived) = take_from_ring(&unchecked, from, 0, monitor) {
            count_from_ring(&[arrived], monitor);
            sink.packets(&[arrived]);
        }
    }
}

/// Empties the vector to reuse its memory with another lifetime.
fn emptied(mut arrived: Vec<Arrived<'_>>) -> Vec<Arrived<'static>> {
    arrived.clear();
    arrived.into_iter().map_while(|_| None).collect()
}

/// Parses and checks the packets of a batch.
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
            // The kernel numbers the packets that it cuts from one datagram, starting at zero.
            if let Some(packet) = check(&unchecked, Identification::Guessed(place), monitor) {
                arrived.push(packet);
            }
        }
    }
}

/// Parses a packet and checks its ICRC. Counts it, and shows it to the tap. `identification` is the IPv4 header's, if
/// known.
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
    // There is no flow if source and destination are of different IP versions.
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

/// Counts the packets of a batch.
fn count_from_ring(packets: &[Arrived<'_>], monitor: &Monitor) {
    let bytes = packets
        .iter()
        .map(|arrived| arrived.packet.as_bytes().len());
    monitor.from_rings.add(packets.len(), bytes.sum());
}

/// Parses a packet from a ring, which has no ICRC. Shows it to the tap with the ICRC that it would have.
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
    #[inline]
    pub(crate) fn dest_qp(&self) -> Qpn {
        self.packet.bth().dest_qp
    }

    /// Whether it belongs to a one-sided request: a write without immediate data, a read or an atomic.
    #[inline]
    pub(crate) fn is_one_sided(&self) -> bool {
        let opcode = self.packet.bth().opcode;
        opcode.is_request() && !opcode.is_send() && !opcode.has_immdt()
    }
}

#[cfg(test)]
#[path = "receive_tests.rs"]
mod tests;

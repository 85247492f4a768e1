//! Reads a ring of another process of this host: passes on records in the short form, and the packets of other records.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use portolan_port_sharing::Block;
use portolan_wire::eth::{AtomicAckEthRepr, AtomicEthRepr};
use portolan_wire::icrc::Flow;
use portolan_wire::rocev2::{ICRC_LEN, Packet};

use crate::engine::{Compact, CompactWords};
use crate::io::net::arrived::{Arrived, IpFields, Unchecked, emptied};
use crate::io::net::counters::Monitor;
use crate::io::net::path::Path;
use crate::io::net::shm::handshake::Incoming;
use crate::io::net::shm::head_page::HeadPage;
use crate::io::net::shm::pull::{Asker, Pull};
use crate::io::net::shm::ring::{Broken, CompactRecord, Next, RECORDS_MAX, Reader, Records};
use crate::io::net::tap::{Direction, TappedPacket, with_icrc};

/// Batches of records read from one ring in one turn.
const BATCHES_PER_TURN: usize = 2;

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
        compact: &CompactWords,
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

/// What is the same for all rings.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    /// The UDP port of all packets.
    pub(super) port: u16,
    pub(super) head_page: &'a HeadPage,
    pub(super) monitor: &'a Monitor,
}

/// What is kept from one turn to the next.
#[derive(Debug)]
pub(super) struct Kept<Q> {
    /// Memory for the packets of a batch.
    pub(super) spare: Vec<Arrived<'static>>,
    /// Memory for the records of a batch.
    records: Records,
    /// The queue pair of the last record in the short form: the next one is probably for it, too.
    pub(super) recent: Option<Arc<Q>>,
}

impl<Q> Kept<Q> {
    pub(super) fn new() -> Self {
        Self {
            spare: Vec::new(),
            records: Records::default(),
            recent: None,
        }
    }
}

/// What follows the records in the short form that were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// Nothing yet.
    Nothing,
    /// Packets.
    Packets,
    /// It was not looked at.
    Unknown,
}

impl Reading<'_> {
    /// Takes the records of one ring, within bounds. Returns their number.
    ///
    /// # Errors
    /// The writer violated the protocol. What it wrote before is taken.
    pub(super) fn drain<Q>(
        &self,
        incoming: &mut Incoming,
        kept: &mut Kept<Q>,
        sink: &mut impl RingSink<Q>,
    ) -> (usize, Result<(), Broken>) {
        let mut taken = 0;
        for _ in 0..BATCHES_PER_TURN {
            let (reader, asker) = (&mut incoming.reader, &incoming.asker);
            let (count, rest) = self.drain_compact(reader, asker, &mut kept.recent, sink);
            taken += count;
            match rest {
                Ok(Rest::Packets) => {
                    let (count, result) = self.drain_packets(incoming, kept, sink);
                    taken += count;
                    if result.is_err() {
                        return (taken, result);
                    }
                }
                // Nothing was read that could be freed. A release would stop the processor for its fence.
                Ok(Rest::Nothing) if count == 0 => break,
                Ok(Rest::Unknown) => self.release(incoming),
                Ok(Rest::Nothing) | Err(Broken) => {
                    self.release(incoming);
                    return (taken, rest.map(|_| ()));
                }
            }
        }
        (taken, Ok(()))
    }

    #[inline]
    fn release(&self, incoming: &mut Incoming) {
        if incoming.reader.release(self.head_page) {
            incoming.bell.ring();
        }
    }

    #[inline(never)]
    fn drain_packets<Q>(
        &self,
        incoming: &mut Incoming,
        kept: &mut Kept<Q>,
        sink: &mut impl RingSink<Q>,
    ) -> (usize, Result<(), Broken>) {
        let result = incoming.reader.read(&mut kept.records);
        // The records are copies, so their room can be freed before they are handled.
        self.release(incoming);
        let from = incoming.reader.from();
        let count = kept.records.len();
        let (records, spare) = (&mut kept.records, &mut kept.spare);
        deliver_records(records, spare, from, self.port, self.monitor, sink);
        (count, result)
    }

    /// Delivers records in the short form, within bounds. Returns their number, and what follows.
    #[inline]
    fn drain_compact<Q>(
        &self,
        reader: &mut Reader,
        asker: &Asker,
        recent: &mut Option<Arc<Q>>,
        sink: &mut impl RingSink<Q>,
    ) -> (usize, Result<Rest, Broken>) {
        let (mut count, mut packets, mut bytes) = (0, 0, 0);
        let rest = loop {
            if count == RECORDS_MAX {
                break Ok(Rest::Unknown);
            }
            match reader.next() {
                Ok(Next::Compact) => {}
                Ok(Next::Nothing) => break Ok(Rest::Nothing),
                Ok(Next::Packets) => break Ok(Rest::Packets),
                Ok(Next::Pull) => match take_pull(reader, asker, sink) {
                    Ok(()) => {
                        count += 1;
                        continue;
                    }
                    Err(Broken) => break Err(Broken),
                },
                Err(Broken) => break Err(Broken),
            }
            let Ok(record) = reader.compact() else {
                break Err(Broken);
            };
            if record.compact.has_placed_bytes() && !asker.is_trusted_with_memory() {
                // It cannot have written them.
                break Err(Broken);
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
                    self.deliver_packets(&left, reader, &record, &path, sink);
                }
            }
        };
        if packets > 0 {
            self.monitor.from_rings.add(packets, bytes);
        }
        (count, rest)
    }

    /// Delivers the packets that a record in the short form stands for.
    #[cold]
    fn deliver_packets<Q>(
        &self,
        compact: &Compact,
        reader: &Reader,
        record: &CompactRecord,
        path: &Path,
        sink: &mut impl RingSink<Q>,
    ) {
        let (port, monitor, from) = (self.port, self.monitor, reader.from());
        let payload = &*reader.payload_of(record);
        let of_atomic = AtomicEthRepr::parse(payload)
            .ok()
            .and_then(|operands| compact.atomic_headers(&operands));
        let of_answer = AtomicAckEthRepr::parse(payload)
            .ok()
            .and_then(|value| compact.atomic_ack_headers(&value));
        let nothing = &[][..];
        let all = [
            (compact.ack_headers(), nothing),
            (compact.send_headers(), payload),
            (of_atomic, nothing),
            (of_answer, nothing),
        ];
        for (headers, payload) in all {
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

/// Takes a record about a write that is pulled.
#[inline(never)]
fn take_pull<Q>(
    reader: &mut Reader,
    asker: &Asker,
    sink: &mut impl RingSink<Q>,
) -> Result<(), Broken> {
    if !asker.is_trusted_with_memory() {
        // It neither copies this process's memory nor is copied from.
        return Err(Broken);
    }
    if let Some(pull) = reader.pull()? {
        sink.pull(reader.from(), &pull, asker);
    }
    Ok(())
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

#[cfg(test)]
#[path = "read_ring_tests.rs"]
mod tests;

//! Receives packets from sockets and rings. Each packet is parsed once, and its ICRC is checked. How a ring is read:
//! [`read_ring`](super::read_ring).

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use portolan_threads::fence;
use portolan_wire::icrc::{self, Flow, Identification};
use portolan_wire::rocev2::Packet;

use crate::io::net::arrived::{Arrived, IpFields, Unchecked, emptied};
use crate::io::net::counters::Monitor;
use crate::io::net::read_ring::{Kept, Reading, RingSink};
use crate::io::net::receive_batch::ReceiveBatch;
use crate::io::net::shm::handshake::Incoming;
use crate::io::net::shm::head_page::HeadPage;
use crate::io::net::tap::{Direction, TappedPacket};
use crate::io::polling::socket_turns::SocketTurns;

/// System calls on one socket in one turn.
const CALLS_PER_TURN: usize = 4;
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
    /// The rings of other processes of this host.
    incoming: Vec<Incoming>,
    /// Whether nothing of some ring has been read.
    has_new: bool,
    /// When pollers read the sockets.
    pub(crate) sockets: SocketTurns,
    kept: Kept<Q>,
}

impl<Q> Receiver<Q> {
    pub(crate) fn new(port: u16) -> Self {
        Self {
            port,
            batch: ReceiveBatch::new(),
            incoming: Vec::new(),
            has_new: false,
            sockets: SocketTurns::default(),
            kept: Kept::new(),
        }
    }

    /// Forgets the queue pair of the last record.
    pub(crate) fn forget_recent(&mut self) {
        self.kept.recent = None;
    }

    /// Adds a ring to be read.
    pub(crate) fn add_ring(&mut self, incoming: Incoming) {
        self.has_new |= incoming.is_new;
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
        self.has_new && self.begins_new()
    }

    #[cold]
    fn begins_new(&mut self) -> bool {
        let (mut begins, mut has_new) = (false, false);
        for incoming in self.incoming.iter_mut().filter(|incoming| incoming.is_new) {
            incoming.is_new = !incoming.reader.has_more();
            has_new |= incoming.is_new;
            begins |= !incoming.is_new;
        }
        self.has_new = has_new;
        begins
    }

    /// Frees the room of what a thread had read when it panicked. The writers take the reader for busy until then, and do not
    /// wake it. The caller then looks at the rings again, after a fence.
    pub(crate) fn release_rings(&mut self, head_page: &HeadPage) {
        for incoming in &mut self.incoming {
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

    /// As [`has_more`](Self::has_more), for a thread that has announced that it sleeps. Another one may have read the rings
    /// before, whose writers must see how far when they see the announcement ([`Head::show`](super::shm::cursor::Head::show)).
    pub(crate) fn has_more_before_sleep(&self) -> bool {
        fence(Ordering::SeqCst);
        self.has_more()
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
        let reading = Reading {
            port: self.port,
            head_page,
            monitor,
        };
        let (mut taken, mut at) = (0, 0);
        while let Some(incoming) = self.incoming.get_mut(at) {
            at += 1;
            if !incoming.is_new {
                let (count, result) = reading.drain(incoming, &mut self.kept, sink);
                taken += count;
                if result.is_err() {
                    at -= 1;
                    self.forget_broken(at);
                }
            }
        }
        taken
    }

    #[cold]
    fn forget_broken(&mut self, at: usize) {
        let from = self.incoming.remove(at).reader.from();
        tracing::warn!(?from, "a ring is wrong and is not read any more");
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
            let mut arrived: Vec<Arrived<'_>> = std::mem::take(&mut self.kept.spare);
            check_batch(&self.batch, count, self.port, monitor, &mut arrived);
            deliver(&arrived);
            self.kept.spare = emptied(arrived);
            if !self.batch.is_full() {
                break;
            }
        }
        taken
    }
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

#[cfg(test)]
#[path = "receive_tests.rs"]
mod tests;

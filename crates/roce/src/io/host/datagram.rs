//! Sends and receives datagrams of UD queue pairs. Each packet has its own path and is received with its network
//! header.

#![allow(
    unsafe_code,
    reason = "places what arrived in registered memory, and vouches for what is sent"
)]

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_port_sharing::Block;
use portolan_provider::verbs::NetworkHeader;
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::Qpn;
use portolan_wire::eth::GrhRepr;
use portolan_wire::ip::{Ipv4Repr, Ipv6Repr, PROTOCOL_UDP, UdpRepr};

use crate::engine::MemoryTable;
use crate::io::host::Host;
use crate::io::host::datagram_memory;
use crate::io::host::datagram_wait::Full;
use crate::io::host::queue_pair::{LockedQp, QpCore};
use crate::io::host::stage::{stage, with_batch};
use crate::io::net::arrived::Arrived;
use crate::io::net::path::Path;
use crate::io::net::receive_batch;
use crate::io::net::send_batch::{PACKET_LEN_MAX, SendBatch};
use crate::io::net::sockopt::IpVersion;
use crate::io::net::transmit::{Room, SendSocket, Turn};

impl Host {
    /// Passes datagrams to a UD queue pair, in order: its own and those of its multicast groups. UD sends no answer.
    pub(crate) fn receive_datagrams(&self, qp: &QpCore, packets: &[Arrived<'_>]) {
        let counters = &self.monitor.counters;
        let mut state = qp.lock();
        if state.closed || !state.takes_datagrams {
            counters.dropped_no_queue_pair.add(packets.len());
            return;
        }
        let now = self.clock.now();
        let memory = self.memory.read();
        for arrived in packets {
            let packet = &arrived.packet;
            let is_group = arrived.destination.is_multicast();
            if is_group && is_from(arrived, qp) {
                continue;
            }
            if !is_from_its_writer(arrived) {
                counters.dropped_spoofed.up();
                continue;
            }
            // A unicast datagram must be addressed to the queue pair's device (IBTA 9.6.1).
            if !is_group && qp.device.gid_index(arrived.destination).is_none() {
                counters.dropped_spoofed.up();
                continue;
            }
            let network = match arrived.destination.to_canonical() {
                IpAddr::V4(_) => NetworkHeader::V4,
                IpAddr::V6(_) => NetworkHeader::V6,
            };
            state.engine.handle_datagram(now, &memory, packet, network);
            let header = network_header(arrived);
            let engine = &mut state.engine;
            let pieces = std::iter::from_fn(|| {
                let (placement, source) = match engine.poll_grh_placement() {
                    Some(placement) => (placement, &header[..]),
                    None => (engine.poll_placement()?, packet.payload()),
                };
                let bytes = source.get(placement.source_range).unwrap_or_default();
                Some((placement.addr, bytes))
            });
            // SAFETY: the engine checked the ranges against `memory` in the call above, and the table has
            // been locked since.
            unsafe { datagram_memory::place(pieces) };
        }
        drop(memory);
        self.report(qp, &mut state);
    }

    /// Sends what a UD queue pair has queued. Consecutive packets to the same queue pair are sent together.
    pub(crate) fn transmit_datagrams(
        &self,
        qp: &QpCore,
        state: &mut LockedQp,
        now: Duration,
        memory: &MemoryTable,
    ) {
        if self.waits_with_datagrams(qp, state, now) {
            return;
        }
        // Datagrams of one queue pair through sockets stay in order across both IP versions: a full socket of either version
        // stops all.
        for version in [IpVersion::V4, IpVersion::V6] {
            if let Some(socket) = self.transmitter.socket(version, qp.qpn)
                && socket.is_full()
                && (state.deferred || socket.defers(qp.qpn, Turn::Missed).is_some())
            {
                state.deferred = true;
                return;
            }
        }
        with_batch(|batch| {
            let mut staged: Option<Staged> = None;
            loop {
                let next = state.engine.next_destination();
                let (link, waits) = match next.map(|next| (next.path, next.qpn)) {
                    Some((path, to)) => self.link_of_datagram(qp, state, (&path, to), now),
                    None => (None, false),
                };
                if waits {
                    break;
                }
                let Some(transmit) = state.engine.poll_transmit(now, memory, PACKET_LEN_MAX) else {
                    break;
                };
                let Some(path) = transmit.path else { continue };
                let to = transmit.headers.bth.dest_qp;
                let outlet = Staged { path, to, link };
                let Some(socket) = self.outlet(qp, &outlet) else {
                    self.monitor.counters.send_refused.up();
                    continue;
                };
                let flow = match socket.is_ring() {
                    true => None,
                    false => path.flow(socket.port()),
                };
                if flow.is_none() && !socket.is_ring() {
                    self.monitor.counters.send_refused.up();
                    continue;
                }
                // A batch has one destination address and one socket or ring; the kernel's segments have one queue pair.
                let full = match &staged {
                    Some(before) if !before.shares_a_batch_with(&outlet) => {
                        self.send_batch(qp, batch, before)
                    }
                    _ => None,
                };
                let is_same = staged.as_ref().is_some_and(|before| before.to == to);
                let coalesce = socket.coalesces() && is_same && to != Qpn::MULTICAST;
                // SAFETY: the engine checked the segments against `memory` in the call above, and the
                // table is locked while the reference to it exists.
                unsafe { stage(batch, &transmit, flow.as_ref(), coalesce) };
                // One that waits for the ring's reader is enough.
                let is_last = !batch.has_room(1) || (socket.is_ring() && socket.is_full());
                let full = match is_last {
                    true => self.send_batch(qp, batch, &outlet).or(full),
                    false => full,
                };
                staged = Some(outlet);
                if full.is_some_and(|full| full.defers(qp, state, now)) {
                    break;
                }
            }
            if let Some(last) = &staged
                && !batch.is_empty()
                && let Some(full) = self.send_batch(qp, batch, last)
            {
                full.defers(qp, state, now);
            }
            if state.datagram_wait.is_some() {
                // Nothing fits into no bytes: this completes what was sent.
                let none = state.engine.poll_transmit(now, memory, 0);
                debug_assert!(none.is_none());
            }
        });
    }

    /// The socket of a datagram, or its ring.
    fn outlet<'a>(&'a self, qp: &QpCore, staged: &'a Staged) -> Option<&'a SendSocket> {
        let link = staged.link.as_deref();
        link.or_else(|| self.socket_of_datagram(qp, &staged.path))
    }

    fn socket_of_datagram(&self, qp: &QpCore, path: &Path) -> Option<&SendSocket> {
        self.transmitter.socket(IpVersion::of(path.local), qp.qpn)
    }

    /// Sends the staged datagrams. Returns what is full, if the queue pair should wait for it. The datagrams that did not fit
    /// wait there, and those beyond a limit are dropped.
    fn send_batch(&self, qp: &QpCore, batch: &mut SendBatch, staged: &Staged) -> Option<Full<'_>> {
        let outlet = self.outlet(qp, staged)?;
        let room = outlet.send(batch, &staged.path, &self.monitor);
        if room == Room::JustFilled {
            self.progress.watch_for_room(&self.transmitter, outlet);
        }
        match (room, &staged.link) {
            (Room::Left, _) => None,
            (_, Some(ring)) => {
                let is_waited_for = ring.is_trusted() && !ring.is_stalled();
                is_waited_for.then(|| Full::Ring(Arc::clone(ring)))
            }
            (_, None) => self.socket_of_datagram(qp, &staged.path).map(Full::Socket),
        }
    }

    /// Makes the sockets report the IP fields that a receive's network header needs.
    pub(crate) fn tell_ip_fields(&self) -> Result<()> {
        for socket in self.group.sockets() {
            let told = receive_batch::tell_ip_fields(socket.as_fd(), socket.family().into());
            told.map_err(|error| {
                let (call, errno) = ("setsockopt", error.raw_os_error().unwrap_or(0));
                Error::new(Step::CreateQp, Cause::Os { call, errno })
            })?;
        }
        Ok(())
    }

    /// Records whether a UD queue pair accepts datagrams. They can arrive over either IP version.
    pub(crate) fn take_datagrams(&self, state: &mut LockedQp, takes: bool) {
        if !takes {
            state.datagram_wait = None;
        }
        if std::mem::replace(&mut state.takes_datagrams, takes) == takes {
            return;
        }
        let [v4, v6] =
            [IpVersion::V4, IpVersion::V6].map(|version| self.progress.connected(version));
        for count in [v4, v6, self.progress.by_sockets()] {
            match takes {
                true => count.fetch_add(1, Ordering::Relaxed),
                false => count.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }
}

/// Where datagrams in a batch go.
struct Staged {
    path: Path,
    to: Qpn,
    link: Option<Arc<SendSocket>>,
}

impl Staged {
    fn shares_a_batch_with(&self, other: &Self) -> bool {
        let link_of = |staged: &Self| staged.link.as_ref().map(Arc::as_ptr);
        link_of(self) == link_of(other) && self.path == other.path
    }
}

/// Whether a datagram in a ring is for one queue pair, and has the number of one of the process that wrote it. True for one
/// from the network.
fn is_from_its_writer(arrived: &Arrived<'_>) -> bool {
    let Some(writer) = arrived.writer else {
        return true;
    };
    let number = arrived.packet.deth().map(|deth| deth.src_qp.value());
    let is_one_version = arrived.source.is_ipv4() == arrived.destination.is_ipv4();
    number.and_then(Block::of_qpn) == Some(writer)
        && is_one_version
        && !arrived.destination.is_multicast()
}

/// Whether the multicast datagram was sent by `qp` itself.
fn is_from(arrived: &Arrived<'_>, qp: &QpCore) -> bool {
    arrived
        .packet
        .deth()
        .is_some_and(|deth| deth.src_qp == qp.qpn)
        && qp.device.gid_index(arrived.source.ip()).is_some()
}

/// Builds the network header of a datagram: the 40 bytes before its data. They contain the IPv6 header, or the IPv4
/// header in the last 20 bytes (IBTA annex A17; Linux `union rdma_network_hdr`).
///
/// The socket reports only these fields. The others have RoCEv2's values: UDP, no options, don't fragment.
fn network_header(arrived: &Arrived<'_>) -> [u8; GrhRepr::LEN] {
    let mut area = [0; GrhRepr::LEN];
    let (payload_len, ip) = (UdpRepr::LEN + arrived.packet.as_bytes().len(), &arrived.ip);
    let (source, destination) = (
        arrived.source.ip().to_canonical(),
        arrived.destination.to_canonical(),
    );
    let written = match (source, destination) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let header = Ipv4Repr {
                tos: ip.traffic_class,
                header_len: Ipv4Repr::LEN,
                payload_len,
                identification: ip.identification,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                ttl: ip.hop_limit,
                protocol: PROTOCOL_UDP,
                src,
                dst,
            };
            let (_, last) = area.split_at_mut(GrhRepr::LEN - Ipv4Repr::LEN);
            header.emit(last)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = Ipv6Repr {
                traffic_class: ip.traffic_class,
                flow_label: ip.flow_label,
                payload_len,
                next_header: PROTOCOL_UDP,
                hop_limit: ip.hop_limit,
                src,
                dst,
            };
            header.emit(&mut area)
        }
        _ => return area,
    };
    debug_assert!(written.is_ok(), "the fields are as wide as those received");
    area
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::net::arrived::IpFields;
    use portolan_wire::rocev2::Packet;

    /// 100 bytes that could be a header.
    const PACKET: [u8; 100] = {
        let mut bytes = [0; 100];
        bytes[0] = 0x04;
        bytes
    };

    fn arrived<'a>(source: &str, destination: &str, payload: &'a [u8]) -> Arrived<'a> {
        Arrived {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            ip: IpFields {
                identification: 0x1234,
                traffic_class: 0xb9,
                hop_limit: 63,
                flow_label: 0xabcde,
            },
            writer: None,
            packet: Packet::parse(payload).unwrap(),
        }
    }

    #[test]
    fn an_ipv4_header_is_in_the_last_twenty_bytes_with_a_valid_checksum() {
        let area = network_header(&arrived("10.0.0.1:49152", "10.0.0.2", &PACKET));
        assert_eq!(area[..20], [0; 20]);
        let expected = [
            0x45, 0xb9, 0, 128, 0x12, 0x34, 0x40, 0, 63, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ];
        assert_eq!(area[20..30], expected[..10]);
        assert_eq!(area[32..], expected[12..]);
        let words = area[20..]
            .chunks(2)
            .map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let sum: u32 = words.sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "header checksum");
    }

    #[test]
    fn an_ipv6_header_is_the_grh() {
        let area = network_header(&arrived("[2001:db8::1]:49152", "2001:db8::2", &PACKET));
        let grh = GrhRepr::parse(&area).unwrap();
        assert_eq!(area[..4], [0x6b, 0x9a, 0xbc, 0xde]);
        assert_eq!(
            (grh.payload_len, grh.next_header, grh.hop_limit),
            (108, 17, 63)
        );
        assert_eq!(grh.sgid.to_string(), "2001:db8::1");
        assert_eq!(grh.dgid.to_string(), "2001:db8::2");
    }
}

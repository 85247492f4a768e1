//! Packets that have arrived by a socket or a ring.

use std::net::{IpAddr, SocketAddr};

use portolan_port_sharing::Block;
use portolan_wire::Qpn;
use portolan_wire::rocev2::Packet;

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

/// Empties the vector to reuse its memory with another lifetime.
pub(super) fn emptied(mut arrived: Vec<Arrived<'_>>) -> Vec<Arrived<'static>> {
    arrived.clear();
    arrived.into_iter().map_while(|_| None).collect()
}

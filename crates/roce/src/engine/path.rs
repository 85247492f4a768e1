//! Destinations of datagrams. The engine does not interpret them: they are the host's, returned with the packet.

use core::net::{IpAddr, SocketAddr};

use portolan_wire::{QKey, Qpn};

/// Addresses and IP fields of packets: of a connected queue pair, a datagram, or a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Source address.
    pub local: IpAddr,
    /// Destination address with the stack's UDP port, and a scope if it is link-local.
    pub remote: SocketAddr,
    /// Index of the outgoing interface; 0 lets routing decide. Groups and link-local addresses need it.
    pub interface: u32,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; 0 means the system's default.
    pub hop_limit: u8,
}

/// The receiver of a datagram: [`UdDestination`](portolan_provider::verbs::UdDestination) with its address handle
/// resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The path to its host or group.
    pub path: Path,
    /// Its queue pair; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// Its Q_Key. If the highest bit is set, the sending queue pair's own is used.
    pub qkey: QKey,
}

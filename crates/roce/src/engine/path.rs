//! Where datagrams go. The engine looks at none of it: it is the host's, handed back with the packet.

use core::net::{IpAddr, SocketAddr};

use portolan_wire::{QKey, Qpn};

/// Addresses and IP fields of a packet on its way: of all packets of a connected queue pair, of one
/// datagram, or of one management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Source address.
    pub local: IpAddr,
    /// Destination address, its scope if it is link-local, and the stack's UDP port.
    pub remote: SocketAddr,
    /// Index of the interface it leaves through; 0: routing decides. Groups and link-local addresses
    /// need it.
    pub interface: u32,
    /// IPv4 type of service or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; 0 for the system's default.
    pub hop_limit: u8,
}

/// The receiver of a datagram ([`UdDestination`](portolan_provider::verbs::UdDestination), its
/// address handle resolved).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The way to its host or group.
    pub path: Path,
    /// Its queue pair; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// Its Q_Key, or one with the highest bit set for that of the sending queue pair.
    pub qkey: QKey,
}

//! The headers below RoCEv2 in captures: Ethernet with VLAN tags, IPv4, IPv6, UDP.
//!
//! Enough to read a capture, and to write one of packets from a UDP socket; not an IP stack.
//! Fragments are not reassembled and IPv6 extension headers are not parsed.

mod checksum;
mod datagram;
mod ethernet;
mod ipv4;
mod ipv6;
mod udp;

pub use datagram::{Datagram, FRAME_OVERHEAD_MAX, IpRepr, LinkType, emit_ethernet};
pub use ethernet::{EtherType, EthernetRepr, MacAddr, VlanTag};
pub use ipv4::Ipv4Repr;
pub use ipv6::Ipv6Repr;
pub use udp::UdpRepr;

/// The IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

//! The headers below RoCEv2: IPv4, IPv6 and UDP.
//!
//! Enough to read and write captures, and for the IP header that a datagram's receive contains; not an IP stack.
//! Fragments are not reassembled and IPv6 extension headers are not parsed.

mod checksum;
mod datagram;
mod ipv4;
mod ipv6;
mod udp;

pub use datagram::{Datagram, IpRepr};
pub use ipv4::Ipv4Repr;
pub use ipv6::Ipv6Repr;
pub use udp::UdpRepr;

/// The IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

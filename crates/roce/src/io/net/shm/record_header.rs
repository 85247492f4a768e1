//! The header of a record that contains packets.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Length, packet length, UDP source port, both addresses, traffic class and hop limit.
pub(super) const HEADER_LEN: usize = 42;
/// Length and offset of the source port and the addresses in a record's header.
pub(super) const ADDRESSES_LEN: usize = 34;
pub(super) const ADDRESSES_AT: usize = 6;
const IP_FIELDS_AT: usize = ADDRESSES_AT + ADDRESSES_LEN;
const _: () = assert!(IP_FIELDS_AT + 2 == HEADER_LEN);

/// The header of a record, which describes its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) source: SocketAddr,
    pub(crate) destination: IpAddr,
    pub(crate) packet_len: usize,
    /// IPv4 type of service or IPv6 traffic class.
    pub(crate) traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit.
    pub(crate) hop_limit: u8,
}

/// The header's form in memory.
pub(super) fn header_of(head: &RecordHead, len: usize) -> [u8; HEADER_LEN] {
    let mapped = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let mut header = [0; HEADER_LEN];
    header[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    header[4..6].copy_from_slice(&(head.packet_len as u16).to_ne_bytes());
    header[6..8].copy_from_slice(&head.source.port().to_ne_bytes());
    header[8..24].copy_from_slice(&mapped(head.source.ip()));
    header[24..40].copy_from_slice(&mapped(head.destination));
    header[IP_FIELDS_AT..].copy_from_slice(&[head.traffic_class, head.hop_limit]);
    header
}

/// The length of a record's payload, and the length of one packet in it.
pub(super) fn parse_header(header: &[u8; HEADER_LEN]) -> (usize, usize) {
    let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
    let packet_len = u16::from_ne_bytes([header[4], header[5]]);
    (len as usize, usize::from(packet_len))
}

/// The traffic class and the hop limit.
pub(super) fn parse_ip_fields(header: &[u8; HEADER_LEN]) -> [u8; 2] {
    [header[IP_FIELDS_AT], header[IP_FIELDS_AT + 1]]
}

pub(super) fn parse_addresses(bytes: &[u8; ADDRESSES_LEN]) -> (SocketAddr, IpAddr) {
    let address = |at: usize| {
        let octets: [u8; 16] = std::array::from_fn(|i| bytes[at + i]);
        IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
    };
    let port = u16::from_ne_bytes([bytes[0], bytes[1]]);
    (SocketAddr::new(address(2), port), address(18))
}

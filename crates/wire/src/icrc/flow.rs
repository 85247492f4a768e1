//! The IP and UDP fields that the ICRC covers.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The IP and UDP fields of a packet that the ICRC covers, except the identification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flow {
    /// Over IPv4.
    V4(FlowV4),
    /// Over IPv6.
    V6(FlowV6),
}

/// A flow over IPv4, without options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowV4 {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
    /// The don't-fragment flag. RoCEv2 packets have it set (IBTA annex A17; Linux does so).
    pub dont_fragment: bool,
}

/// A flow over IPv6, without extension headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowV6 {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port.
    pub dst_port: u16,
}

impl Flow {
    /// The flow between two addresses, don't-fragment set; `None` if their families differ.
    ///
    /// An IPv4-mapped IPv6 address counts as IPv4, because the packet on the wire is IPv4.
    pub const fn between(src: SocketAddr, dst: SocketAddr) -> Option<Flow> {
        let (src_port, dst_port) = (src.port(), dst.port());
        match (src.ip().to_canonical(), dst.ip().to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Flow::V4(FlowV4 {
                src,
                dst,
                src_port,
                dst_port,
                dont_fragment: true,
            })),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Flow::V6(FlowV6 {
                src,
                dst,
                src_port,
                dst_port,
            })),
            _ => None,
        }
    }
}

//! UDP datagrams inside captured packets.

use core::net::{IpAddr, SocketAddr};

use super::{Ipv4Repr, Ipv6Repr, PROTOCOL_UDP, UdpRepr};
use crate::icrc::{Flow, FlowV4, FlowV6, Identification};
use crate::{Error, Result};

/// An IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpRepr {
    /// Version 4.
    V4(Ipv4Repr),
    /// Version 6.
    V6(Ipv6Repr),
}

impl IpRepr {
    /// Source.
    pub const fn src(&self) -> IpAddr {
        match self {
            IpRepr::V4(ip) => IpAddr::V4(ip.src),
            IpRepr::V6(ip) => IpAddr::V6(ip.src),
        }
    }

    /// Destination.
    pub const fn dst(&self) -> IpAddr {
        match self {
            IpRepr::V4(ip) => IpAddr::V4(ip.dst),
            IpRepr::V6(ip) => IpAddr::V6(ip.dst),
        }
    }

    /// Reads an IP header of either version; also returns the payload.
    ///
    /// # Errors
    ///
    /// Those of [`Ipv4Repr::parse`] and [`Ipv6Repr::parse`].
    pub fn parse(input: &[u8]) -> Result<(IpRepr, &[u8])> {
        let version = input.first().map_or(4, |byte| byte >> 4);
        if version == 6 {
            let (ip, rest) = Ipv6Repr::parse(input)?;
            Ok((IpRepr::V6(ip), rest))
        } else {
            let (ip, rest) = Ipv4Repr::parse(input)?;
            Ok((IpRepr::V4(ip), rest))
        }
    }

    /// Writes the header at the front of `out`; returns its length.
    ///
    /// # Errors
    ///
    /// Those of [`Ipv4Repr::emit`] and [`Ipv6Repr::emit`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize> {
        match self {
            IpRepr::V4(ip) => ip.emit(out),
            IpRepr::V6(ip) => ip.emit(out),
        }
    }
}

/// A UDP datagram with its headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// IP header.
    pub ip: IpRepr,
    /// UDP header.
    pub udp: UdpRepr,
    /// UDP payload.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Reads an IP packet. Returns `Ok(None)` for a well-formed packet that is not UDP or is a later
    /// fragment.
    ///
    /// # Errors
    ///
    /// Those of the headers' parsers; [`Error::Unsupported`] for a UDP datagram's first fragment.
    pub fn parse(packet: &'a [u8]) -> Result<Option<Datagram<'a>>> {
        let (ip, transport) = IpRepr::parse(packet)?;
        let protocol = match &ip {
            IpRepr::V4(ip) if ip.fragment_offset != 0 => return Ok(None),
            IpRepr::V4(ip) => ip.protocol,
            IpRepr::V6(ip) => ip.next_header,
        };
        if protocol != PROTOCOL_UDP {
            return Ok(None);
        }
        if let IpRepr::V4(ip) = &ip
            && ip.is_fragment()
        {
            return Err(Error::Unsupported {
                what: "fragment with IPv4 identification",
                got: ip.identification.into(),
            });
        }
        let (udp, payload) = UdpRepr::parse(transport)?;
        Ok(Some(Datagram { ip, udp, payload }))
    }

    /// Source address and port.
    pub const fn src(&self) -> SocketAddr {
        SocketAddr::new(self.ip.src(), self.udp.src_port)
    }

    /// Destination address and port.
    pub const fn dst(&self) -> SocketAddr {
        SocketAddr::new(self.ip.dst(), self.udp.dst_port)
    }

    /// The header fields that the ICRC covers, and the identification.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for IPv4 options, which RoCEv2 does not allow.
    pub const fn flow(&self) -> Result<(Flow, Identification)> {
        let (src_port, dst_port) = (self.udp.src_port, self.udp.dst_port);
        match &self.ip {
            IpRepr::V4(ip) if ip.header_len != Ipv4Repr::LEN => Err(Error::Unsupported {
                what: "IPv4 header length",
                got: ip.header_len as u64,
            }),
            IpRepr::V4(ip) => Ok((
                Flow::V4(FlowV4 {
                    src: ip.src,
                    dst: ip.dst,
                    src_port,
                    dst_port,
                    dont_fragment: ip.dont_fragment,
                }),
                Identification::Known(ip.identification),
            )),
            IpRepr::V6(ip) => Ok((
                Flow::V6(FlowV6 {
                    src: ip.src,
                    dst: ip.dst,
                    src_port,
                    dst_port,
                }),
                Identification::Hidden,
            )),
        }
    }
}

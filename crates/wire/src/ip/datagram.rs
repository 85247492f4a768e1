//! UDP datagrams inside captured packets.

use core::net::{IpAddr, SocketAddr};

use super::{EtherType, EthernetRepr, Ipv4Repr, Ipv6Repr, MacAddr, PROTOCOL_UDP, UdpRepr};
use crate::bytes::{Fields, put, split};
use crate::icrc::{Flow, FlowV4, FlowV6, Identification};
use crate::{Error, Result};

/// The link-layer header of a capture's packets, numbered as in the pcap format (`LINKTYPE_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkType {
    /// 1: Ethernet.
    Ethernet,
    /// 101: an IPv4 or IPv6 header.
    RawIp,
    /// 113: Linux cooked, used by captures on all interfaces.
    LinuxSll,
    /// 276: Linux cooked, version 2.
    LinuxSll2,
}

impl LinkType {
    /// The link type with this number.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for any other.
    pub const fn from_value(value: u32) -> Result<LinkType> {
        Ok(match value {
            1 => LinkType::Ethernet,
            101 => LinkType::RawIp,
            113 => LinkType::LinuxSll,
            276 => LinkType::LinuxSll2,
            _ => {
                return Err(Error::Unsupported {
                    what: "capture link type",
                    got: value as u64,
                });
            }
        })
    }

    /// Its number.
    pub const fn value(self) -> u32 {
        match self {
            LinkType::Ethernet => 1,
            LinkType::RawIp => 101,
            LinkType::LinuxSll => 113,
            LinkType::LinuxSll2 => 276,
        }
    }
}

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
    /// Ethernet header, if the link type has one.
    pub ethernet: Option<EthernetRepr>,
    /// IP header.
    pub ip: IpRepr,
    /// UDP header.
    pub udp: UdpRepr,
    /// UDP payload.
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Reads a captured packet. Returns `Ok(None)` for a well-formed packet that is not UDP or is a
    /// later fragment.
    ///
    /// # Errors
    ///
    /// Those of the headers' parsers; [`Error::Unsupported`] for a UDP datagram's first fragment.
    pub fn parse(link: LinkType, packet: &'a [u8]) -> Result<Option<Datagram<'a>>> {
        let mut ethernet = None;
        let (ether_type, network) = match link {
            LinkType::RawIp => (None, packet),
            LinkType::Ethernet => {
                let (header, rest) = EthernetRepr::parse(packet)?;
                ethernet = Some(header);
                (Some(header.ether_type), rest)
            }
            LinkType::LinuxSll => {
                let (header, rest) = split::<16>("Linux cooked header", packet)?;
                (Some(EtherType(Fields(header).u16::<14>())), rest)
            }
            LinkType::LinuxSll2 => {
                let (header, rest) = split::<20>("Linux cooked header", packet)?;
                (Some(EtherType(Fields(header).u16::<0>())), rest)
            }
        };
        if !matches!(
            ether_type,
            None | Some(EtherType::IPV4) | Some(EtherType::IPV6)
        ) {
            return Ok(None);
        }
        let (ip, transport) = IpRepr::parse(network)?;
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
        Ok(Some(Datagram {
            ethernet,
            ip,
            udp,
            payload,
        }))
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

/// Maximum number of bytes that [`emit_ethernet`] adds to a UDP payload: Ethernet, IPv6 and UDP
/// headers.
pub const FRAME_OVERHEAD_MAX: usize = EthernetRepr::UNTAGGED_LEN + Ipv6Repr::LEN + UdpRepr::LEN;

/// Writes an Ethernet frame with a UDP datagram at the front of `out`, to capture what a UDP socket
/// sent or received. Returns its length.
///
/// Addresses and ports come from `flow`. Hardware addresses are zero, as on a loopback interface;
/// the hop limit is 64; checksums are valid. `identification` is the IPv4 identification, ignored
/// over IPv6.
///
/// # Errors
///
/// [`Error::NoRoom`]; [`Error::OutOfRange`] for a payload longer than UDP allows.
pub fn emit_ethernet(
    flow: &Flow,
    identification: u16,
    payload: &[u8],
    out: &mut [u8],
) -> Result<usize> {
    let (ip, udp) = headers_of(flow, identification, payload);
    let ethernet = EthernetRepr {
        dst: MacAddr::default(),
        src: MacAddr::default(),
        tags: [None; 2],
        ether_type: match ip {
            IpRepr::V4(_) => EtherType::IPV4,
            IpRepr::V6(_) => EtherType::IPV6,
        },
    };
    let mut at = ethernet.emit(out)?;
    at += ip.emit(out.get_mut(at..).unwrap_or_default())?;
    at += udp.emit(out.get_mut(at..).unwrap_or_default())?;
    at += put(
        "UDP payload",
        payload,
        out.get_mut(at..).unwrap_or_default(),
    )?;
    Ok(at)
}

/// Synthesizes the headers of a datagram.
fn headers_of(flow: &Flow, identification: u16, payload: &[u8]) -> (IpRepr, UdpRepr) {
    const HOP_LIMIT: u8 = 64;
    let payload_len = UdpRepr::LEN + payload.len();
    let (ip, src_port, dst_port) = match flow {
        Flow::V4(flow) => {
            let ip = Ipv4Repr {
                tos: 0,
                header_len: Ipv4Repr::LEN,
                payload_len,
                identification,
                dont_fragment: flow.dont_fragment,
                more_fragments: false,
                fragment_offset: 0,
                ttl: HOP_LIMIT,
                protocol: PROTOCOL_UDP,
                src: flow.src,
                dst: flow.dst,
            };
            (IpRepr::V4(ip), flow.src_port, flow.dst_port)
        }
        Flow::V6(flow) => {
            let ip = Ipv6Repr {
                traffic_class: 0,
                flow_label: 0,
                payload_len,
                next_header: PROTOCOL_UDP,
                hop_limit: HOP_LIMIT,
                src: flow.src,
                dst: flow.dst,
            };
            (IpRepr::V6(ip), flow.src_port, flow.dst_port)
        }
    };
    let udp = UdpRepr {
        src_port,
        dst_port,
        payload_len: payload.len(),
        checksum: 0,
    };
    (ip, udp.with_checksum(ip.src(), ip.dst(), payload))
}

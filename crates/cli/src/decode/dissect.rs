//! Finds and parses the RoCEv2 packet in a captured frame.

use std::fmt;
use std::net::SocketAddr;

use portolan_wire::cm::CmMessage;
use portolan_wire::icrc::{self, IcrcError};
use portolan_wire::ip::{Datagram, IpRepr, Ipv4Repr, Ipv6Repr, PROTOCOL_UDP, UdpRepr};
use portolan_wire::mad::MadPacket;
use portolan_wire::rocev2::{self, Headers, Packet};
use portolan_wire::{Error, Qpn};

use crate::capture::{self, NotIp, Record};

/// The longest UDP payload of a RoCEv2 packet: path MTU 4096, the longest headers, padding and ICRC.
const MAX_DATAGRAM_LEN: usize = 4096 + rocev2::MAX_HEADERS_LEN + 3 + rocev2::ICRC_LEN;

/// The contents of a frame.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is consumed at once and never stored"
)]
pub(crate) enum Dissected<'a> {
    /// A datagram to RoCEv2's port.
    Roce(RocePacket<'a>),
    /// Something else.
    Other(Other),
}

/// A frame that is not RoCEv2, by its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Other {
    /// No IP.
    NotIp(NotIp),
    /// IP, but not UDP; IPv6 extension headers are not skipped.
    Protocol(u8),
    /// A fragment of a UDP datagram; fragments are not reassembled.
    Fragment,
    /// UDP to another port.
    Udp,
    /// An IP or UDP header that is malformed or truncated.
    Broken,
}

/// A datagram to RoCEv2's port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RocePacket<'a> {
    /// Sender.
    pub(crate) src: SocketAddr,
    /// Receiver.
    pub(crate) dst: SocketAddr,
    /// Its contents.
    pub(crate) body: Body<'a>,
    /// Whether its ICRC is valid.
    pub(crate) icrc: Icrc,
}

/// The contents of a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    /// A whole packet.
    Packet(Packet<'a>),
    /// A packet with a connection manager message.
    Cm(Packet<'a>, Box<CmMessage>),
    /// A management datagram that is not a connection manager message, or a malformed one.
    Mad(Packet<'a>, Error),
    /// A packet that the capture truncated, with its headers if they are complete.
    Cut(Result<Headers, Error>, Cut),
    /// A packet that is malformed or unknown.
    Malformed(Error),
}

/// The captured part of a truncated packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Bytes of the UDP payload that were captured.
    pub(crate) captured: usize,
    /// Bytes of the UDP payload on the wire.
    pub(crate) wire: usize,
}

/// The result of checking an ICRC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Icrc {
    /// It is valid.
    Valid,
    /// It is not valid.
    Invalid(IcrcError),
    /// It cannot be checked: the packet is truncated, or the ICRC does not cover such an IP header.
    Unchecked,
}

impl RocePacket<'_> {
    /// Whether no defect was found: the ICRC is valid, and the contents are well-formed or merely unknown.
    pub(crate) fn is_sound(&self) -> bool {
        let malformed = match &self.body {
            Body::Packet(_) | Body::Cm(..) => false,
            Body::Cut(..) => true,
            Body::Mad(_, error) | Body::Malformed(error) => {
                !matches!(error, Error::Unsupported { .. })
            }
        };
        self.icrc == Icrc::Valid && !malformed
    }
}

/// Dissects a captured frame.
///
/// `patched` is a buffer for a copy of a truncated frame; the result may borrow from it.
pub(crate) fn dissect<'a>(record: &Record<'a>, patched: &'a mut Vec<u8>) -> Dissected<'a> {
    let ip = match capture::ip_packet(record.link, record.bytes) {
        Ok(ip) => ip,
        Err(not_ip) => return Dissected::Other(Other::NotIp(not_ip)),
    };
    match IpRepr::parse(ip) {
        Ok((header, rest)) => transport(header, rest, None),
        // The packet's stated length exceeds the captured bytes. Correct it to read the headers.
        Err(Error::Truncated { .. }) => {
            patched.clear();
            patched.extend_from_slice(ip);
            let Some(cut) = patch_lengths(patched) else {
                return Dissected::Other(Other::Broken);
            };
            match IpRepr::parse(patched) {
                Ok((header, rest)) => transport(header, rest, Some(cut)),
                Err(_) => Dissected::Other(Other::Broken),
            }
        }
        Err(_) => Dissected::Other(Other::Broken),
    }
}

fn transport<'a>(ip: IpRepr, rest: &'a [u8], cut: Option<Cut>) -> Dissected<'a> {
    let (protocol, fragment) = match &ip {
        IpRepr::V4(ip) => (ip.protocol, ip.is_fragment()),
        IpRepr::V6(ip) => (ip.next_header, false),
    };
    if protocol != PROTOCOL_UDP {
        return Dissected::Other(Other::Protocol(protocol));
    }
    if fragment {
        return Dissected::Other(Other::Fragment);
    }
    let Ok((udp, payload)) = UdpRepr::parse(rest) else {
        return Dissected::Other(Other::Broken);
    };
    if udp.dst_port != rocev2::UDP_PORT {
        return Dissected::Other(Other::Udp);
    }
    let datagram = Datagram { ip, udp, payload };
    Dissected::Roce(match cut {
        None => whole(&datagram),
        Some(cut) => RocePacket {
            src: datagram.src(),
            dst: datagram.dst(),
            body: Body::Cut(Headers::parse(payload), cut),
            icrc: Icrc::Unchecked,
        },
    })
}

/// Dissects a complete datagram to RoCEv2's port.
pub(crate) fn whole<'a>(datagram: &Datagram<'a>) -> RocePacket<'a> {
    let icrc = match datagram.flow() {
        Err(_) => Icrc::Unchecked,
        Ok((flow, identification)) => match icrc::verify(&flow, identification, datagram.payload) {
            Ok(_) => Icrc::Valid,
            Err(error) => Icrc::Invalid(error),
        },
    };
    RocePacket {
        src: datagram.src(),
        dst: datagram.dst(),
        body: body(datagram.payload),
        icrc,
    }
}

fn body(payload: &[u8]) -> Body<'_> {
    if payload.len() > MAX_DATAGRAM_LEN {
        return Body::Malformed(Error::Malformed {
            what: "RoCEv2 packet length",
            expected: "at most a path MTU of 4096 (was it captured before segmentation?)",
            got: payload.len() as u64,
        });
    }
    let packet = match Packet::parse(payload) {
        Ok(packet) => packet,
        Err(error) => return Body::Malformed(error),
    };
    if packet.bth().dest_qp != Qpn::GSI || packet.deth().is_none() {
        return Body::Packet(packet);
    }
    match MadPacket::new_checked(packet.payload()).and_then(|_| CmMessage::parse(packet.payload()))
    {
        Ok((_, message)) => Body::Cm(packet, Box::new(message)),
        Err(error) => Body::Mad(packet, error),
    }
}

/// Corrects the lengths in the IP and UDP headers to the captured bytes; `None` if the headers themselves are
/// incomplete.
fn patch_lengths(ip: &mut [u8]) -> Option<Cut> {
    let available = ip.len();
    let udp_at = match ip.first()? >> 4 {
        6 => {
            let payload_len = available.checked_sub(Ipv6Repr::LEN)?;
            put_u16(ip, 4, payload_len)?;
            Ipv6Repr::LEN
        }
        _ => {
            put_u16(ip, 2, available)?;
            usize::from(ip.first()? & 0x0F) * 4
        }
    };
    if udp_at < Ipv4Repr::LEN {
        return None;
    }
    let udp_available = available.checked_sub(udp_at)?;
    let captured = udp_available.checked_sub(UdpRepr::LEN)?;
    let wire_len = put_u16(ip, udp_at + 4, udp_available)?;
    Some(Cut {
        captured,
        wire: wire_len.saturating_sub(UdpRepr::LEN).max(captured),
    })
}

/// Stores a length and returns the old one; `None` if it does not fit or there is no room.
fn put_u16(bytes: &mut [u8], at: usize, value: usize) -> Option<usize> {
    let place: &mut [u8; 2] = bytes.get_mut(at..)?.first_chunk_mut()?;
    let old = u16::from_be_bytes(*place);
    *place = u16::try_from(value).ok()?.to_be_bytes();
    Some(usize::from(old))
}

impl fmt::Display for Other {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Other::NotIp(not_ip) => not_ip.fmt(f),
            Other::Protocol(0) => f.write_str("IPv6 with hop-by-hop options"),
            Other::Protocol(1) => f.write_str("ICMP"),
            Other::Protocol(2) => f.write_str("IGMP"),
            Other::Protocol(6) => f.write_str("TCP"),
            Other::Protocol(58) => f.write_str("ICMPv6"),
            Other::Protocol(protocol) => write!(f, "IP protocol {protocol}"),
            Other::Fragment => f.write_str("IP fragment"),
            Other::Udp => f.write_str("UDP to another port"),
            Other::Broken => f.write_str("broken IP or UDP header"),
        }
    }
}

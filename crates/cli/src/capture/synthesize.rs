//! Rebuilds IP packets from the data of a UDP socket.

use std::net::{IpAddr, SocketAddr};

use portolan_wire::ip::{IpRepr, Ipv4Repr, Ipv6Repr, PROTOCOL_UDP, UdpRepr};
use portolan_wire::{Error, Result};

/// Default time to live or hop limit if it is unknown.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// The known header fields of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UdpHeaders {
    /// Source.
    pub(crate) src: SocketAddr,
    /// Destination, of the same family.
    pub(crate) dst: SocketAddr,
    /// IPv4 identification, which the ICRC covers.
    pub(crate) identification: u16,
    /// IPv4 type of service or IPv6 traffic class.
    pub(crate) traffic_class: u8,
    /// IPv4 time to live or IPv6 hop limit; 0 if unknown.
    pub(crate) hop_limit: u8,
}

impl UdpHeaders {
    /// The IP header of a datagram with `payload_len` bytes of payload, don't-fragment set.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for addresses of two families.
    pub(crate) fn ip(&self, payload_len: usize) -> Result<IpRepr> {
        let hop_limit = match self.hop_limit {
            0 => DEFAULT_HOP_LIMIT,
            known => known,
        };
        let payload_len = UdpRepr::LEN + payload_len;
        match (self.src.ip().to_canonical(), self.dst.ip().to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Ok(IpRepr::V4(Ipv4Repr {
                tos: self.traffic_class,
                header_len: Ipv4Repr::LEN,
                payload_len,
                identification: self.identification,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                ttl: hop_limit,
                protocol: PROTOCOL_UDP,
                src,
                dst,
            })),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Ok(IpRepr::V6(Ipv6Repr {
                traffic_class: self.traffic_class,
                flow_label: 0,
                payload_len,
                next_header: PROTOCOL_UDP,
                hop_limit,
                src,
                dst,
            })),
            _ => Err(Error::Unsupported {
                what: "packet between two address families",
                got: 0,
            }),
        }
    }

    /// The UDP header of a datagram with `payload_len` bytes of payload, without checksum.
    pub(crate) fn udp(&self, payload_len: usize) -> UdpRepr {
        UdpRepr {
            src_port: self.src.port(),
            dst_port: self.dst.port(),
            payload_len,
            checksum: 0,
        }
    }
}

/// Writes the IP packet into `out`, which is cleared first: the headers, then the payload.
///
/// # Errors
///
/// [`Error::OutOfRange`] if the payload is too long for IP; [`Error::Unsupported`] for addresses of
/// two families.
pub(crate) fn udp_packet(headers: &UdpHeaders, payload: &[u8], out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    out.resize(Ipv6Repr::LEN + UdpRepr::LEN, 0);
    let ip_len = headers.ip(payload.len())?.emit(out)?;
    let udp = headers.udp(payload.len());
    let udp_len = udp.emit(out.get_mut(ip_len..).unwrap_or_default())?;
    out.truncate(ip_len + udp_len);
    out.extend_from_slice(payload);
    Ok(())
}

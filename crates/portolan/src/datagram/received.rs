//! Received datagrams, and the route back to their senders.

use std::net::{IpAddr, Ipv4Addr};

use portolan_provider::verbs::{AhAttr, LinkLayer, LocalRoute, QpAttr, WorkCompletion};
use portolan_wire::addr::{Gid, Qpn};
use portolan_wire::eth::GrhRepr;

/// Length of the area before the data, in bytes. An IPv4 header occupies its end (IBTA annex
/// A17.4.5.2).
const AREA: usize = GrhRepr::LEN;
/// Length of an IPv4 header without options, as in RoCEv2, and its first byte.
const IPV4_LEN: usize = 20;
const IPV4_WITHOUT_OPTIONS: u8 = 0x45;

/// A received datagram. The [module](super) has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// The data.
    pub data: Vec<u8>,
    /// Immediate data; for its byte order see [`Message::immediate`](crate::Message::immediate).
    pub imm_data: Option<u32>,
    /// The sender's address. On InfiniBand its GID, or `::` if the datagram has no network header because it did not
    /// leave the subnet.
    pub source: IpAddr,
    /// The sender's queue pair.
    pub source_qpn: Qpn,
    /// The destination GID: an address of this device, or a multicast group. Unspecified if the datagram has no network
    /// header.
    pub destination: Gid,
    traffic_class: u8,
    flow_label: u32,
    /// The way back within an InfiniBand subnet.
    local_route: Option<LocalRoute>,
    sl: u8,
}

impl Datagram {
    /// The datagram of a completed receive; `None` on Ethernet without a network header.
    pub(super) fn new(
        completion: &WorkCompletion,
        link_layer: LinkLayer,
        buffer: &[u8],
    ) -> Option<Self> {
        let received = buffer.get(..completion.byte_len as usize)?;
        let (area, data) = received.split_at_checked(AREA)?;
        // On Ethernet, drivers use the completion's fields for other things.
        let local_route = (link_layer == LinkLayer::InfiniBand).then_some(LocalRoute {
            dlid: completion.slid,
            src_path_bits: completion.dlid_path_bits,
            static_rate: 0,
            has_grh: completion.has_grh,
        });
        let header = match (completion.has_grh, local_route) {
            (true, _) => Header::parse(area)?,
            (false, Some(_)) => Header::default(),
            (false, None) => return None,
        };
        Some(Self {
            data: data.to_vec(),
            imm_data: completion.imm_data,
            source: header.source.to_ip(),
            source_qpn: completion.src_qp,
            destination: header.destination,
            traffic_class: header.traffic_class,
            flow_label: header.flow_label,
            local_route,
            sl: local_route.map_or(0, |_| completion.sl),
        })
    }
}

/// The route to a datagram's sender, without the source GID index (`ibv_init_ah_from_wc(3)`).
pub(super) fn reply_route(datagram: &Datagram) -> AhAttr {
    AhAttr {
        dgid: Gid::from(datagram.source),
        flow_label: datagram.flow_label,
        traffic_class: datagram.traffic_class,
        sl: datagram.sl,
        local_route: datagram.local_route,
        ..QpAttr::default().ah_attr
    }
}

/// The fields common to both network headers.
#[derive(Default)]
struct Header {
    source: Gid,
    destination: Gid,
    traffic_class: u8,
    flow_label: u32,
}

impl Header {
    /// Parses the network header. Only one of the two is present, and the bytes before an IPv4
    /// header are undefined. If they look like an IPv6 header, a valid checksum identifies the IPv4
    /// header. Otherwise its first byte does, because rdma_rxe leaves out the checksum in loopback
    /// packets (`ibv_init_ah_from_wc(3)` distinguishes them the same way).
    fn parse(area: &[u8]) -> Option<Self> {
        let ipv4 = area.last_chunk::<IPV4_LEN>()?;
        let is_ipv6 = area.first().is_some_and(|byte| byte >> 4 == 6);
        if ipv4[0] == IPV4_WITHOUT_OPTIONS && (!is_ipv6 || checksum(ipv4) == 0) {
            let address = |at: [u8; 4]| Gid::from(Ipv4Addr::from(at));
            let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *ipv4;
            return Some(Self {
                source: address([s0, s1, s2, s3]),
                destination: address([d0, d1, d2, d3]),
                traffic_class: ipv4[1],
                flow_label: 0,
            });
        }
        let grh = GrhRepr::parse(area).ok().filter(|_| is_ipv6)?;
        Some(Self {
            source: grh.sgid,
            destination: grh.dgid,
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label,
        })
    }
}

/// The Internet checksum of a header (RFC 1071): zero if the header's checksum is valid.
fn checksum(header: &[u8; IPV4_LEN]) -> u16 {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use portolan_wire::ip::{Ipv4Repr, PROTOCOL_UDP};

    use super::*;

    const IPV4: Ipv4Repr = Ipv4Repr {
        tos: 0xb8,
        header_len: IPV4_LEN,
        payload_len: 60,
        identification: 0x1234,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 63,
        protocol: PROTOCOL_UDP,
        src: Ipv4Addr::new(192, 168, 7, 1),
        dst: Ipv4Addr::new(192, 168, 7, 2),
    };
    const IPV6: GrhRepr = GrhRepr {
        traffic_class: 0xb8,
        flow_label: 0xabcde,
        payload_len: 60,
        next_header: 17,
        hop_limit: 63,
        sgid: Gid::from_ipv6(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
        dgid: Gid::from_ipv6(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2)),
    };

    #[test]
    fn an_ipv4_header_is_found_whatever_precedes_it() {
        for before in [0x00, 0x60, 0xff] {
            let mut area = [before; AREA];
            IPV4.emit(&mut area[AREA - IPV4_LEN..]).unwrap();
            let header = Header::parse(&area).unwrap();
            assert_eq!(header.source, Gid::from(IPV4.src));
            assert_eq!(header.destination, Gid::from(IPV4.dst));
            assert_eq!((header.traffic_class, header.flow_label), (0xb8, 0));
        }
    }

    #[test]
    fn an_ipv4_header_that_was_looped_back_has_no_checksum() {
        let mut area = [0; AREA];
        IPV4.emit(&mut area[AREA - IPV4_LEN..]).unwrap();
        area[AREA - 10..][..2].fill(0);
        assert_eq!(Header::parse(&area).unwrap().source, Gid::from(IPV4.src));
    }

    #[test]
    fn an_ipv6_header_is_found_even_if_an_address_looks_like_an_ipv4_header() {
        let mut area = [0; AREA];
        let mut dgid = IPV6.dgid;
        dgid.0[..4].copy_from_slice(&[0x45, 0, 0, 60]);
        for grh in [IPV6, GrhRepr { dgid, ..IPV6 }] {
            grh.emit(&mut area).unwrap();
            let header = Header::parse(&area).unwrap();
            assert_eq!((header.source, header.destination), (grh.sgid, grh.dgid));
            assert_eq!((header.traffic_class, header.flow_label), (0xb8, 0xabcde));
        }
    }

    #[test]
    fn within_an_infiniband_subnet_the_lids_lead_back_to_the_sender() {
        let completion = WorkCompletion {
            byte_len: AREA as u32 + 2,
            src_qp: Qpn::new(7),
            sl: 3,
            slid: 9,
            dlid_path_bits: 1,
            ..WorkCompletion::EMPTY
        };
        let mut buffer = [0xff; AREA + 2];
        let datagram = Datagram::new(&completion, LinkLayer::InfiniBand, &buffer).unwrap();
        assert!(datagram.source.is_unspecified() && datagram.destination.is_unspecified());
        let route = reply_route(&datagram);
        let local = route.local_route.unwrap();
        assert_eq!((route.sl, local.dlid, local.src_path_bits), (3, 9, 1));
        assert!(!local.has_grh);
        IPV6.emit(&mut buffer).unwrap();
        let with_header = WorkCompletion {
            has_grh: true,
            ..completion
        };
        let datagram = Datagram::new(&with_header, LinkLayer::InfiniBand, &buffer).unwrap();
        let route = reply_route(&datagram);
        assert!(route.local_route.unwrap().has_grh);
        assert_eq!(route.dgid, IPV6.sgid);
        let datagram = Datagram::new(&with_header, LinkLayer::Ethernet, &buffer).unwrap();
        let route = reply_route(&datagram);
        assert_eq!((route.sl, route.local_route), (0, None));
        assert!(Datagram::new(&completion, LinkLayer::Ethernet, &buffer).is_none());
    }

    #[test]
    fn an_area_with_neither_header_is_an_error() {
        assert!(Header::parse(&[0; AREA]).is_none());
        assert!(Header::parse(&[0x45; 19]).is_none());
    }
}

//! The headers of captures: emitted, parsed, and recognized on every link type.

use portolan_wire::Error;
use portolan_wire::icrc::{self, Flow, FlowV4, FlowV6, Identification};
use portolan_wire::ip::{
    Datagram, EtherType, EthernetRepr, FRAME_OVERHEAD_MAX, IpRepr, Ipv4Repr, Ipv6Repr, LinkType,
    MacAddr, UdpRepr, VlanTag, emit_ethernet,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn flow_v4() -> Flow {
    Flow::V4(FlowV4 {
        src: [192, 168, 7, 2].into(),
        dst: [192, 168, 7, 1].into(),
        src_port: 0xC001,
        dst_port: 4791,
        dont_fragment: true,
    })
}

fn flow_v6() -> Flow {
    Flow::V6(FlowV6 {
        src: [0xfe80, 0, 0, 0, 0, 0, 0, 2].into(),
        dst: [0xfe80, 0, 0, 0, 0, 0, 0, 1].into(),
        src_port: 0xC001,
        dst_port: 4791,
    })
}

/// An Ethernet frame with `payload`.
fn frame(flow: &Flow, identification: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xA5; payload.len() + FRAME_OVERHEAD_MAX];
    let len = emit_ethernet(flow, identification, payload, &mut frame).unwrap();
    frame.truncate(len);
    frame
}

proptest! {
    #[test]
    fn ip_and_udp_headers_survive(
        bytes: [u8; 4],
        words: [u16; 4],
        flags: [bool; 2],
        fragment_offset in 0..0x2000u16,
        addresses: (u32, u32, u128, u128),
        flow_label in 0..=0xF_FFFFu32,
        payload in vec(any::<u8>(), 0..64),
    ) {
        let ipv4 = Ipv4Repr {
            tos: bytes[0],
            header_len: Ipv4Repr::LEN,
            payload_len: payload.len(),
            identification: words[0],
            dont_fragment: flags[0],
            more_fragments: flags[1],
            fragment_offset,
            ttl: bytes[1],
            protocol: bytes[2],
            src: addresses.0.into(),
            dst: addresses.1.into(),
        };
        let ipv6 = Ipv6Repr {
            traffic_class: bytes[0],
            flow_label,
            payload_len: payload.len(),
            next_header: bytes[1],
            hop_limit: bytes[2],
            src: addresses.2.into(),
            dst: addresses.3.into(),
        };
        for ip in [IpRepr::V4(ipv4), IpRepr::V6(ipv6)] {
            let mut out = [0xA5; 40];
            let len = ip.emit(&mut out).unwrap();
            // Link-layer padding of a short frame is not payload.
            let packet = [&out[..len], &payload, &[0; 9]].concat();
            prop_assert_eq!(IpRepr::parse(&packet), Ok((ip, payload.as_slice())));
        }
        let udp = UdpRepr {
            src_port: words[1],
            dst_port: words[2],
            payload_len: payload.len(),
            checksum: words[3],
        };
        let mut out = [0xA5; UdpRepr::LEN];
        udp.emit(&mut out).unwrap();
        let datagram = [&out[..], &payload, &[0; 9]].concat();
        prop_assert_eq!(UdpRepr::parse(&datagram), Ok((udp, payload.as_slice())));
    }

    #[test]
    fn ethernet_headers_survive_with_none_to_two_tags(
        dst: [u8; 6],
        src: [u8; 6],
        tci: [u16; 2],
        tags in 0..=2usize,
    ) {
        let tag = |at: usize, tpid| (at < tags).then_some(VlanTag { tpid, tci: tci[at] });
        let outer = if tags == 2 { EtherType::SERVICE_VLAN } else { EtherType::VLAN };
        let ethernet = EthernetRepr {
            dst: MacAddr(dst),
            src: MacAddr(src),
            tags: [tag(0, outer), tag(1, EtherType::VLAN)],
            ether_type: EtherType::IPV4,
        };
        let mut out = [0xA5; 23];
        let len = ethernet.emit(&mut out).unwrap();
        prop_assert_eq!(len, 14 + 4 * tags);
        prop_assert_eq!(ethernet.len(), len);
        prop_assert_eq!(EthernetRepr::parse(&out), Ok((ethernet, &out[len..])));
        prop_assert!(ethernet.emit(&mut out[..len - 1]).is_err());
    }

    #[test]
    fn a_synthesized_frame_is_read_as_the_flow_it_was_made_for(identification: u16, payload in vec(any::<u8>(), 0..200)) {
        for flow in [flow_v4(), flow_v6()] {
            let bytes = frame(&flow, identification, &payload);
            let datagram = Datagram::parse(LinkType::Ethernet, &bytes).unwrap().unwrap();
            let known = match flow {
                Flow::V4(_) => Identification::Known(identification),
                Flow::V6(_) => Identification::Hidden,
            };
            prop_assert_eq!(datagram.flow(), Ok((flow, known)));
            prop_assert_eq!(datagram.payload, &payload);
            prop_assert_eq!(Flow::between(datagram.src(), datagram.dst()), Some(flow));
        }
    }

    /// The sum over everything that the checksum covers, including the checksum, is all ones.
    #[test]
    fn checksums_sum_to_ones(payload in vec(any::<u8>(), 0..200)) {
        let bytes = frame(&flow_v4(), 7, &payload);
        let (header, datagram) = bytes[14..].split_at(20);
        prop_assert_eq!(ones_sum(&[header]), 0xFFFF);
        let pseudo = [0, 17, 0, 0];
        let len = (datagram.len() as u16).to_be_bytes();
        prop_assert_eq!(ones_sum(&[&header[12..], &pseudo, &len, datagram]), 0xFFFF);

        let bytes = frame(&flow_v6(), 7, &payload);
        let (header, datagram) = bytes[14..].split_at(40);
        prop_assert_eq!(ones_sum(&[&header[8..], &pseudo, &len, datagram]), 0xFFFF);
    }
}

/// The ones' complement sum of the parts' 16-bit words; only the last part may have an odd length.
fn ones_sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn the_ipv4_checksum_is_that_of_a_known_header() {
    // A widely published example with the checksum 0xB861.
    let header = Ipv4Repr {
        tos: 0,
        header_len: 20,
        payload_len: 0x73 - 20,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: 17,
        src: [192, 168, 0, 1].into(),
        dst: [192, 168, 0, 199].into(),
    };
    let mut out = [0xA5; 20];
    header.emit(&mut out).unwrap();
    assert_eq!(out[10..12], [0xB8, 0x61]);
}

#[test]
fn the_same_packet_is_found_on_every_kind_of_link() {
    for (flow, ether_type) in [(flow_v4(), EtherType::IPV4), (flow_v6(), EtherType::IPV6)] {
        let ethernet = frame(&flow, 1, b"payload");
        let ip = &ethernet[14..];
        let type_bytes = ether_type.0.to_be_bytes();
        let cooked = [&[0; 14][..], &type_bytes, ip].concat();
        let cooked2 = [&type_bytes[..], &[0; 18], ip].concat();
        for (link, bytes) in [
            (LinkType::Ethernet, &ethernet[..]),
            (LinkType::RawIp, ip),
            (LinkType::LinuxSll, &cooked),
            (LinkType::LinuxSll2, &cooked2),
        ] {
            let datagram = Datagram::parse(link, bytes).unwrap().unwrap();
            assert_eq!(datagram.payload, b"payload", "{link:?}");
            assert_eq!(datagram.flow().unwrap().0, flow, "{link:?}");
            assert_eq!(datagram.ethernet.is_some(), link == LinkType::Ethernet);
            assert_eq!(LinkType::from_value(link.value()), Ok(link));
        }
    }
}

#[test]
fn a_tagged_frame_carries_the_same_datagram_and_its_icrc_does_not_cover_the_tag() {
    let flow = flow_v4();
    let mut payload = [0x42; 24];
    icrc::append(&flow, 9, &mut payload).unwrap();
    let plain = frame(&flow, 9, &payload);
    let tagged = [&plain[..12], &[0x81, 0x00, 0x60, 0x2A], &plain[12..]].concat();
    let datagram = Datagram::parse(LinkType::Ethernet, &tagged)
        .unwrap()
        .unwrap();
    let tag = datagram.ethernet.unwrap().tags[0].unwrap();
    assert_eq!(tag.id(), 42);
    let (flow, identification) = datagram.flow().unwrap();
    assert!(icrc::verify(&flow, identification, datagram.payload).is_ok());
}

#[test]
fn other_traffic_is_neither_a_datagram_nor_an_error() {
    let mut arp = vec![0; 42];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    assert_eq!(Datagram::parse(LinkType::Ethernet, &arp), Ok(None));
    let mut tcp = frame(&flow_v4(), 1, b"payload");
    tcp[14 + 9] = 6;
    assert_eq!(Datagram::parse(LinkType::Ethernet, &tcp), Ok(None));
}

#[test]
fn ipv4_options_have_no_flow() {
    let plain = frame(&flow_v4(), 1, b"payload");
    let mut ip = [&plain[14..34], &[1, 1, 1, 0], &plain[34..]].concat();
    ip[0] = 0x46;
    ip[3] += 4;
    let datagram = Datagram::parse(LinkType::RawIp, &ip).unwrap().unwrap();
    assert_eq!(datagram.payload, b"payload");
    assert_eq!(
        datagram.flow(),
        Err(Error::Unsupported {
            what: "IPv4 header length",
            got: 24
        })
    );
}

#[test]
fn a_payload_longer_than_udp_allows_is_refused() {
    let payload = vec![0; 65_508];
    let mut out = vec![0; payload.len() + FRAME_OVERHEAD_MAX];
    assert!(matches!(
        emit_ethernet(&flow_v4(), 0, &payload, &mut out),
        Err(Error::OutOfRange {
            max: 65_535,
            got: 65_536,
            ..
        })
    ));
    assert!(emit_ethernet(&flow_v4(), 0, &payload[1..], &mut out).is_ok());
}

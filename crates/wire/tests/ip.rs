//! The headers below RoCEv2, emitted and parsed.

mod common;

use common::udp_packet;
use portolan_wire::Error;
use portolan_wire::icrc::{Flow, FlowV4, FlowV6, Identification};
use portolan_wire::ip::{Datagram, IpRepr, Ipv4Repr, Ipv6Repr, UdpRepr};
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
    fn a_packet_is_read_as_the_flow_it_was_made_for(identification: u16, payload in vec(any::<u8>(), 0..200)) {
        for flow in [flow_v4(), flow_v6()] {
            let bytes = udp_packet(&flow, identification, &payload);
            let datagram = Datagram::parse(&bytes).unwrap().unwrap();
            let known = match flow {
                Flow::V4(_) => Identification::Known(identification),
                Flow::V6(_) => Identification::Hidden,
            };
            prop_assert_eq!(datagram.flow(), Ok((flow, known)));
            prop_assert_eq!(datagram.payload, &payload);
            prop_assert_eq!(Flow::between(datagram.src(), datagram.dst()), Some(flow));
        }
    }

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
fn other_traffic_is_neither_a_datagram_nor_an_error() {
    let mut tcp = udp_packet(&flow_v4(), 1, b"payload");
    tcp[9] = 6;
    assert_eq!(Datagram::parse(&tcp), Ok(None));
}

#[test]
fn ipv4_options_have_no_flow() {
    let plain = udp_packet(&flow_v4(), 1, b"payload");
    let mut ip = [&plain[..20], &[1, 1, 1, 0], &plain[20..]].concat();
    ip[0] = 0x46;
    ip[3] += 4;
    let datagram = Datagram::parse(&ip).unwrap().unwrap();
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
    let header = |payload_len| UdpRepr {
        src_port: 1,
        dst_port: 2,
        payload_len,
        checksum: 0,
    };
    let mut out = [0; UdpRepr::LEN];
    assert!(matches!(
        header(65_528).emit(&mut out),
        Err(Error::OutOfRange {
            max: 65_535,
            got: 65_536,
            ..
        })
    ));
    assert!(header(65_527).emit(&mut out).is_ok());
}

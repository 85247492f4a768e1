//! Helpers shared by several test programs.
#![allow(dead_code, reason = "each test program uses a part of this module")]

pub(crate) mod strategies;

use std::path::Path;

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use portolan_wire::icrc::Flow;
use portolan_wire::ip::{Datagram, IpRepr, Ipv4Repr, Ipv6Repr, PROTOCOL_UDP, UdpRepr};
use portolan_wire::rocev2::UDP_PORT;

/// The IP packets of the golden capture.
pub(crate) fn golden_packets() -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/rxe-linux-6.1.pcap");
    let file = std::fs::File::open(&path).expect("the golden capture is beside the tests");
    let mut reader = PcapReader::new(file).expect("a pcap file");
    assert_eq!(reader.header().datalink, DataLink::ETHERNET);
    let mut packets = Vec::new();
    while let Some(frame) = reader.next_packet() {
        let frame = frame.expect("a whole frame").data;
        if let [0x08, 0x00] | [0x86, 0xDD] = frame[12..14] {
            packets.push(frame[14..].to_vec());
        }
    }
    packets
}

/// An IP packet with a UDP datagram, without checksum, of the flow.
pub(crate) fn udp_packet(flow: &Flow, identification: u16, payload: &[u8]) -> Vec<u8> {
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
                ttl: 64,
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
                hop_limit: 64,
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
    let mut headers = [0xA5; Ipv6Repr::LEN + UdpRepr::LEN];
    let at = ip.emit(&mut headers).unwrap();
    let len = at + udp.emit(&mut headers[at..]).unwrap();
    [&headers[..len], payload].concat()
}

/// Calls `visit` with every RoCEv2 datagram of the golden capture; returns their number.
pub(crate) fn for_each_golden_datagram(mut visit: impl FnMut(&Datagram<'_>)) -> usize {
    let mut count = 0;
    for packet in golden_packets() {
        let datagram = Datagram::parse(&packet).expect("a well-formed packet");
        if let Some(datagram) = datagram.filter(|d| d.udp.dst_port == UDP_PORT) {
            visit(&datagram);
            count += 1;
        }
    }
    count
}

/// CRC-32 bit by bit from its definition, independent of the library's tables.
pub(crate) fn crc32_bitwise(bytes: &[u8]) -> u32 {
    let mut register = u32::MAX;
    for byte in bytes {
        for bit in 0..8 {
            let feedback = (register ^ u32::from(byte >> bit)) & 1;
            register >>= 1;
            if feedback == 1 {
                register ^= 0xEDB8_8320;
            }
        }
    }
    !register
}

/// The ICRC of a captured IP packet (IP header to the end of the UDP payload, without ICRC), by
/// masking a copy of its real bytes.
pub(crate) fn icrc_bitwise(ip_packet_without_icrc: &[u8]) -> u32 {
    let mut masked = vec![0xFF; 8];
    masked.extend_from_slice(ip_packet_without_icrc);
    let ip = &mut masked[8..];
    let ip_len = match ip[0] >> 4 {
        4 => {
            ip[1] = 0xFF;
            ip[8] = 0xFF;
            ip[10..12].fill(0xFF);
            20
        }
        _ => {
            ip[0] |= 0x0F;
            ip[1..4].fill(0xFF);
            ip[7] = 0xFF;
            40
        }
    };
    ip[ip_len + 6..ip_len + 8].fill(0xFF);
    if let Some(byte) = ip.get_mut(ip_len + 8 + 4) {
        *byte = 0xFF;
    }
    crc32_bitwise(&masked)
}

//! Helpers shared by several test programs.
#![allow(dead_code, reason = "each test program uses a part of this module")]

pub(crate) mod strategies;

use std::path::Path;

use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use portolan_wire::ip::{Datagram, LinkType};
use portolan_wire::rocev2::UDP_PORT;

/// One captured frame.
pub(crate) struct Frame {
    pub(crate) link: LinkType,
    pub(crate) bytes: Vec<u8>,
}

/// All frames of the golden capture.
pub(crate) fn golden_frames() -> Vec<Frame> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/rxe-linux-6.1.pcap");
    let file = std::fs::File::open(&path).expect("the golden capture is beside the tests");
    let mut reader = PcapReader::new(file).expect("a pcap file");
    let link =
        LinkType::from_value(DataLink::into(reader.header().datalink)).expect("a known link");
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let bytes = packet.expect("a whole packet").data.into_owned();
        frames.push(Frame { link, bytes });
    }
    frames
}

/// Calls `visit` with every RoCEv2 datagram of the golden capture; returns their number.
pub(crate) fn for_each_golden_datagram(mut visit: impl FnMut(&Datagram<'_>)) -> usize {
    let mut count = 0;
    for frame in golden_frames() {
        let datagram = Datagram::parse(frame.link, &frame.bytes).expect("a well-formed frame");
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

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use portolan_wire::bth::Opcode;
use portolan_wire::cm::{CmMessage, PrivateData, RejRepr, RejectReason, RepRepr, ReqRepr};
use portolan_wire::eth::{DethRepr, FethRepr, RethRepr};
use portolan_wire::icrc::{self, Flow};
use portolan_wire::rocev2::{Headers, ICRC_LEN, UDP_PORT};
use portolan_wire::{PortSpace, Psn, QKey, Qpn, ServiceId};
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::capture::{LinkType, PcapWriter, Record, UdpHeaders, udp_packet};
use crate::terminal::Theme;

const IDENTIFICATION: u16 = 0x1234;

/// A writer whose bytes can be read afterwards.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decodes a capture of these raw IP packets, one per millisecond. Returns the output and the outcome.
fn decode_packets(packets: &[Vec<u8>], trace: bool, json: bool) -> (String, Result<Outcome>) {
    let mut file = Vec::new();
    let mut writer = PcapWriter::new(&mut file).unwrap();
    for (i, packet) in packets.iter().enumerate() {
        writer
            .packet(UNIX_EPOCH + Duration::from_millis(i as u64), packet)
            .unwrap();
    }
    writer.flush().unwrap();
    drop(writer);
    decode_file(&file, trace, json)
}

fn decode_file(file: &[u8], trace: bool, json: bool) -> (String, Result<Outcome>) {
    let shared = Shared::default();
    let theme = Theme {
        width: 100,
        color: false,
        unicode: false,
    };
    let mut output = Output::new(Box::new(shared.clone()), theme, json, true);
    let outcome = decode(file, trace, &mut output);
    let text = String::from_utf8(shared.0.lock().unwrap().clone()).unwrap();
    (text, outcome)
}

/// A raw IP packet with a valid ICRC, from one address to another.
fn packet(src: &str, dst: &str, headers: Headers, payload: &[u8]) -> Vec<u8> {
    let address = |ip: &str, port| SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port);
    let (src, dst) = (address(src, 50_000), address(dst, UDP_PORT));
    let mut datagram = vec![0; headers.len()];
    headers.emit(&mut datagram).unwrap();
    datagram.extend(payload);
    datagram.extend([0; ICRC_LEN]);
    let flow = Flow::between(src, dst).unwrap();
    icrc::append(&flow, IDENTIFICATION, &mut datagram).unwrap();
    raw(src, dst, &datagram)
}

fn raw(src: SocketAddr, dst: SocketAddr, datagram: &[u8]) -> Vec<u8> {
    let headers = UdpHeaders {
        src,
        dst,
        identification: IDENTIFICATION,
        traffic_class: 0,
        hop_limit: 0,
    };
    let mut out = Vec::new();
    udp_packet(&headers, datagram, &mut out).unwrap();
    out
}

fn send(src: &str, dst: &str, qpn: u32, payload: &[u8]) -> Vec<u8> {
    let headers = Headers::new(Opcode::RcSendOnly, Qpn::new(qpn), Psn::new(7));
    packet(src, dst, headers, payload)
}

fn mad(src: &str, dst: &str, message: impl Into<CmMessage>) -> Vec<u8> {
    let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0));
    headers.deth = Some(DethRepr {
        qkey: QKey(0x8001_0000),
        src_qp: Qpn::GSI,
    });
    let mut mad = [0; 256];
    message.into().emit(1, &mut mad).unwrap();
    packet(src, dst, headers, &mad)
}

fn req(private_data: &[u8]) -> ReqRepr {
    ReqRepr {
        local_comm_id: 0xA,
        local_qpn: Qpn::new(0x11),
        service_id: ServiceId::from_port(PortSpace::Tcp, 7471),
        private_data: PrivateData::from_slice(private_data).unwrap(),
        ..ReqRepr::default()
    }
}

fn rep() -> RepRepr {
    RepRepr {
        local_comm_id: 0xB,
        remote_comm_id: 0xA,
        local_qpn: Qpn::new(0x22),
        ..RepRepr::default()
    }
}

#[test]
fn sound_packets_over_ipv4_and_ipv6_are_good() {
    let packets = [
        send("10.0.0.1", "10.0.0.2", 1000, b"abcd"),
        send("fe80::1", "fe80::2", 1000, b"abcd"),
    ];
    let (text, outcome) = decode_packets(&packets, false, false);
    assert_eq!(outcome.unwrap(), Outcome::Good);
    assert!(text.contains("fe80::1 -> fe80::2"), "{text}");
    assert!(text.ends_with("2 packets, 2 ICRC valid\n"), "{text}");
}

#[test]
fn one_flipped_bit_anywhere_in_the_datagram_fails_the_check() {
    let good = send("10.0.0.1", "10.0.0.2", 1000, b"abcd");
    // After the IP and UDP headers. Byte 4 of the BTH is not covered, as in the standard.
    for at in (28..good.len()).filter(|&at| at != 28 + 4) {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        let (text, outcome) = decode_packets(&[good.clone(), bad], false, false);
        assert_eq!(outcome.unwrap(), Outcome::CheckFailed, "byte {at}");
        assert!(text.contains("2 packets, 1 ICRC valid"), "{text}");
        assert!(text.contains("1 with a wrong ICRC"), "{text}");
    }
}

#[test]
fn a_wrong_identification_fails_the_check_as_well() {
    let mut bad = send("10.0.0.1", "10.0.0.2", 1000, b"abcd");
    bad[4] ^= 1;
    let (_, outcome) = decode_packets(&[bad], false, false);
    assert_eq!(outcome.unwrap(), Outcome::CheckFailed);
}

#[test]
fn a_cut_packet_shows_its_headers_and_is_not_counted_valid() {
    for packet in [
        send("10.0.0.1", "10.0.0.2", 0x1234, &[7; 400]),
        send("fe80::1", "fe80::2", 0x1234, &[7; 400]),
    ] {
        let mut file = Vec::new();
        let mut writer = PcapWriter::new(&mut file).unwrap();
        writer.packet(UNIX_EPOCH, &packet[..96]).unwrap();
        writer.flush().unwrap();
        drop(writer);
        let (text, outcome) = decode_file(&file, false, false);
        assert_eq!(outcome.unwrap(), Outcome::CheckFailed);
        assert!(text.contains("RC SEND Only qp 0x001234"), "{text}");
        assert!(text.contains("of 416 bytes captured"), "{text}");
        assert!(text.contains("1 packets, 0 ICRC valid"), "{text}");
    }
}

#[test]
fn an_unknown_opcode_with_a_valid_icrc_is_no_failure_and_a_malformed_packet_is() {
    let src = SocketAddr::new([10, 0, 0, 1].into(), 50_000);
    let dst = SocketAddr::new([10, 0, 0, 2].into(), UDP_PORT);
    let flow = Flow::between(src, dst).unwrap();
    let with_icrc = |mut datagram: Vec<u8>| {
        datagram.extend([0; ICRC_LEN]);
        icrc::append(&flow, IDENTIFICATION, &mut datagram).unwrap();
        raw(src, dst, &datagram)
    };
    let mut unknown = vec![0; 12];
    unknown[0] = 0xE0;
    let (text, outcome) = decode_packets(&[with_icrc(unknown)], false, false);
    assert_eq!(outcome.unwrap(), Outcome::Good);
    assert!(text.contains("opcode 0xe0 is not supported"), "{text}");

    let mut ack_with_payload = vec![0; 16 + 4];
    ack_with_payload[0] = Opcode::RcAck.value();
    let (text, outcome) = decode_packets(&[with_icrc(ack_with_payload)], false, false);
    assert_eq!(outcome.unwrap(), Outcome::CheckFailed);
    assert!(
        text.contains("1 malformed, though their ICRC is valid"),
        "{text}"
    );
}

#[test]
fn private_data_is_shown_after_rdma_cms_header_and_never_raw() {
    let cma = portolan_wire::cma::CmaHeader::new(
        IpAddr::from([10, 0, 0, 1]),
        4242,
        IpAddr::from([10, 0, 0, 2]),
    );
    let mut private_data = vec![0; 36];
    cma.unwrap().emit(&mut private_data).unwrap();
    private_data.extend(b"ahoy\x1b[2J");
    let (text, _) = decode_packets(
        &[mad("10.0.0.1", "10.0.0.2", req(&private_data))],
        false,
        false,
    );
    assert!(text.contains(r#"private "ahoy\x1b[2J""#), "{text}");
    assert!(!text.contains('\x1b'));
}

#[test]
fn a_refusal_explains_itself_in_every_form() {
    let rej = RejRepr {
        remote_comm_id: 0xA,
        reason: RejectReason::INVALID_SERVICE_ID,
        ..RejRepr::default()
    };
    let packets = [mad("10.0.0.2", "10.0.0.1", rej)];
    for (trace, json) in [(false, false), (true, false), (false, true)] {
        let (text, _) = decode_packets(&packets, trace, json);
        assert!(text.contains("nothing listens there"), "{text}");
    }
}

#[test]
fn the_handshake_distinguishes_the_sides_of_a_connection_within_one_address() {
    let lo = "127.0.0.1";
    let packets = [
        mad(lo, lo, req(&[])),
        mad(lo, lo, rep()),
        send(lo, lo, 0x22, b"to passive"),
        send(lo, lo, 0x11, b"to active"),
    ];
    let (text, _) = decode_packets(&packets, true, false);
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].contains("127.0.0.1 active") && lines[0].ends_with("127.0.0.1 passive"));
    let rightward = [true, false, true, false];
    for (line, rightward) in lines[1..5].iter().zip(rightward) {
        assert_eq!(line.contains("->|"), rightward, "{text}");
        assert_eq!(line.contains("|<-"), !rightward, "{text}");
    }
}

#[test]
fn without_the_handshake_the_first_speaker_within_one_address_is_taken_for_active() {
    let lo = "::1";
    let packets = [
        send(lo, lo, 5, b"abcd"),
        send(lo, lo, 6, b"abcd"),
        send(lo, lo, 5, b"abcd"),
    ];
    let (text, _) = decode_packets(&packets, true, false);
    let ways: Vec<_> = text
        .lines()
        .skip(1)
        .take(3)
        .map(|line| line.contains("->|"))
        .collect();
    assert_eq!(ways, [true, false, true], "{text}");
}

#[test]
fn json_is_an_object_a_line_and_the_sum_is_the_last() {
    let packets = [
        mad("10.0.0.1", "10.0.0.2", req(b"")),
        send("10.0.0.1", "10.0.0.2", 34, b"abcd"),
        vec![0x45; 20],
    ];
    let (text, _) = decode_packets(&packets, false, true);
    let objects: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(objects.len(), 3, "{text}");
    assert_eq!(objects[0]["cm"]["message"], "REQ");
    assert_eq!(objects[0]["cm"]["qpn"], 0x11);
    assert_eq!(objects[1]["opcode"], "RC SEND Only");
    assert_eq!(
        (&objects[1]["dest_qp"], &objects[1]["payload_len"]),
        (&34.into(), &4.into())
    );
    assert_eq!(objects[1]["time_ns"], 1_000_000);
    assert_eq!(objects[2]["type"], "summary");
    assert_eq!(
        (&objects[2]["packets"], &objects[2]["other_frames"]),
        (&2.into(), &1.into())
    );
}

#[test]
fn json_has_the_marks_of_congestion_and_what_a_flush_asks_for() {
    let mut marked = Headers::new(Opcode::RcSendOnly, Qpn::new(5), Psn::new(7));
    marked.bth.fecn = true;
    let mut flush = Headers::new(Opcode::RcFlush, Qpn::new(5), Psn::new(8));
    flush.bth.becn = true;
    flush.feth = Some(FethRepr {
        placement: 2,
        selectivity: 1,
    });
    flush.reth = Some(RethRepr {
        va: 0,
        rkey: 0,
        dma_len: 64,
    });
    let packets = [marked, flush].map(|headers| packet("10.0.0.1", "10.0.0.2", headers, &[]));
    let (text, outcome) = decode_packets(&packets, false, true);
    assert_eq!(outcome.unwrap(), Outcome::Good, "{text}");
    let objects: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (marked, flush) = (&objects[0], &objects[1]);
    assert_eq!(
        (&marked["fecn"], &marked["becn"]),
        (&true.into(), &false.into())
    );
    assert_eq!(
        (&flush["fecn"], &flush["becn"]),
        (&false.into(), &true.into())
    );
    assert_eq!(
        (&flush["placement"], &flush["selectivity"]),
        (&2.into(), &1.into())
    );
    assert!(marked.get("placement").is_none(), "{marked}");
}

#[test]
fn a_file_that_breaks_off_is_summed_up_and_is_an_error() {
    let mut file = Vec::new();
    let mut writer = PcapWriter::new(&mut file).unwrap();
    writer
        .packet(UNIX_EPOCH, &send("10.0.0.1", "10.0.0.2", 34, b"abcd"))
        .unwrap();
    writer.packet(UNIX_EPOCH, b"second").unwrap();
    writer.flush().unwrap();
    drop(writer);
    let (text, outcome) = decode_file(&file[..file.len() - 1], false, false);
    assert!(text.contains("1 packets, 1 ICRC valid"), "{text}");
    assert!(
        outcome
            .unwrap_err()
            .to_string()
            .contains("ends inside a record")
    );
}

#[test]
fn other_traffic_is_counted_by_kind() {
    let tcp = {
        let mut packet = send("10.0.0.1", "10.0.0.2", 1, b"");
        packet[9] = 6;
        packet
    };
    let dns = {
        let mut packet = send("10.0.0.1", "10.0.0.2", 1, b"");
        packet[22..24].copy_from_slice(&53_u16.to_be_bytes());
        packet
    };
    let fragment = {
        let mut packet = send("10.0.0.1", "10.0.0.2", 1, b"");
        packet[6] = 0x20;
        packet
    };
    let (text, outcome) = decode_packets(&[tcp.clone(), tcp, dns, fragment], false, false);
    assert_eq!(outcome.unwrap(), Outcome::Good);
    for kind in [
        "2  TCP",
        "1  UDP to another port",
        "1  IP fragment",
        "4 other frames",
    ] {
        assert!(text.contains(kind), "{kind} in {text}");
    }
}

proptest! {
    /// Random and truncated frames of every link type go through the whole decoder.
    #[test]
    fn no_frame_panics(
        link in prop::sample::select(vec![0, 1, 101, 108, 113, 276, 999]),
        start in prop::sample::select(vec![vec![], send("10.0.0.1", "10.0.0.2", 1, b"abcd"), mad("::1", "::1", req(b"x"))]),
        len in 0_usize..400,
        flips in prop::collection::vec((0_usize..400, any::<u8>()), 0..6),
        rest in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut bytes = [start, rest].concat();
        bytes.truncate(len);
        for (at, value) in flips {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= value;
            }
        }
        let record = Record { number: 1, time_ns: 0, link: LinkType(link), wire_len: bytes.len(), bytes: &bytes };
        let mut patched = Vec::new();
        if let Dissected::Roce(packet) = dissect(&record, &mut patched) {
            let mut tracer = trace::Tracer::new();
            tracer.packet(Duration::ZERO, &packet);
            describe::in_full(&packet);
            json::object(1, 0, &packet);
        }
    }
}

//! The capture of a real kernel's traffic parses completely, and emitting the result reproduces its
//! bytes.

mod common;

use std::collections::BTreeMap;

use common::{for_each_golden_datagram, golden_packets};
use portolan_wire::bth::Opcode;
use portolan_wire::cm::{AttributeId, CmMessage, RejMessage, RejectReason, SidrStatus};
use portolan_wire::cma::CmaHeader;
use portolan_wire::icrc::{self, Identification};
use portolan_wire::ip::Datagram;
use portolan_wire::mad::{MAD_LEN, MadHeaderRepr, MadPacket};
use portolan_wire::rocev2::{ICRC_LEN, MAX_HEADERS_LEN, Packet};
use portolan_wire::{PortSpace, QKey, Qpn, ServiceId};

/// RoCEv2 packets in the capture.
const PACKETS: usize = 88;

/// Every CM message of the capture, in order.
fn cm_messages() -> Vec<CmMessage> {
    let mut messages = Vec::new();
    for_each_golden_datagram(|datagram| {
        let packet = Packet::parse(datagram.payload).unwrap();
        messages.extend(packet.mad().map(|mad| CmMessage::parse(mad).unwrap().1));
    });
    messages
}

#[test]
fn every_header_is_emitted_again_byte_for_byte() {
    let count = for_each_golden_datagram(|datagram| {
        let packet = Packet::parse(datagram.payload).unwrap();
        let mut out = [0xA5; MAX_HEADERS_LEN];
        let len = packet.headers().emit(&mut out).unwrap();
        assert_eq!(out[..len], datagram.payload[..packet.payload_offset()]);
        assert!(
            out[len..].iter().all(|b| *b == 0xA5),
            "wrote beyond its length"
        );

        let mut whole = out[..len].to_vec();
        whole.extend_from_slice(packet.payload());
        whole.extend_from_slice(packet.pad());
        whole.extend_from_slice(&packet.icrc().to_le_bytes());
        assert_eq!(whole, datagram.payload);
    });
    assert_eq!(count, PACKETS);
}

#[test]
fn every_cm_message_is_emitted_again_byte_for_byte() {
    let mut seen = BTreeMap::new();
    for_each_golden_datagram(|datagram| {
        let packet = Packet::parse(datagram.payload).unwrap();
        let Some(mad) = packet.mad() else { return };
        let (header, message) = CmMessage::parse(mad).unwrap();
        *seen.entry(message.attribute_id() as u16).or_insert(0) += 1;

        let mut out = [0xA5; MAD_LEN];
        message.emit(header.tid, &mut out).unwrap();
        assert_eq!(out, mad, "{message}");

        let mut header_bytes = [0xA5; MadHeaderRepr::LEN];
        MadPacket::new_checked(mad)
            .unwrap()
            .header()
            .emit(&mut header_bytes)
            .unwrap();
        assert_eq!(header_bytes, mad[..MadHeaderRepr::LEN]);
    });
    for id in [
        AttributeId::Req,
        AttributeId::Rej,
        AttributeId::Rep,
        AttributeId::Rtu,
        AttributeId::Dreq,
        AttributeId::Drep,
        AttributeId::SidrReq,
        AttributeId::SidrRep,
    ] {
        assert!(seen.contains_key(&(id as u16)), "no {id:?} in {seen:?}");
    }
}

#[test]
fn every_cma_header_is_emitted_again_byte_for_byte_and_names_the_machines() {
    let mut count = 0;
    for message in cm_messages() {
        let private_data: &[u8] = match &message {
            CmMessage::Req(req) => &req.private_data,
            CmMessage::SidrReq(req) => &req.private_data,
            _ => continue,
        };
        let cma = CmaHeader::parse(private_data).unwrap();
        let mut out = [0xA5; CmaHeader::LEN];
        cma.emit(&mut out).unwrap();
        assert_eq!(out, private_data[..CmaHeader::LEN]);
        assert_eq!(cma.src_addr().to_string(), "192.168.7.2");
        assert_eq!(cma.dst_addr().to_string(), "192.168.7.1");
        assert_eq!(
            CmaHeader::new(cma.src_addr(), cma.port, cma.dst_addr()),
            Some(cma)
        );
        count += 1;
    }
    assert!(count >= 5, "only {count} CMA headers");
}

#[test]
fn every_icrc_is_valid_with_the_identification_known() {
    let count = for_each_golden_datagram(|datagram| {
        let (flow, identification) = datagram.flow().unwrap();
        icrc::verify(&flow, identification, datagram.payload).unwrap();
    });
    assert_eq!(count, PACKETS);
}

#[test]
fn every_icrc_is_valid_with_the_identification_hidden_and_recovers_it() {
    let mut nonzero = 0;
    let count = for_each_golden_datagram(|datagram| {
        let (flow, known) = datagram.flow().unwrap();
        let ok = icrc::verify(&flow, Identification::Hidden, datagram.payload).unwrap();
        assert_eq!(Identification::Known(ok.identification), known);
        nonzero += usize::from(ok.identification != 0);
    });
    assert_eq!(count, PACKETS);
    assert!(
        nonzero > PACKETS / 2,
        "the capture is to exercise the recovery"
    );
}

#[test]
fn every_icrc_agrees_with_a_bitwise_computation_over_the_captured_bytes() {
    for bytes in golden_packets() {
        let Some(datagram) = Datagram::parse(&bytes).unwrap() else {
            continue;
        };
        let end = datagram.payload.as_ptr_range().end as usize - bytes.as_ptr() as usize;
        let computed = common::icrc_bitwise(&bytes[..end - ICRC_LEN]);
        assert_eq!(computed, Packet::parse(datagram.payload).unwrap().icrc());
    }
}

#[test]
fn every_ip_and_udp_header_is_emitted_again_byte_for_byte() {
    for bytes in golden_packets() {
        let Some(datagram) = Datagram::parse(&bytes).unwrap() else {
            continue;
        };
        let mut out = [0xA5; 128];
        let mut at = datagram.ip.emit(&mut out).unwrap();
        at += datagram.udp.emit(&mut out[at..]).unwrap();
        assert_eq!(out[..at], bytes[..at]);
    }
}

#[test]
fn the_first_request_has_rpings_parameters() {
    let Some(CmMessage::Req(req)) = cm_messages().into_iter().next() else {
        panic!("the capture begins with a REQ");
    };
    assert_eq!(req.service_id, ServiceId::from_port(PortSpace::Tcp, 7174));
    assert_eq!(req.primary.local_gid.to_ip().to_string(), "192.168.7.2");
    assert_eq!(req.primary.remote_gid.to_ip().to_string(), "192.168.7.1");
    assert_eq!(req.path_mtu.bytes(), Some(1024));
    assert_eq!(req.max_cm_retries, 15);
    assert_eq!(req.pkey.0, 0xFFFF);
    assert!(req.alternate.is_absent());
}

#[test]
fn the_request_to_no_listener_is_rejected_with_reason_8() {
    let rejects: Vec<_> = cm_messages()
        .into_iter()
        .filter_map(|message| match message {
            CmMessage::Rej(rej) => Some(rej),
            _ => None,
        })
        .collect();
    assert!(!rejects.is_empty());
    for rej in rejects {
        assert_eq!(rej.message, RejMessage::Req);
        assert_eq!(rej.reason, RejectReason::INVALID_SERVICE_ID);
    }
}

#[test]
fn the_datagram_service_resolves_to_a_queue_pair_and_the_rdma_cm_key() {
    let resolved = cm_messages()
        .into_iter()
        .find_map(|message| match message {
            CmMessage::SidrRep(rep) => Some(rep),
            _ => None,
        })
        .expect("a SIDR REP");
    assert_eq!(resolved.status, SidrStatus::SUCCESS);
    assert_eq!(resolved.qkey, QKey::RDMA_CM);
    assert_eq!(resolved.service_id.port_space(), Some(PortSpace::Udp));
}

#[test]
fn the_capture_holds_the_operations_it_was_made_for() {
    let mut opcodes = BTreeMap::new();
    let mut multicast = 0;
    for_each_golden_datagram(|datagram| {
        let packet = Packet::parse(datagram.payload).unwrap();
        *opcodes.entry(packet.bth().opcode.value()).or_insert(0) += 1;
        multicast += usize::from(packet.bth().dest_qp == Qpn::MULTICAST);
    });
    for opcode in [
        Opcode::RcSendOnly,
        Opcode::RcWriteOnly,
        Opcode::RcReadRequest,
        Opcode::RcReadResponseOnly,
        Opcode::RcAck,
        Opcode::UdSendOnly,
        Opcode::UdSendOnlyImm,
    ] {
        assert!(opcodes.contains_key(&opcode.value()), "no {opcode}");
    }
    assert!(multicast > 0);
}

#[test]
fn packets_are_readable_in_a_trace() {
    let mut lines = Vec::new();
    for_each_golden_datagram(|datagram| {
        let packet = Packet::parse(datagram.payload).unwrap();
        lines.push(match packet.mad() {
            Some(mad) => CmMessage::parse(mad).unwrap().1.to_string(),
            None => packet.to_string(),
        });
    });
    for expected in [
        "RC SEND Only qp 0x000011 psn 14734638 ackreq len 16",
        "RC Acknowledge qp 0x000011 psn 14734638 ACK msn 1",
        "RC RDMA READ Request qp 0x000011 psn 372672 va 0x000055bf0bf2e370 rkey 0x000005f9 dma 64 ackreq",
        "RC RDMA READ Response Only qp 0x000011 psn 372672 ACK msn 1 len 64",
        "UD SEND Only with Immediate qp 0xffffff psn 0 from qp 0x000015 qkey 0x01234567 imm 0x00000015 len 100",
    ] {
        assert!(lines.iter().any(|line| line == expected), "no {expected}");
    }
    let handshake: Vec<_> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("CM "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(handshake[..5], ["REQ", "REP", "RTU", "DREQ", "DREP"]);
}

//! Descriptions of packets.

use std::fmt::Write;

use portolan_wire::PortSpace;
use portolan_wire::bth::Opcode;
use portolan_wire::cm::CmMessage;
use portolan_wire::cma::{self, CmaHeader};
use portolan_wire::eth::Syndrome;
use portolan_wire::rocev2::Packet;

use super::dissect::{Body, Icrc, RocePacket};
use crate::ladder::Kind;
use crate::text::{bytes, quoted, without_padding};

/// Maximum number of private data bytes to show.
const MAX_PRIVATE_DATA_SHOWN: usize = 48;

/// The full description of a packet, for its own line.
pub(super) fn in_full(packet: &RocePacket<'_>) -> String {
    let mut text = match &packet.body {
        Body::Packet(packet) => packet.to_string(),
        Body::Cm(_, message) => format!("{message}{}", private_data_text(message)),
        Body::Mad(packet, error) => format!("{packet} MAD: {error}"),
        Body::Cut(headers, cut) => {
            let headers = match headers {
                Ok(headers) => headers.to_string(),
                Err(error) => error.to_string(),
            };
            format!(
                "{headers} [cut: {} of {} bytes captured]",
                cut.captured, cut.wire
            )
        }
        Body::Malformed(error) => error.to_string(),
    };
    match packet.icrc {
        Icrc::Valid => {}
        // Writing to a string cannot fail.
        Icrc::Invalid(error) => drop(write!(text, " [{error}]")),
        Icrc::Unchecked => text.push_str(" [ICRC not checked]"),
    }
    text
}

/// The short description of a packet, for an arrow's label.
pub(super) fn in_short(packet: &RocePacket<'_>) -> String {
    let text = match &packet.body {
        Body::Packet(packet) => packet_label(packet),
        Body::Cm(_, message) => message_label(message),
        Body::Mad(..) => "MAD".to_owned(),
        Body::Cut(Ok(headers), _) => format!("{} (cut)", operation(headers.bth.opcode)),
        Body::Cut(Err(_), _) => "(cut)".to_owned(),
        Body::Malformed(error) => error.to_string(),
    };
    match packet.icrc {
        Icrc::Invalid(_) => format!("BAD ICRC: {text}"),
        Icrc::Valid | Icrc::Unchecked => text,
    }
}

/// The kind of arrow for a packet.
pub(super) fn kind(packet: &RocePacket<'_>) -> Kind {
    if matches!(packet.icrc, Icrc::Invalid(_)) {
        return Kind::Failure;
    }
    match &packet.body {
        Body::Cm(_, message) => match **message {
            CmMessage::Rej(_) => Kind::Failure,
            _ => Kind::Handshake,
        },
        Body::Packet(packet) => match (packet.bth().opcode.as_rc(), packet.aeth()) {
            (Opcode::RcAck, Some(aeth)) if matches!(aeth.syndrome, Syndrome::Ack { .. }) => {
                Kind::Ack
            }
            (Opcode::RcAck, _) => Kind::Failure,
            _ => Kind::Data,
        },
        Body::Mad(..) => Kind::Handshake,
        Body::Cut(..) => Kind::Data,
        Body::Malformed(_) => Kind::Failure,
    }
}

/// The consumer's part of a message's private data, including trailing zeros but without rdma_cm's header (IBTA annex
/// A11).
pub(super) fn private_data(message: &CmMessage) -> &[u8] {
    match message {
        CmMessage::Req(message) => {
            after_cma_header(message.service_id.port_space(), &message.private_data)
        }
        CmMessage::Mra(message) => &message.private_data,
        CmMessage::Rej(message) => &message.private_data,
        CmMessage::Rep(message) => &message.private_data,
        CmMessage::Rtu(message) => &message.private_data,
        CmMessage::Dreq(message) => &message.private_data,
        CmMessage::Drep(message) => &message.private_data,
        CmMessage::SidrReq(message) => {
            after_cma_header(message.service_id.port_space(), &message.private_data)
        }
        CmMessage::SidrRep(message) => &message.private_data,
        CmMessage::Lap(message) => &message.private_data,
        CmMessage::Apr(message) => &message.private_data,
    }
}

fn after_cma_header(port_space: Option<PortSpace>, private_data: &[u8]) -> &[u8] {
    match port_space {
        Some(PortSpace::Tcp | PortSpace::Udp | PortSpace::Ipoib)
            if CmaHeader::parse(private_data).is_ok() =>
        {
            private_data.get(cma::LEN..).unwrap_or_default()
        }
        _ => private_data,
    }
}

/// Private data for display after a message: quoted, or empty if there is none.
fn private_data_text(message: &CmMessage) -> String {
    let data = without_padding(private_data(message));
    match data.get(..MAX_PRIVATE_DATA_SHOWN) {
        _ if data.is_empty() => String::new(),
        Some(start) if data.len() > start.len() => {
            format!(" private {}… ({} bytes)", quoted(start), data.len())
        }
        _ => format!(" private {}", quoted(data)),
    }
}

fn message_label(message: &CmMessage) -> String {
    let text = match message {
        CmMessage::Req(req) => format!(
            "REQ {} qp {} psn {}",
            req.service_id, req.local_qpn, req.starting_psn
        ),
        CmMessage::Rep(rep) => format!("REP qp {} psn {}", rep.local_qpn, rep.starting_psn),
        CmMessage::Rej(rej) => format!("REJ {}", rej.reason),
        CmMessage::Mra(_) => "MRA".to_owned(),
        CmMessage::Rtu(_) => "RTU".to_owned(),
        CmMessage::Dreq(_) => "DREQ".to_owned(),
        CmMessage::Drep(_) => "DREP".to_owned(),
        CmMessage::SidrReq(req) => format!("SIDR REQ {}", req.service_id),
        CmMessage::SidrRep(rep) => format!("SIDR REP {} qp {}", rep.status, rep.qpn),
        CmMessage::Lap(_) => "LAP".to_owned(),
        CmMessage::Apr(_) => "APR".to_owned(),
    };
    text + &private_data_text(message)
}

fn packet_label(packet: &Packet<'_>) -> String {
    let bth = packet.bth();
    if let (Opcode::RcAck, Some(aeth)) = (bth.opcode.as_rc(), packet.aeth()) {
        return format!("{} psn {}", aeth.syndrome, bth.psn);
    }
    let mut label = operation(bth.opcode);
    // Writing to a string cannot fail.
    if let Some(reth) = packet.reth() {
        let _ = write!(label, " of {}", bytes(reth.dma_len.into()));
    } else if bth.opcode.has_payload() {
        let _ = write!(label, " {}", bytes(packet.payload().len() as u64));
    }
    let _ = write!(label, " psn {}", bth.psn);
    label
}

/// An operation without its transport and without "Only".
fn operation(opcode: Opcode) -> String {
    let name = opcode.name();
    let name = ["RC ", "UC ", "UD "]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    name.replacen(" Only", "", 1)
}

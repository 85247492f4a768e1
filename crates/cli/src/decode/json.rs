//! Packets for machines: one object per line.

use portolan_wire::cm::CmMessage;
use portolan_wire::eth::Syndrome;
use portolan_wire::rocev2::{Headers, Packet};
use serde_json::{Map, Value, json};

use super::describe::private_data;
use super::dissect::{Body, Icrc, RocePacket};
use crate::text::{hex, without_padding};

/// A packet as an object. Keys that do not apply are absent; numbers are in host order.
pub(super) fn object(number: u64, time_ns: u64, packet: &RocePacket<'_>) -> Value {
    let mut object = Map::new();
    let mut set = |key: &str, value: Value| {
        object.insert(key.to_owned(), value);
    };
    set("type", json!("packet"));
    set("number", json!(number));
    set("time_ns", json!(time_ns));
    set("src", json!(packet.src.ip().to_string()));
    set("src_port", json!(packet.src.port()));
    set("dst", json!(packet.dst.ip().to_string()));
    set("dst_port", json!(packet.dst.port()));
    set(
        "icrc",
        json!(match packet.icrc {
            Icrc::Valid => "valid",
            Icrc::Invalid(_) => "invalid",
            Icrc::Unchecked => "unchecked",
        }),
    );
    if let Icrc::Invalid(error) = packet.icrc {
        set("icrc_error", json!(error.to_string()));
    }
    match &packet.body {
        Body::Packet(packet) => add_packet(&mut object, packet),
        Body::Cm(packet, message) => {
            add_packet(&mut object, packet);
            object.insert("cm".to_owned(), message_object(message));
        }
        Body::Mad(packet, error) => {
            add_packet(&mut object, packet);
            object.insert("error".to_owned(), json!(error.to_string()));
        }
        Body::Cut(headers, cut) => {
            match headers {
                Ok(headers) => add_headers(&mut object, headers),
                Err(error) => drop(object.insert("error".to_owned(), json!(error.to_string()))),
            }
            let cut = json!({ "captured": cut.captured, "wire": cut.wire });
            object.insert("cut".to_owned(), cut);
        }
        Body::Malformed(error) => {
            object.insert("error".to_owned(), json!(error.to_string()));
        }
    }
    Value::Object(object)
}

fn add_packet(object: &mut Map<String, Value>, packet: &Packet<'_>) {
    add_headers(object, &packet.headers());
    object.insert("payload_len".to_owned(), json!(packet.payload().len()));
}

fn add_headers(object: &mut Map<String, Value>, headers: &Headers) {
    let bth = &headers.bth;
    let mut set = |key: &str, value: Value| {
        object.insert(key.to_owned(), value);
    };
    set("opcode", json!(bth.opcode.name()));
    set("pkey", json!(bth.pkey.0));
    set("dest_qp", json!(bth.dest_qp.value()));
    set("psn", json!(bth.psn.value()));
    set("ack_request", json!(bth.ack_request));
    set("solicited", json!(bth.solicited));
    set("fecn", json!(bth.fecn));
    set("becn", json!(bth.becn));
    if let Some(deth) = &headers.deth {
        set("qkey", json!(deth.qkey.0));
        set("src_qp", json!(deth.src_qp.value()));
    }
    if let Some(xrceth) = &headers.xrceth {
        set("srqn", json!(xrceth.srqn));
    }
    if let Some(reth) = &headers.reth {
        set("va", json!(reth.va));
        set("rkey", json!(reth.rkey));
        set("dma_len", json!(reth.dma_len));
    }
    if let Some(feth) = &headers.feth {
        set("placement", json!(feth.placement));
        set("selectivity", json!(feth.selectivity));
    }
    if let Some(atomic) = &headers.atomic_eth {
        set("va", json!(atomic.va));
        set("rkey", json!(atomic.rkey));
        set("swap_or_add", json!(atomic.swap_or_add));
        set("compare", json!(atomic.compare));
    }
    if let Some(aeth) = &headers.aeth {
        set("acknowledge", json!(aeth.syndrome.to_string()));
        set("nak", json!(!matches!(aeth.syndrome, Syndrome::Ack { .. })));
        set("msn", json!(aeth.msn));
    }
    if let Some(ack) = &headers.atomic_ack_eth {
        set("original", json!(ack.original));
    }
    if let Some(immdt) = &headers.immdt {
        set("immediate", json!(u32::from_be_bytes(immdt.0)));
    }
    if let Some(ieth) = &headers.ieth {
        set("invalidate_rkey", json!(ieth.rkey));
    }
}

fn message_object(message: &CmMessage) -> Value {
    let mut object = json!({
        "text": message.to_string(),
        "local_comm_id": message.local_comm_id(),
        "private_data": hex(without_padding(private_data(message))),
    });
    if let Some(id) = message.remote_comm_id() {
        object["remote_comm_id"] = json!(id);
    }
    let name = match message {
        CmMessage::Req(req) => {
            object["service_id"] = json!(req.service_id.0);
            object["qpn"] = json!(req.local_qpn.value());
            object["psn"] = json!(req.starting_psn.value());
            object["responder_resources"] = json!(req.responder_resources);
            object["initiator_depth"] = json!(req.initiator_depth);
            object["path_mtu"] = json!(req.path_mtu.bytes());
            "REQ"
        }
        CmMessage::Rep(rep) => {
            object["qpn"] = json!(rep.local_qpn.value());
            object["psn"] = json!(rep.starting_psn.value());
            object["responder_resources"] = json!(rep.responder_resources);
            object["initiator_depth"] = json!(rep.initiator_depth);
            "REP"
        }
        CmMessage::Rej(rej) => {
            object["reason"] = json!(rej.reason.0);
            object["explanation"] = json!(rej.reason.explanation());
            "REJ"
        }
        CmMessage::SidrReq(req) => {
            object["service_id"] = json!(req.service_id.0);
            "SIDR_REQ"
        }
        CmMessage::SidrRep(rep) => {
            object["service_id"] = json!(rep.service_id.0);
            object["status"] = json!(rep.status.0);
            object["explanation"] = json!(rep.status.explanation());
            object["qpn"] = json!(rep.qpn.value());
            "SIDR_REP"
        }
        CmMessage::Dreq(dreq) => {
            object["remote_qpn"] = json!(dreq.remote_qpn.value());
            "DREQ"
        }
        CmMessage::Mra(_) => "MRA",
        CmMessage::Rtu(_) => "RTU",
        CmMessage::Drep(_) => "DREP",
        CmMessage::Lap(_) => "LAP",
        CmMessage::Apr(_) => "APR",
    };
    object["message"] = json!(name);
    object
}

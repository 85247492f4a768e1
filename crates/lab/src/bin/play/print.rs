//! Prints events and paths as JSON objects, with the fields that a librdmacm program sees.

use std::fmt::Write;

use portolan::cm::{CmId, Event};
use portolan::provider::address::Address;
use portolan::provider::cm::{ConnParam, EventType, PathRecord, UdParam};
use portolan::provider::verbs::{AhAttr, QpType};
use portolan::wire::addr::{Gid, QKey, Qpn};
use serde_json::{Map, Value, json};

/// Ports from this one on are chosen by the system.
const EPHEMERAL_PORT: u16 = 32768;
const NO_GID: Gid = Gid([0; 16]);

pub(super) fn event(
    line: usize,
    event: &Event,
    name_of: &dyn Fn(&CmId) -> String,
    owner_of: &dyn Fn(Qpn) -> String,
) -> Value {
    let id = event.id();
    // An id that is already destroyed has no addresses.
    let known = id.addresses().unwrap_or_default();
    let mut object = json!({
        "line": line,
        "event": event.event_type().name(),
        "number": event.event_type() as u32,
        "status": event.status(),
        "id": name_of(id),
        "listener": event.listener().map(name_of).unwrap_or_default(),
        "device": known.device_index.is_some(),
        "port_num": known.port_num,
        "ece_vendor_id": id.remote_ece().vendor_id,
        "ece_options": id.remote_ece().options,
    });
    let Value::Object(fields) = &mut object else {
        return object;
    };
    add_address(fields, "local", known.local);
    add_address(fields, "peer", known.remote);
    let qp_num = if id.service().qp_type == QpType::Ud {
        add_ud(fields, event)
    } else {
        // Without parameters all fields are 0, as in C.
        let conn = event.conn().cloned().unwrap_or_default();
        add_conn(fields, &conn);
        conn.qp_num
    };
    fields.insert("qp_num".into(), owner_of(qp_num).into());
    object
}

fn add_address(fields: &mut Map<String, Value>, name: &str, address: Option<Address>) {
    let inet = address.and_then(|address| address.inet());
    let ip = inet.map(|inet| inet.ip().to_string()).unwrap_or_default();
    let port = match inet.map_or(0, |inet| inet.port()) {
        EPHEMERAL_PORT.. => "ephemeral".to_owned(),
        port => port.to_string(),
    };
    fields.insert(name.into(), ip.into());
    fields.insert(format!("{name}_port"), port.into());
}

fn add_private_data(fields: &mut Map<String, Value>, data: &[u8]) {
    fields.insert("private_data_length".into(), data.len().into());
    fields.insert("private_data".into(), hex(data).into());
}

fn add_conn(fields: &mut Map<String, Value>, conn: &ConnParam) {
    add_private_data(fields, &conn.private_data);
    let rest: [(&str, Value); 6] = [
        ("responder_resources", conn.responder_resources.into()),
        ("initiator_depth", conn.initiator_depth.into()),
        ("flow_control", conn.flow_control.into()),
        ("retry_count", conn.retry_count.into()),
        ("rnr_retry_count", conn.rnr_retry_count.into()),
        ("srq", conn.srq.into()),
    ];
    fields.extend(rest.map(|(name, value)| (name.to_owned(), value)));
}

/// Adds the parameters of a datagram service or group. Returns the queue pair number.
fn add_ud(fields: &mut Map<String, Value>, event: &Event) -> Qpn {
    let none = UdParam {
        private_data: Box::default(),
        ah_attr: AhAttr {
            dgid: NO_GID,
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 0,
            traffic_class: 0,
            sl: 0,
            port_num: 0,
            local_route: None,
        },
        qp_num: Qpn::new(0),
        qkey: QKey(0),
    };
    let ud = event.ud().unwrap_or(&none);
    if matches!(
        event.event_type(),
        EventType::MulticastJoin | EventType::MulticastError
    ) {
        let context = event.membership().map(|membership| membership.context());
        fields.insert("context".into(), context.into());
        fields.insert("private_data_length".into(), ud.private_data.len().into());
    } else {
        add_private_data(fields, &ud.private_data);
    }
    let ah = &ud.ah_attr;
    // GID tables differ between devices, so compare the GID and not its index.
    let sgid = match ah.dgid {
        NO_GID => NO_GID,
        _ => gid_at(event.id(), ah.port_num, ah.sgid_index).unwrap_or(NO_GID),
    };
    let rest: [(&str, Value); 8] = [
        ("dgid", hex(&ah.dgid.0).into()),
        ("sgid", hex(&sgid.0).into()),
        ("flow_label", ah.flow_label.into()),
        ("hop_limit", ah.hop_limit.into()),
        ("traffic_class", ah.traffic_class.into()),
        ("sl", ah.sl.into()),
        ("ah_port_num", ah.port_num.into()),
        ("qkey", ud.qkey.0.into()),
    ];
    fields.extend(rest.map(|(name, value)| (name.to_owned(), value)));
    ud.qp_num
}

fn gid_at(id: &CmId, port_num: u8, index: u8) -> Option<Gid> {
    let gids = id.device().ok()?.gids(port_num).ok()?;
    let mut gids = gids.into_iter();
    gids.find(|entry| entry.index == u32::from(index))
        .map(|entry| entry.gid)
}

pub(super) fn paths(line: usize, paths: &[PathRecord]) {
    for (at, path) in paths.iter().enumerate() {
        let object = json!({
            "line": line,
            "path": at,
            "dgid": hex(&path.dgid.0),
            "sgid": hex(&path.sgid.0),
            "flow_label": path.flow_label,
            "hop_limit": path.hop_limit,
            "traffic_class": path.traffic_class,
            "pkey": path.pkey.0,
            "sl": path.sl,
            "mtu": path.mtu as u8,
            "rate": path.rate,
            "packet_life_time": path.packet_lifetime,
        });
        println!("{object}");
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

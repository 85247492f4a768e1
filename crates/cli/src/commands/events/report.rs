//! Output of `events`: all fields of an event, for people and machines.

use std::time::Duration;

use anyhow::Result;
use portolan::cm::{Event, Membership};
use portolan::provider::cm::{ConnParam, Ece, EventType, JoinKind, UdParam};
use portolan::wire::addr::Qpn;
use portolan::wire::cm::{RejectReason, SidrStatus};
use serde_json::{Value, json};

use crate::commands::failure::private_data_text;
use crate::output::Output;
use crate::terminal::Paint;
use crate::text::{hex, without_padding};

/// Common prefix of the names of event types.
const NAME_PREFIX: &str = "RDMA_CM_EVENT_";

/// Prints an event that arrived after `at`.
pub(super) fn event(event: &Event, at: Duration, output: &mut Output) -> Result<()> {
    if output.json {
        output.object(&object(event, at))?;
    } else {
        let line = line(event, at, output);
        output.line(&line)?;
    }
    Ok(output.flush()?)
}

fn line(event: &Event, at: Duration, output: &Output) -> String {
    let event_type = event.event_type();
    let name = event_type.name();
    let name = name.strip_prefix(NAME_PREFIX).unwrap_or(name);
    let paint = if event.failure().is_some() {
        Paint::Bad
    } else {
        Paint::Good
    };
    let ends = Ends::of(event);
    let mut parts = vec![match event.listener() {
        Some(listener) => format!("{} (of {})", event.id().number(), listener.number()),
        None => event.id().number().to_string(),
    }];
    parts.push(status_text(event_type, event.status()));
    parts.extend(ends.local.map(|local| format!("local {local}")));
    parts.extend(ends.peer.map(|peer| format!("peer {peer}")));
    if let Some(membership) = event.membership() {
        let (group, only) = (membership.group(), only_sends(membership));
        let how = if only { " to send only" } else { "" };
        parts.push(format!("group {group}{how}"));
    }
    // A message that only carries private data has zero parameters.
    let of_conn = event.conn().filter(|conn| conn.qp_num != Qpn::new(0));
    parts.extend(of_conn.map(conn_text));
    if let Some(ud) = event.ud() {
        parts.push(ud_text(ud));
    }
    let ece = event.ece();
    if ece != Ece::default() {
        let (vendor, options) = (ece.vendor_id, ece.options);
        parts.push(format!("vendor 0x{vendor:06x} options 0x{options:08x}"));
    }
    if event.conn().is_some() || event.ud().is_some() {
        parts.push(private_data_text(event.private_data()));
    }
    format!(
        "{:>9.3} s  {}  {}",
        at.as_secs_f64(),
        output.theme.paint(paint, name),
        parts.join(", ")
    )
}

fn conn_text(conn: &ConnParam) -> String {
    format!(
        "qp {}, responder resources {}, initiator depth {}, retries {}, rnr retries {}, flow control {}, srq {}",
        conn.qp_num,
        conn.responder_resources,
        conn.initiator_depth,
        conn.retry_count,
        conn.rnr_retry_count,
        on_or_off(conn.flow_control),
        on_or_off(conn.srq),
    )
}

fn ud_text(ud: &UdParam) -> String {
    let route = &ud.ah_attr;
    format!(
        "qp {}, q_key {}, gid {} from index {} of port {}, flow label 0x{:05x}, hop limit {}, traffic class {}, sl {}",
        ud.qp_num,
        ud.qkey,
        route.dgid,
        route.sgid_index,
        route.port_num,
        route.flow_label,
        route.hop_limit,
        route.traffic_class,
        route.sl,
    )
}

fn only_sends(membership: &Membership) -> bool {
    membership.kind() == JoinKind::SendOnlyFullMember
}

fn on_or_off(is_on: bool) -> &'static str {
    if is_on { "on" } else { "off" }
}

fn object(event: &Event, at: Duration) -> Value {
    let ends = Ends::of(event);
    let text = |address: Option<String>| address.map_or(Value::Null, Value::String);
    let (event_type, ece) = (event.event_type(), event.ece());
    json!({
        "type": "event",
        "time_us": at.as_micros() as u64,
        "event": event_type.name(),
        "number": event_type as u32,
        "id": event.id().number().0,
        "listener": event.listener().map(|listener| listener.number().0),
        "status": event.status(),
        "status_text": status_text(event_type, event.status()),
        "local": text(ends.local),
        "peer": text(ends.peer),
        "private_data": hex(without_padding(event.private_data())),
        "private_data_length": event.private_data().len(),
        "membership": event.membership().map(|membership| json!({
            "group": membership.group().to_string(),
            "send_only": only_sends(membership),
            "context": membership.context(),
        })),
        "conn": event.conn().map(conn_object),
        "ud": event.ud().map(ud_object),
        "ece": { "vendor_id": ece.vendor_id, "options": ece.options },
    })
}

fn conn_object(conn: &ConnParam) -> Value {
    json!({
        "qp_num": conn.qp_num.value(),
        "responder_resources": conn.responder_resources,
        "initiator_depth": conn.initiator_depth,
        "flow_control": conn.flow_control,
        "retry_count": conn.retry_count,
        "rnr_retry_count": conn.rnr_retry_count,
        "srq": conn.srq,
    })
}

fn ud_object(ud: &UdParam) -> Value {
    let route = &ud.ah_attr;
    json!({
        "qp_num": ud.qp_num.value(),
        "qkey": ud.qkey.0,
        "ah_attr": {
            "dgid": route.dgid.to_string(),
            "sgid_index": route.sgid_index,
            "flow_label": route.flow_label,
            "hop_limit": route.hop_limit,
            "traffic_class": route.traffic_class,
            "sl": route.sl,
            "port_num": route.port_num,
        },
    })
}

/// Both addresses of an event's id, if known.
struct Ends {
    local: Option<String>,
    peer: Option<String>,
}

impl Ends {
    fn of(event: &Event) -> Ends {
        // A destroyed id has no addresses.
        let known = event.id().addresses().unwrap_or_default();
        Ends {
            local: known.local.map(|address| address.to_string()),
            peer: known.remote.map(|address| address.to_string()),
        }
    }
}

/// The status as text: a positive one is a transport's reason, a negative one an errno (rdma_get_cm_event(3)).
fn status_text(event_type: EventType, status: i32) -> String {
    match (event_type, status) {
        (_, 0) => "ok".to_owned(),
        (EventType::Rejected, 1..) => {
            let reason = RejectReason(u16::try_from(status).unwrap_or(u16::MAX));
            format!("reason {reason}")
        }
        (EventType::Unreachable, 1..) => {
            let status = SidrStatus(u8::try_from(status).unwrap_or(u8::MAX));
            format!("SIDR status {status}")
        }
        (_, 1..) => format!("status {status}"),
        _ => {
            let error = std::io::Error::from_raw_os_error(status.saturating_neg());
            format!("status {status}: {error}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_printed_as_text_whatever_its_sign() {
        for (event_type, status, words) in [
            (EventType::Established, 0, "ok"),
            (EventType::Rejected, 28, "reason 28: "),
            (EventType::Unreachable, 1, "SIDR status 1: "),
            (
                EventType::Unreachable,
                -110,
                "status -110: Connection timed out",
            ),
            (EventType::AddrError, i32::MIN, "status -2147483648: "),
        ] {
            let text = status_text(event_type, status);
            assert!(text.starts_with(words), "{text}");
        }
    }
}

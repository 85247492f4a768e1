//! `path`: the path record from one GID to another.

use anyhow::{Result, anyhow};
use portolan::wire::addr::Gid;
use portolan::wire::sa::{PathRecord, Query};
use serde_json::{Value, json};

use super::administrator::client;
use crate::args::PathArgs;
use crate::exit::Outcome;
use crate::output::{Output, complain};

/// Queries the subnet administrator and prints the record.
///
/// # Errors
///
/// There is no InfiniBand port, or the administrator does not answer.
pub(crate) fn run(args: &PathArgs, output: &mut Output) -> Result<Outcome> {
    let (sgid, dgid) = (gid(&args.sgid)?, gid(&args.dgid)?);
    let (client, _) = client(&args.port, Some(sgid))?;
    let query = Query::<PathRecord>::new()
        .sgid(sgid)
        .dgid(dgid)
        .reversible(true)
        .numb_path(1);
    let outcome = match client.path(&query, args.port.timeout) {
        Ok(path) => {
            if output.json {
                output.object(&object(&path))?;
            } else {
                lines(&path).iter().try_for_each(|line| output.line(line))?;
            }
            Outcome::Good
        }
        Err(none) if none.says_none() => {
            complain(&format_args!("no path from {sgid} to {dgid}: {none}"));
            Outcome::CheckFailed
        }
        Err(failure) => return Err(failure.into()),
    };
    output.flush()?;
    Ok(outcome)
}

pub(super) fn gid(text: &str) -> Result<Gid> {
    let ip = text.parse().map(Gid::from_ip);
    ip.map_err(|_| anyhow!("{text}: a GID expected, such as fe80::2:c903:0:1"))
}

/// The fields that control how packets are sent, in the record's order.
fn fields(path: &PathRecord) -> [(&'static str, Value); 15] {
    [
        ("dgid", path.dgid.to_string().into()),
        ("sgid", path.sgid.to_string().into()),
        ("dlid", path.dlid.into()),
        ("slid", path.slid.into()),
        ("flow_label", path.flow_label.into()),
        ("hop_limit", path.hop_limit.into()),
        ("traffic_class", path.traffic_class.into()),
        ("reversible", path.reversible.into()),
        ("pkey", format!("{:#06x}", path.pkey.0).into()),
        ("qos_class", path.qos_class.into()),
        ("sl", path.sl.into()),
        ("mtu", path.mtu.value.into()),
        ("rate", path.rate.value.into()),
        ("packet_lifetime", path.packet_lifetime.value.into()),
        ("preference", path.preference.into()),
    ]
}

fn object(path: &PathRecord) -> Value {
    let mut object = json!({ "type": "path" });
    for (name, value) in fields(path) {
        object[name] = value;
    }
    object
}

fn lines(path: &PathRecord) -> Vec<String> {
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let mut lines: Vec<String> = fields(path)
        .iter()
        .map(|(name, value)| format!("{name:<16} {}", text(value)))
        .collect();
    // The codes of IBTA 15.2.5.16 in usual units.
    let mtu = 128_u64 << path.mtu.value.min(32);
    if let Some(line) = lines.get_mut(11) {
        line.push_str(&format!(" ({mtu} bytes)"));
    }
    lines
}

//! Prints the result for a GID, for people and machines.

use anyhow::Result;
use portolan::reach::{Port, Reached};
use serde_json::{Value, json};

use super::Answer;
use super::target::Target;
use crate::output::Output;
use crate::terminal::Paint;

pub(super) fn tell(
    target: &Target,
    port: &Port,
    answer: &Answer,
    output: &mut Output,
) -> Result<()> {
    if output.json {
        output.object(&object(target, port, answer))?;
    } else {
        let (paint, word, rest) = match answer {
            Ok(reached) => (Paint::Good, "reachable", reached_text(port, reached)),
            Err(unreachable) if unreachable.is_no_path() => (
                Paint::Bad,
                "unreachable",
                format!("{} ({})", unreachable.reason, unreachable.reason.name()),
            ),
            Err(failed) => (
                Paint::Bad,
                "not asked",
                format!("{} ({})", failed.reason, failed.reason.name()),
            ),
        };
        let word = output.theme.paint(paint, &format!("{word:<11}"));
        output.line(&format!(
            "{:<39}  {word}  {rest}",
            target.gid.to_ip().to_string()
        ))?;
    }
    Ok(output.flush()?)
}

fn reached_text(port: &Port, reached: &Reached) -> String {
    let mut text = format!(
        "by {} from {} port {} ({})",
        reached.method,
        port.device(),
        port.port_num(),
        reached.source.to_ip()
    );
    if let Some(hop) = reached.next_hop {
        text.push_str(&format!(", {hop} answers"));
    }
    if let Some(address) = reached.link_address {
        text.push_str(&format!(" at {}", mac(address)));
    }
    text
}

fn object(target: &Target, port: &Port, answer: &Answer) -> Value {
    let reached = answer.as_ref().ok();
    let failed = answer.as_ref().err();
    json!({
        "type": "reach",
        "gid": target.gid.to_string(),
        "reachable": reached.is_some(),
        "device": port.device(),
        "port": port.port_num(),
        "method": reached.map(|reached| reached.method.name()),
        "source": reached.map(|reached| reached.source.to_string()),
        "next_hop": reached.and_then(|reached| reached.next_hop).map(|hop| hop.to_string()),
        "link_address": reached.and_then(|reached| reached.link_address).map(mac),
        "error": failed.map(|failed| failed.reason.name()),
        "errno": failed.map(|failed| failed.errno()),
        "text": failed.map(|failed| failed.reason.to_string()),
    })
}

fn mac(address: [u8; 6]) -> String {
    address.map(|byte| format!("{byte:02x}")).join(":")
}

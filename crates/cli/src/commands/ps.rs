//! `ps`: lists the processes that share the UDP port: the holder, and their listeners, connections and counters. It
//! does not join the group or open a device.

use std::collections::HashMap;
use std::net::SocketAddr;

use anyhow::Result;
use portolan::Cause;
use portolan::software::StackConfig;
use portolan::software::survey::{
    MemberReport, Survey, SurveyedConnection, SurveyedMember, SurveyedPort, SurveyedWay, survey,
};
use portolan::wire::addr::Qpn;
use serde_json::json;

use super::failure::explain;
use crate::args::PsArgs;
use crate::exit::Outcome;
use crate::output::{self, Output};
use crate::terminal::Paint;
use crate::text::word;

/// Counters of problems, which are shown by default.
const TROUBLES: [&str; 10] = [
    "dropped_",
    "half_open",
    "retransmits",
    "retried",
    "overflows",
    "queue_full",
    "inbox_full",
    "no_member",
    "unrouted",
    "malformed",
];

/// Lists the processes that share the UDP port.
///
/// # Errors
///
/// They do not trust this user, or an untrusted user holds their name.
pub(crate) fn run(args: &PsArgs, output: &mut Output) -> Result<Outcome> {
    let mut group = StackConfig::default().group;
    group.trust = portolan::provider::trust()?;
    let seen = match survey(&group, args.timeout) {
        Ok(seen) => seen,
        // The holder is one of the processes that have to answer.
        Err(error) if matches!(error.cause, Cause::GroupSilent { .. }) => {
            output::complain(&error);
            return Ok(Outcome::CheckFailed);
        }
        Err(error) => return Err(explain(error)),
    };
    if seen.is_none()
        && let Some(holder) = super::doctor::foreign_holder(args.timeout)
    {
        output::complain(&format_args!(
            "UDP port {} is held by {holder}, which does not share it; end it, or run in another network namespace",
            group.port
        ));
        return Ok(Outcome::CheckFailed);
    }
    match (&seen, output.json) {
        (None, false) => output.line(&format!(
            "no process shares UDP port {} in this network namespace",
            group.port
        ))?,
        (None, true) => {}
        (Some(seen), true) => objects(seen, output)?,
        (Some(seen), false) => table(seen, output)?,
    }
    output.flush()?;
    let silent = |member: &SurveyedMember| member.report.is_none();
    Ok(
        match seen.is_some_and(|seen| seen.members.iter().any(silent)) {
            true => Outcome::CheckFailed,
            false => Outcome::Good,
        },
    )
}

fn table(seen: &Survey, output: &mut Output) -> Result<()> {
    let theme = output.theme;
    let heading = format!(
        "UDP port {}: held by process {} of user {}, {} sharing it",
        seen.udp_port,
        pid_text(seen.holder_pid),
        seen.holder_uid,
        count(seen.members.len(), "process", "processes"),
    );
    output.line(&theme.paint(Paint::Bold, &heading))?;
    if let Some(why) = &seen.distrust {
        output.line(&theme.paint(Paint::Bad, &format!("not shared with this user: {why}")))?;
    }
    for member in &seen.members {
        output.line("")?;
        output.line(&theme.paint(Paint::Bold, &member_text(seen, member)))?;
        for port in ports_of(seen, member) {
            output.line(&format!("  {}", port_text(port)))?;
        }
        match &member.report {
            Some(report) => report_lines(report, output)?,
            None => {
                let line = theme.paint(Paint::Bad, "  does not answer (is it stopped?)");
                output.line(&line)?;
            }
        }
    }
    Ok(())
}

fn member_text(seen: &Survey, member: &SurveyedMember) -> String {
    let program = word(&program(member));
    let holds = if is_holder(seen, member) {
        ", holds the port"
    } else {
        ""
    };
    format!(
        "{} {program}, user {}, block {}{holds}",
        pid_text(member.pid),
        member.uid,
        member.block
    )
}

fn port_text(port: &SurveyedPort) -> String {
    let what = if port.listening { "listens on" } else { "has" };
    format!("{what} {} {}", port.port_space, port.address)
}

fn report_lines(report: &MemberReport, output: &mut Output) -> Result<()> {
    let arrow = output.theme.pick("→", "->");
    for connection in &report.connections {
        let SurveyedConnection {
            local,
            remote,
            qpn,
            state,
            way,
            ..
        } = connection;
        let (local, remote) = (address_text(*local), address_text(*remote));
        let qpn = qpn.map_or_else(String::new, |qpn| format!(", qpn {:#08x}", qpn.value()));
        let state = state.escape_debug();
        let way = way.as_ref().map_or_else(String::new, way_text);
        output.line(&format!("  {local} {arrow} {remote}  {state}{qpn}{way}"))?;
    }
    let is_shown =
        |name: &str| output.verbose || TROUBLES.iter().any(|trouble| name.contains(trouble));
    let counts: Vec<_> = report
        .counters
        .iter()
        .filter(|(name, value)| **value > 0 && is_shown(name))
        .map(|(name, value)| format!("  {} {value}", name.escape_debug()))
        .collect();
    for line in counts {
        output.line(&line)?;
    }
    Ok(())
}

fn way_text(way: &SurveyedWay) -> String {
    match way {
        SurveyedWay::Memory => ", through memory".to_owned(),
        SurveyedWay::Rings { why } => format!(
            ", through memory, the program's own by packets: {}",
            word(why)
        ),
        SurveyedWay::Socket { why } => format!(", by socket: {}", word(why)),
        other => format!(", by {other:?}"),
    }
}

fn objects(seen: &Survey, output: &mut Output) -> Result<()> {
    output.object(&json!({
        "type": "group",
        "udp_port": seen.udp_port,
        "holder_pid": seen.holder_pid,
        "holder_uid": seen.holder_uid,
        "trusted": seen.distrust.is_none(),
        "members": seen.members.len(),
    }))?;
    let pids: HashMap<u8, u32> = seen
        .members
        .iter()
        .map(|member| (member.block, member.pid))
        .collect();
    for member in &seen.members {
        output.object(&json!({
            "type": "member",
            "pid": member.pid,
            "uid": member.uid,
            "program": program(member),
            "block": member.block,
            "holder": is_holder(seen, member),
            "answered": member.report.is_some(),
            "counters": member.report.as_ref().map(|report| &report.counters),
        }))?;
    }
    for port in &seen.ports {
        output.object(&json!({
            "type": "port",
            "pid": pids.get(&port.block),
            "block": port.block,
            "port_space": port.port_space.to_string(),
            "address": port.address.to_string(),
            "listening": port.listening,
        }))?;
    }
    for member in &seen.members {
        let connections = member.report.iter().flat_map(|report| &report.connections);
        for connection in connections {
            let (way, why) = match &connection.way {
                None => (None, None),
                Some(SurveyedWay::Memory) => (Some("memory"), None),
                Some(SurveyedWay::Rings { why }) => (Some("rings"), Some(why)),
                Some(SurveyedWay::Socket { why }) => (Some("socket"), Some(why)),
                Some(_) => (Some("other"), None),
            };
            output.object(&json!({
                "type": "connection",
                "pid": member.pid,
                "block": member.block,
                "local": connection.local.map(|address| address.to_string()),
                "remote": connection.remote.map(|address| address.to_string()),
                "state": connection.state,
                "qpn": connection.qpn.map(Qpn::value),
                "way": way,
                "why": why,
            }))?;
        }
    }
    Ok(())
}

fn ports_of<'a>(
    seen: &'a Survey,
    member: &SurveyedMember,
) -> impl Iterator<Item = &'a SurveyedPort> {
    let block = member.block;
    seen.ports.iter().filter(move |port| port.block == block)
}

fn is_holder(seen: &Survey, member: &SurveyedMember) -> bool {
    member.block == seen.holder_block
}

/// The process's program: as it reports itself or, if it does not answer, as the kernel does.
fn program(member: &SurveyedMember) -> String {
    let told = member.report.as_ref().map(|report| report.program.clone());
    let name = told.or_else(|| {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", member.pid)).ok()?;
        Some(name.trim_end().to_owned())
    });
    name.unwrap_or_else(|| "?".to_owned())
}

fn pid_text(pid: u32) -> String {
    match pid {
        0 => "(out of sight)".to_owned(),
        pid => pid.to_string(),
    }
}

fn address_text(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "?".to_owned(), |address| address.to_string())
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_printed_as_they_are_within_their_line() {
        let why = || "the user's \"limit\"\n".to_owned();
        for way in [
            SurveyedWay::Rings { why: why() },
            SurveyedWay::Socket { why: why() },
        ] {
            let text = way_text(&way);
            assert!(text.ends_with("the user's \"limit\"\\n"), "{text}");
        }
    }
}

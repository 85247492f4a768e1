//! Each finding, from facts that differ in one respect from a healthy machine's.

mod kernel;
mod keys;
mod local;
mod machines;
mod network;
mod software;

use std::collections::BTreeSet;

use portolan::provider::verbs::Mtu;
use portolan::provider::{Choice, PinnedBy};

use super::judge;
use crate::commands::doctor::facts::*;
use crate::commands::doctor::finding::Severity::{self, Note, Problem};
use crate::commands::doctor::rules::{Action, Condition, Hook};
use machines::*;

struct Case {
    code: &'static str,
    severity: Severity,
    /// Text that the report must contain.
    text: &'static str,
    remedy: &'static str,
    facts: Facts,
}

/// A case: one of the healthy machines with a change.
fn case(
    (code, severity): (&'static str, Severity),
    text: &'static str,
    remedy: &'static str,
    mut facts: Facts,
    change: impl FnOnce(&mut Facts),
) -> Case {
    change(&mut facts);
    Case {
        code,
        severity,
        text,
        remedy,
        facts,
    }
}

fn cases() -> Vec<Case> {
    let of_parts = [
        software::cases(),
        kernel::cases(),
        network::cases(),
        local::cases(),
    ];
    of_parts.into_iter().flatten().collect()
}

#[test]
fn a_healthy_machine_has_no_findings() {
    assert_eq!(judge(&healthy()), []);
    assert_eq!(judge(&healthy_kernel()), []);
    let mut by_route = healthy_kernel();
    by_route.provider = Some(Ok(Choice::Software));
    assert_eq!(judge(&by_route), []);
}

#[test]
fn each_finding_is_made_of_its_facts_and_of_no_others() {
    for case in cases() {
        let found = judge(&case.facts);
        let [one] = found.as_slice() else {
            panic!("{}: {found:#?}", case.code)
        };
        let text = &one.finding.text;
        let remedy = one.finding.remedy.clone().unwrap_or_default();
        assert_eq!(
            (one.finding.code, one.severity),
            (case.code, case.severity),
            "{text}"
        );
        assert!(text.contains(case.text), "{}: {text}", case.code);
        assert!(remedy.contains(case.remedy), "{}: {remedy}", case.code);
        assert_eq!(
            remedy.is_empty(),
            case.remedy.is_empty(),
            "{}: {remedy}",
            case.code
        );
    }
}

#[test]
fn every_code_is_tested_here_and_documented() {
    const DOCUMENT: &str = include_str!("../../../../../../../docs/doctor.md");
    let tried: BTreeSet<&str> = cases().iter().map(|case| case.code).collect();
    let rows = DOCUMENT.lines().skip_while(|line| *line != "## Findings");
    let documented: BTreeSet<&str> = rows
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert_eq!(tried, documented);
}

#[test]
fn the_kernels_own_port_is_no_finding_for_users_of_its_devices() {
    let mut facts = healthy_kernel();
    facts.port.sockets.push(socket(Owner::Kernel, 0));
    assert_eq!(judge(&facts), []);
}

#[test]
fn the_members_own_sockets_are_no_finding() {
    let mut facts = healthy();
    facts.port.group = Some(Ok(PortGroup {
        holder_pid: 7,
        pids: vec![7],
    }));
    let program = "portolan".into();
    facts
        .port
        .sockets
        .push(socket(Owner::Process { pid: 7, program }, 0));
    // In flight in a message, so that no process has it.
    facts.port.sockets.push(socket(Owner::Kernel, 0));
    assert_eq!(judge(&facts), []);
    // The holder is in another pid namespace and the only one that knows its members.
    facts.port.group = Some(Ok(PortGroup {
        holder_pid: 9,
        pids: vec![9, 0],
    }));
    let judged = judge(&facts);
    assert!(
        !judged.iter().any(|found| found.finding.code == "port-held"),
        "{judged:?}"
    );
}

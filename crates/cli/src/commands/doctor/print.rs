//! Output for people: aligned lines of facts, then notes, then problems with remedies.

use std::net::IpAddr;

use anyhow::Result;
use portolan::provider::{Choice, PROVIDER_ENV, PinnedBy};

use super::facts::{Facts, KernelDevice, Owner, Port, Way};
use super::finding::{Found, Severity, address_text};
use super::gather::ROCE_PORT;
use crate::output::Output;
use crate::terminal::Paint;
use crate::text;

/// Width of the labels on the left.
const LABEL: usize = 11;
/// Maximum number of a port's GIDs shown without --verbose.
const GIDS_SHOWN: usize = 4;

pub(super) fn print(facts: &Facts, found: &[Found], output: &mut Output) -> Result<()> {
    let host = &facts.host;
    let user = if host.is_root { ", as root" } else { "" };
    let heading = format!(
        "{}, Linux {}{user}",
        or(&host.name, "this host"),
        or(&host.release, "(unknown)")
    );
    output.line(&output.theme.paint(Paint::Bold, &heading))?;
    section("provider", &[provider(facts)], output)?;
    section("UDP 4791", &port(facts), output)?;
    section("software", &software(facts), output)?;
    section("kernel", &kernel(facts), output)?;
    section("libibverbs", &[library(facts)], output)?;
    section("limits", &[limits(facts)], output)?;
    section("firewall", &[firewall(facts)], output)?;
    section("names", &[names(facts)], output)?;
    if let Some(destination) = &facts.destination {
        let ways = match &destination.ways {
            Ok(ways) => ways
                .iter()
                .flat_map(|way| way_lines(way, output.verbose))
                .collect(),
            Err(why) => vec![why.clone()],
        };
        output.line("")?;
        let heading = format!("to {}", destination.text);
        output.line(&output.theme.paint(Paint::Bold, &heading))?;
        for line in ways {
            output.line(&format!("  {line}"))?;
        }
    }
    list(
        "not seen",
        facts
            .unseen
            .iter()
            .map(|unseen| format!("{}: {}", unseen.what, unseen.why)),
        output,
    )?;
    findings(Severity::Note, "notes", found, output)?;
    findings(Severity::Problem, "problems", found, output)?;
    if !found
        .iter()
        .any(|found| found.severity == Severity::Problem)
    {
        output.line("")?;
        output.line(&output.theme.paint(Paint::Good, "no problems found"))?;
    }
    Ok(())
}

/// A label on the left and lines beside it.
fn section(label: &str, lines: &[String], output: &mut Output) -> Result<()> {
    let mut label = output.theme.paint(Paint::Dim, &format!("{label:<LABEL$}"));
    for line in lines {
        output.line(&format!("{label} {line}"))?;
        label = " ".repeat(LABEL);
    }
    Ok(())
}

fn list(heading: &str, lines: impl Iterator<Item = String>, output: &mut Output) -> Result<()> {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        output.line("")?;
        output.line(&output.theme.paint(Paint::Bold, heading))?;
    }
    for line in lines {
        output.line(&format!("  {line}"))?;
    }
    Ok(())
}

fn findings(severity: Severity, heading: &str, found: &[Found], output: &mut Output) -> Result<()> {
    let mut chosen = found
        .iter()
        .filter(|found| found.severity == severity)
        .peekable();
    if chosen.peek().is_none() {
        return Ok(());
    }
    let paint = match severity {
        Severity::Note => Paint::Bold,
        Severity::Problem => Paint::Bad,
    };
    output.line("")?;
    output.line(&output.theme.paint(paint, heading))?;
    let arrow = output.theme.pick("→", "->");
    for found in chosen {
        for line in wrapped(&found.finding.text, output.theme.width.saturating_sub(4)) {
            output.line(&format!("  {line}"))?;
        }
        if let Some(remedy) = &found.finding.remedy {
            output.line(&format!("    {arrow} {remedy}"))?;
        }
    }
    Ok(())
}

/// Wraps a text at `width` characters, except for longer words. All lines but the first are indented.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < width => {
                line.push(' ');
                line.push_str(word);
            }
            Some(_) => lines.push(format!("  {word}")),
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

fn provider(facts: &Facts) -> String {
    let how = match facts.pinned_by {
        Some(PinnedBy::Program) => "given",
        _ => "set",
    };
    let pinned = format!("{} is {how}", facts.pin_name());
    match &facts.provider {
        Some(Ok(_)) if facts.is_by_route() => format!(
            "by route: the kernel's device if it is on the route, else the software device ({PROVIDER_ENV} is not set)"
        ),
        Some(Ok(Choice::Software)) => {
            format!("software, the RoCEv2 device in user space ({pinned})")
        }
        Some(Ok(Choice::Kernel)) => {
            format!("kernel, its devices through libibverbs ({pinned})")
        }
        Some(Err(_)) | None => format!("none: {PROVIDER_ENV} is not understood"),
    }
}

fn port(facts: &Facts) -> Vec<String> {
    match &facts.port.group {
        Some(Ok(group)) => {
            let (holder, sharing) = (group.holder_pid, group.pids.len());
            return vec![format!(
                "held by process {holder}, {sharing} sharing it (portolan ps)"
            )];
        }
        Some(Err(why)) => return vec![why.clone()],
        None => {}
    }
    let sockets = facts.port.sockets.iter().map(|socket| {
        let owner = match &socket.owner {
            Owner::Process { pid, program } => format!("process {pid} ({program})"),
            Owner::Kernel => "the kernel".to_owned(),
            Owner::Unknown => format!("user {}", socket.uid),
        };
        format!("{} held by {owner}", socket.address)
    });
    let mut lines: Vec<String> = sockets.collect();
    if lines.is_empty() {
        lines.push("free in this network namespace".to_owned());
    }
    lines
}

fn software(facts: &Facts) -> Vec<String> {
    let wide = |of: &dyn Fn(usize) -> usize| (0..facts.software.len()).map(of).max().unwrap_or(0);
    let width = wide(&|at| facts.software.get(at).map_or(0, |device| device.name.len()));
    let lines = facts.software.iter().map(|device| {
        let state = if device.running { "active" } else { "down" };
        let addresses = device
            .gids
            .iter()
            .map(IpAddr::to_string)
            .collect::<Vec<_>>();
        format!(
            "{:<width$}  {state:<6}  mtu {:<5} path {:<4}  {}",
            device.name,
            device.interface_mtu,
            device.active_mtu.bytes(),
            addresses.join(", ")
        )
    });
    let mut lines: Vec<String> = lines.collect();
    if lines.is_empty() {
        lines.push("no device: no network interface has an address".to_owned());
    }
    lines
}

fn kernel(facts: &Facts) -> Vec<String> {
    let kernel = &facts.kernel;
    let mut lines = Vec::new();
    let modules = kernel
        .modules
        .iter()
        .map(|module| format!("{} {}", module.name, module.state.name()));
    let is_there = |module: &super::facts::Module| module.state.name() != "absent";
    if kernel.modules.iter().any(is_there) {
        lines.push(format!(
            "modules: {}",
            modules.collect::<Vec<_>>().join(", ")
        ));
    } else {
        lines.push("no RDMA modules".to_owned());
    }
    match (&kernel.offers, kernel.rdma_cm_abi) {
        (Some(Ok(offers)), abi) => {
            let abi = abi.map_or_else(String::new, |abi| format!(" ABI {abi}"));
            let has = |has: bool| if has { "yes" } else { "no" };
            lines.push(format!(
                "rdma_cm{abi}: events may be written {}, services looked up {}",
                has(offers.write_event),
                has(offers.ib_service)
            ));
        }
        (Some(Err(why)), Some(abi)) => lines.push(format!("rdma_cm ABI {abi}: {why}")),
        _ => lines.push("no rdma_cm device".to_owned()),
    }
    for node in kernel.nodes.iter().filter(|node| !node.is_usable) {
        lines.push(format!(
            "{} mode {:04o}: not for this user",
            node.path, node.mode
        ));
    }
    for device in &kernel.devices {
        lines.extend(device_lines(device));
    }
    if kernel.devices.is_empty() {
        lines.push("no RDMA devices".to_owned());
    }
    lines
}

fn device_lines(device: &KernelDevice) -> Vec<String> {
    let driver = device.driver.as_deref().unwrap_or("soft");
    let firmware = device.firmware.as_deref();
    let firmware = firmware.map_or_else(String::new, |version| format!(", firmware {version}"));
    let mut lines = vec![format!(
        "{}  {driver}{firmware}, node guid {}",
        device.name, device.node_guid
    )];
    for Port {
        number,
        state,
        link_layer,
        rate,
        gids,
    } in &device.ports
    {
        lines.push(format!("  port {number}  {state}, {link_layer}, {rate}"));
        for gid in gids.iter().take(GIDS_SHOWN) {
            let kind = gid.kind.as_deref().unwrap_or("");
            let interface = gid.interface.as_deref().unwrap_or("");
            lines.push(
                format!("    gid {:>2}  {}  {kind}  {interface}", gid.index, gid.gid)
                    .trim_end()
                    .to_owned(),
            );
        }
        if gids.len() > GIDS_SHOWN {
            lines.push(format!(
                "    and {} more (portolan doctor --json)",
                gids.len() - GIDS_SHOWN
            ));
        }
    }
    lines
}

fn library(facts: &Facts) -> String {
    let drivers = match facts.kernel.drivers.len() {
        0 => "no drivers".to_owned(),
        count if count > 6 => format!("{count} drivers"),
        _ => format!("drivers {}", facts.kernel.drivers.join(", ")),
    };
    match &facts.kernel.library {
        Some(Ok(path)) => format!("{path}, {drivers}"),
        Some(Err(_)) => "none that can be used".to_owned(),
        None => "not looked for".to_owned(),
    }
}

fn limits(facts: &Facts) -> String {
    let limit = facts.host.memlock;
    let soft = limit
        .soft
        .map_or_else(|| "unlimited".to_owned(), text::bytes);
    let exempt = if limit.is_exempt {
        "; this process is exempt (CAP_IPC_LOCK)"
    } else {
        ""
    };
    format!("locked memory {soft}{exempt}")
}

fn firewall(facts: &Facts) -> String {
    let is_nft = |tool: &&str| *tool == "nft";
    let nft = facts.rules.tools.iter().any(is_nft);
    let iptables = facts.rules.tools.iter().any(|tool| !is_nft(tool));
    let tools = match (nft, iptables) {
        (false, false) => return "not seen".to_owned(),
        (true, true) => "nftables, iptables",
        (true, false) => "nftables",
        (false, true) => "iptables",
    };
    match facts.rules.rules() {
        0 => format!("no rules ({tools})"),
        1 => format!("1 rule ({tools})"),
        count => format!("{count} rules ({tools})"),
    }
}

fn names(facts: &Facts) -> String {
    let names = &facts.names;
    let all = |addresses: Vec<IpAddr>| {
        let texts: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
        if texts.is_empty() {
            "unknown".to_owned()
        } else {
            texts.join(" ")
        }
    };
    let localhost = all(names.of("localhost").collect());
    let servers = match (names.asks_dns, names.name_servers.clone()) {
        (false, _) => "no name server asked".to_owned(),
        (true, servers) if servers.is_empty() => "no name server".to_owned(),
        (true, servers) => format!("name server {}", all(servers)),
    };
    format!("localhost {localhost}; {servers}")
}

fn way_lines(way: &Way, verbose: bool) -> Vec<String> {
    let address = address_text(way.address);
    let by = match (&way.device, way.source) {
        (Some((name, index)), Some(source)) => {
            format!("by {name} gid {index}, from {}", source.ip())
        }
        _ => "cannot be reached".to_owned(),
    };
    let mut lines = vec![format!("{address}  {by}")];
    let reasons = way
        .reasons
        .iter()
        .filter(|_| verbose || way.fault.is_none());
    lines.extend(reasons.map(|reason| format!("  {reason}")));
    lines
}

fn or<'a>(text: &'a str, other: &'a str) -> &'a str {
    if text.is_empty() { other } else { text }
}

const _: () = assert!(ROCE_PORT == 4791, "the label says so");

//! Judges the network, names and routes to a destination, for either provider.

use std::net::IpAddr;

use super::Findings;
use crate::commands::doctor::facts::{Facts, WayFault};
use crate::commands::doctor::finding::{Finding, address_text};
use crate::commands::doctor::rules::{Fate, Hook};

/// `rp_filter` of strict reverse path filtering (ip-sysctl).
const STRICT: u32 = 1;

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    if let Some(kind) = &facts.host.container {
        let text = format!(
            "this is a container ({kind}): devices, modules and firewall are its host's, and address \
             translation on the way breaks RoCEv2's checksum"
        );
        findings.note(Finding::without_remedy("container", text));
    }
    judge_rules(facts, findings);
    judge_names(facts, findings);
    judge_interfaces(facts, findings);
}

fn judge_rules(facts: &Facts, findings: &mut Findings) {
    for hook in [
        Hook::Prerouting,
        Hook::Input,
        Hook::Output,
        Hook::Postrouting,
    ] {
        if let Fate::Stops {
            chain,
            rule,
            tool,
            is_certain,
        } = facts.rules.fate(hook)
        {
            let way = match hook {
                Hook::Output | Hook::Postrouting => "sent to",
                _ => "that come to",
            };
            let why = match (rule, is_certain) {
                (Some(rule), true) => format!("{chain}: {rule}"),
                (Some(rule), false) => {
                    format!("{chain}: {rule}, unless an earlier rule accepts them")
                }
                (None, true) => {
                    format!("no rule of {chain} accepts them, and its policy is to drop")
                }
                (None, false) => {
                    format!("the policy of {chain} is to drop, unless a rule accepts them")
                }
            };
            let drops = if is_certain { "drops" } else { "may drop" };
            let text = format!("the firewall {drops} packets {way} UDP port 4791: {why}");
            let remedy = accept_rule(tool, &chain);
            findings.problem_if(is_certain, Finding::new("firewall-stops", text, remedy));
        }
    }
    let own: Vec<IpAddr> = facts
        .software
        .iter()
        .flat_map(|device| device.gids.clone())
        .collect();
    for translation in facts.rules.translations(&own) {
        let (chain, rule) = (translation.chain, translation.rule);
        let text = format!(
            "{chain} translates addresses ({rule}): RoCEv2's checksum covers them, so such packets arrive broken"
        );
        let remedy =
            "exempt UDP port 4791 from it, or connect by addresses that are not translated";
        findings.problem(Finding::new("translation", text, remedy));
    }
    if let Some((count, max)) = facts.network.conntrack
        && max > 0
        && count >= max
    {
        let text = format!(
            "connection tracking follows {count} of at most {max} connections: new ones are dropped"
        );
        let doubled = max.saturating_mul(2);
        let remedy = format!("sysctl -w net.netfilter.nf_conntrack_max={doubled}");
        findings.problem(Finding::new("conntrack-full", text, remedy));
    }
}

/// A rule that accepts RoCEv2 before all others of a chain, in the syntax of the tool that listed it.
fn accept_rule(tool: &str, chain: &str) -> String {
    if tool == "nft" {
        // `inet filter/input` is `inet filter input` to nft.
        let chain = chain.replacen('/', " ", 1);
        return format!("nft insert rule {chain} udp dport 4791 accept");
    }
    let program = tool.trim_end_matches("-save");
    // `ip raw/PREROUTING` is the chain PREROUTING of the table raw to iptables.
    let (table, chain) = chain.split_once('/').unwrap_or(("", chain));
    let table = match table.split_once(' ') {
        None | Some((_, "filter")) => String::new(),
        Some((_, table)) => format!(" -t {table}"),
    };
    format!("{program}{table} -I {chain} -p udp --dport 4791 -j ACCEPT")
}

fn judge_names(facts: &Facts, findings: &mut Findings) {
    let names = &facts.names;
    if names.of("localhost").next().is_none() {
        findings.note(Finding::new(
            "localhost-unknown",
            "localhost is not in /etc/hosts",
            "echo '127.0.0.1 localhost' >> /etc/hosts",
        ));
    }
    let own = &facts.host.name;
    let mut own_addresses = names.of(own);
    if own != "localhost"
        && let Some(address) = own_addresses.find(IpAddr::is_loopback)
        && !names.of(own).any(|address| !address.is_loopback())
    {
        let text = format!(
            "{own} is {address} in /etc/hosts: a server that listens by this host's name is reached from this host only"
        );
        let remedy = format!("listen on an address, or give {own} its own one in /etc/hosts");
        findings.note(Finding::new("hostname-is-loopback", text, remedy));
    }
    if names.asks_dns && names.name_servers.is_empty() {
        findings.note(Finding::new(
            "name-server-missing",
            "/etc/resolv.conf names no name server, and hosts are looked up there",
            "use addresses, or name a server in /etc/resolv.conf",
        ));
    }
}

fn judge_interfaces(facts: &Facts, findings: &mut Findings) {
    if !facts.network.has_ipv6 {
        let (text, remedy) = ("the kernel has no IPv6", "boot without ipv6.disable=1");
        findings.note(Finding::new("ipv6-disabled", text, remedy));
    }
    if let Some(interface) = &facts.network.loopback_down {
        findings.note(interface_down(interface));
    }
    let of_device = |name: &str| {
        facts
            .software
            .iter()
            .find(|device| device.interface == name)
    };
    let has_ipv4 = |name: &str| {
        of_device(name).is_some_and(|device| {
            device
                .gids
                .iter()
                .any(|ip| ip.is_ipv4() && !ip.is_loopback())
        })
    };
    let with_ipv4 = facts
        .software
        .iter()
        .filter(|device| has_ipv4(&device.interface))
        .count();
    for settings in &facts.network.interfaces {
        if of_device(&settings.name).is_none() {
            continue;
        }
        let interface = &settings.name;
        let in_sysctl = interface.replace('.', "/");
        if facts.network.has_ipv6 && settings.ipv6_disabled {
            let text = format!("IPv6 is disabled on {interface}");
            let remedy = format!("sysctl -w net.ipv6.conf.{in_sysctl}.disable_ipv6=0");
            findings.note(Finding::new("ipv6-disabled", text, remedy));
        } else if settings.rp_filter == STRICT && with_ipv4 > 1 && has_ipv4(&settings.name) {
            let text = format!(
                "{interface} filters strictly by reverse path: it drops a packet if the answer would leave by another \
                 interface"
            );
            let remedy = format!("sysctl -w net.ipv4.conf.{in_sysctl}.rp_filter=2");
            findings.note(Finding::new("reverse-path-filter", text, remedy));
        }
    }
}

pub(super) fn interface_down(interface: &str) -> Finding {
    let text = format!("{interface} is not up and running");
    let remedy = format!("ip link set {interface} up; ip link show {interface}");
    Finding::new("interface-down", text, remedy)
}

pub(super) fn judge_destination(facts: &Facts, findings: &mut Findings) {
    let Some(destination) = &facts.destination else {
        return;
    };
    let ways = match &destination.ways {
        Ok(ways) => ways,
        Err(why) => {
            // Most of the library's errors begin with the query.
            let text = match &destination.text {
                query if why.contains(query) => why.clone(),
                query => format!("{query}: {why}"),
            };
            return findings.problem(Finding::without_remedy("destination-unresolved", text));
        }
    };
    // One usable route is enough; then faults of others are only notes.
    let has_way = ways.iter().any(|way| way.fault.is_none());
    for way in ways {
        let address = address_text(way.address);
        match &way.fault {
            None => {}
            Some(WayFault::NoRoute(why)) => {
                let text = format!("{address}: {why}");
                let ip = way.address.ip();
                let remedy = format!("ip route get {ip}");
                findings.problem_if(!has_way, Finding::new("destination-no-route", text, remedy));
                let interface = facts.network.loopback_down.as_ref();
                if let Some(interface) = interface.filter(|_| ip.is_loopback()) {
                    findings.problem_if(!has_way, interface_down(interface));
                }
            }
            Some(WayFault::NoDevice(source)) => {
                let text = format!("{address} is reached from {source}, which no RDMA device has");
                let remedy = format!("portolan devices; ip address show to {source}");
                findings.problem_if(
                    !has_way,
                    Finding::new("destination-no-device", text, remedy),
                );
            }
            Some(WayFault::NotOfADevice) => {
                let text = format!(
                    "{address} is this host's, but no software device has it: no request arrives there"
                );
                let remedy = "use an address that `portolan devices` lists";
                findings.problem_if(
                    !has_way,
                    Finding::new("destination-no-device", text, remedy),
                );
            }
        }
        let leaves_by = way.interface_index;
        let mut devices = facts.software.iter();
        let device = devices.find(|device| Some(device.interface_index) == leaves_by);
        if let Some(device) = device.filter(|device| !device.running) {
            findings.problem(interface_down(&device.interface));
        }
    }
}

//! Judges the network, names and routes to a destination, for either provider.

use std::net::IpAddr;

use super::Findings;
use crate::commands::doctor::facts::{Facts, WayFault};
use crate::commands::doctor::finding::Finding;
use crate::commands::doctor::rules::{Fate, Hook};

/// `rp_filter` of strict reverse path filtering (ip-sysctl).
const STRICT: u32 = 1;

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    if let Some(kind) = facts.host.container.clone() {
        findings.note(Finding::Container { kind });
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
        if let Fate::Stops { chain, rule, tool } = facts.rules.fate(hook) {
            findings.problem(Finding::FirewallStops {
                hook,
                chain,
                rule,
                tool,
            });
        }
    }
    let own: Vec<IpAddr> = facts
        .software
        .iter()
        .flat_map(|device| device.gids.clone())
        .collect();
    for translation in facts.rules.translations(&own) {
        let (chain, rule) = (translation.chain, translation.rule);
        findings.problem(Finding::Translation { chain, rule });
    }
    if let Some((count, max)) = facts.network.conntrack
        && max > 0
        && count >= max
    {
        findings.problem(Finding::ConntrackFull { count, max });
    }
}

fn judge_names(facts: &Facts, findings: &mut Findings) {
    let names = &facts.names;
    if names.of("localhost").next().is_none() {
        findings.note(Finding::LocalhostUnknown);
    }
    let own = &facts.host.name;
    let mut own_addresses = names.of(own);
    if own != "localhost"
        && let Some(address) = own_addresses.find(IpAddr::is_loopback)
        && !names.of(own).any(|address| !address.is_loopback())
    {
        let name = own.clone();
        findings.note(Finding::HostnameIsLoopback { name, address });
    }
    if names.asks_dns && names.name_servers.is_empty() {
        findings.note(Finding::NameServerMissing);
    }
}

fn judge_interfaces(facts: &Facts, findings: &mut Findings) {
    if !facts.network.has_ipv6 {
        findings.note(Finding::Ipv6Disabled { interface: None });
    }
    if let Some(interface) = facts.network.loopback_down.clone() {
        findings.note(Finding::InterfaceDown { interface });
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
        let interface = settings.name.clone();
        if facts.network.has_ipv6 && settings.ipv6_disabled {
            let interface = Some(interface);
            findings.note(Finding::Ipv6Disabled { interface });
        } else if settings.rp_filter == STRICT && with_ipv4 > 1 && has_ipv4(&settings.name) {
            findings.note(Finding::ReversePathFilter { interface });
        }
    }
}

pub(super) fn judge_destination(facts: &Facts, findings: &mut Findings) {
    let Some(destination) = &facts.destination else {
        return;
    };
    let ways = match &destination.ways {
        Ok(ways) => ways,
        Err(why) => {
            let (text, why) = (destination.text.clone(), why.clone());
            return findings.problem(Finding::DestinationUnresolved { text, why });
        }
    };
    // One usable route is enough; then faults of others are only notes.
    let has_way = ways.iter().any(|way| way.fault.is_none());
    for way in ways {
        let address = way.address;
        match &way.fault {
            None => {}
            Some(WayFault::NoRoute(why)) => {
                let why = why.clone();
                findings.problem_if(!has_way, Finding::DestinationHasNoRoute { address, why });
                let interface = facts.network.loopback_down.clone();
                if let Some(interface) = interface.filter(|_| address.ip().is_loopback()) {
                    findings.problem_if(!has_way, Finding::InterfaceDown { interface });
                }
            }
            Some(WayFault::NoDevice(source)) => {
                let source = *source;
                findings.problem_if(
                    !has_way,
                    Finding::DestinationHasNoDevice { address, source },
                );
            }
        }
        let leaves_by = way.interface_index;
        let mut devices = facts.software.iter();
        let device = devices.find(|device| Some(device.interface_index) == leaves_by);
        if let Some(device) = device.filter(|device| !device.running) {
            let interface = device.interface.clone();
            findings.problem(Finding::InterfaceDown { interface });
        }
    }
}

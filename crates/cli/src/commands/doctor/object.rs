//! Output for machines: one object in the format of docs/doctor.md. Keys may be added, but not changed.

use portolan::provider::Offers;
use serde_json::{Value, json};

use super::facts::{Destination, Facts, Kernel, KernelDevice, Owner, Port, UdpPort, Way, WayFault};
use super::finding::{Found, Severity};

/// Version of the format; increases if a key changes its meaning.
const VERSION: u32 = 1;

pub(super) fn object(facts: &Facts, found: &[Found]) -> Value {
    let problems = found
        .iter()
        .filter(|found| found.severity == Severity::Problem);
    let (provider, error) = match &facts.provider {
        Some(Ok(_)) if facts.is_by_route() => (Some("route"), None),
        Some(Ok(choice)) => (Some(choice.name()), None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    let host = &facts.host;
    json!({
        "type": "doctor",
        "version": VERSION,
        "problems": problems.count(),
        "provider": { "name": provider, "pinned": facts.pinned_by.is_some(), "error": error },
        "host": {
            "name": host.name,
            "kernel": host.release,
            "root": host.is_root,
            "container": host.container,
            "memlock": {
                "soft": host.memlock.soft,
                "hard": host.memlock.hard,
                "exempt": host.memlock.is_exempt,
            },
        },
        "udp_port": port(&facts.port),
        "local_memory": {
            "off": facts.local.is_off.as_ref().and_then(|is_off| is_off.as_ref().ok()),
            "ptrace_scope": facts.local.ptrace_scope,
            "calls_refused": facts.local.calls_refused,
            "other_users": facts.local.other_users,
            "other_namespaces": facts.local.other_namespaces,
        },
        "software": facts.software.iter().map(|device| json!({
            "name": device.name,
            "interface": device.interface,
            "interface_index": device.interface_index,
            "running": device.running,
            "mtu": device.interface_mtu,
            "path_mtu": device.active_mtu.bytes(),
            "addresses": device.gids.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "kernel": kernel(&facts.kernel),
        "network": {
            "ipv6": facts.network.has_ipv6,
            "conntrack": facts.network.conntrack.map(|(count, max)| json!({
                "count": count,
                "max": max,
            })),
            "interfaces": facts.network.interfaces.iter().map(|one| json!({
                "name": one.name,
                "ipv6_disabled": one.ipv6_disabled,
                "rp_filter": one.rp_filter,
            })).collect::<Vec<_>>(),
            "firewall": { "tools": facts.rules.tools, "rules": facts.rules.rules() },
        },
        "names": {
            "localhost": facts.names.of("localhost").map(|ip| ip.to_string()).collect::<Vec<_>>(),
            "host": facts.names.of(&host.name).map(|ip| ip.to_string()).collect::<Vec<_>>(),
            "name_servers": facts.names.name_servers.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "dns": facts.names.asks_dns,
        },
        "destination": facts.destination.as_ref().map(destination),
        "unseen": facts.unseen.iter().map(|unseen| json!({
            "what": unseen.what,
            "why": unseen.why,
        })).collect::<Vec<_>>(),
        "findings": found.iter().map(|found| json!({
            "severity": found.severity.name(),
            "code": found.finding.code,
            "text": found.finding.text,
            "remedy": found.finding.remedy,
        })).collect::<Vec<_>>(),
    })
}

fn port(port: &UdpPort) -> Value {
    let (group, error) = match &port.group {
        Some(Ok(group)) => {
            let (holder, members) = (group.holder_pid, &group.pids);
            (
                Some(json!({ "holder_pid": holder, "members": members })),
                None,
            )
        }
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    let sockets = port.sockets.iter().map(|socket| {
        let (owner, pid, program) = match &socket.owner {
            Owner::Process { pid, program } => ("process", Some(pid), Some(program)),
            Owner::Kernel => ("kernel", None, None),
            Owner::Unknown => ("unknown", None, None),
        };
        json!({
            "address": socket.address.to_string(),
            "uid": socket.uid,
            "owner": owner,
            "pid": pid,
            "program": program,
        })
    });
    json!({
        "number": port.number,
        "group": group,
        "group_error": error,
        "trust_error": port.trust_error,
        "sockets": sockets.collect::<Vec<_>>(),
    })
}

fn kernel(kernel: &Kernel) -> Value {
    let modules = kernel.modules.iter();
    let modules = modules.map(|module| (module.name.to_owned(), module.state.name().into()));
    let offers = match &kernel.offers {
        Some(Ok(Offers {
            write_event,
            ib_service,
        })) => {
            json!({ "write_event": write_event, "ib_service": ib_service })
        }
        _ => Value::Null,
    };
    let error = |result: &Option<Result<_, String>>| {
        result.as_ref().and_then(|result| result.clone().err())
    };
    json!({
        "modules": modules.collect::<serde_json::Map<_, _>>(),
        "rdma_cm": {
            "abi": kernel.rdma_cm_abi,
            "offers": offers,
            "error": kernel.offers.as_ref().and_then(|offers| offers.as_ref().err()),
        },
        "verbs": {
            "abi": kernel.verbs_abi,
            "library": kernel.library.as_ref().and_then(|library| library.as_ref().ok()),
            "error": error(&kernel.library),
            "drivers": kernel.drivers,
        },
        "nodes": kernel.nodes.iter().map(|node| json!({
            "path": node.path,
            "mode": format!("{:04o}", node.mode),
            "usable": node.is_usable,
        })).collect::<Vec<_>>(),
        "devices": kernel.devices.iter().map(device).collect::<Vec<_>>(),
    })
}

fn device(device: &KernelDevice) -> Value {
    json!({
        "name": device.name,
        "node_guid": device.node_guid,
        "firmware": device.firmware,
        "driver": device.driver,
        "ports": device.ports.iter().map(device_port).collect::<Vec<_>>(),
    })
}

fn device_port(port: &Port) -> Value {
    json!({
        "number": port.number,
        "state": port.state,
        "link_layer": port.link_layer,
        "rate": port.rate,
        "gids": port.gids.iter().map(|gid| json!({
            "index": gid.index,
            "gid": gid.gid,
            "kind": gid.kind,
            "interface": gid.interface,
        })).collect::<Vec<_>>(),
    })
}

fn destination(destination: &Destination) -> Value {
    let (ways, error) = match &destination.ways {
        Ok(ways) => (ways.as_slice(), None),
        Err(why) => (&[][..], Some(why)),
    };
    json!({
        "text": destination.text,
        "error": error,
        "ways": ways.iter().map(way).collect::<Vec<_>>(),
    })
}

fn way(way: &Way) -> Value {
    json!({
        "address": way.address.to_string(),
        "source": way.source.map(|source| source.to_string()),
        "device": way.device.as_ref().map(|(name, _)| name),
        "gid_index": way.device.as_ref().map(|(_, index)| index),
        "interface_index": way.interface_index,
        "fault": way.fault.as_ref().map(|fault| match fault {
            WayFault::NoRoute(_) => "no-route",
            WayFault::NoDevice(_) | WayFault::NotOfADevice => "no-device",
        }),
        "reasons": way.reasons,
    })
}

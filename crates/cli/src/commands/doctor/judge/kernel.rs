//! Judges the kernel's devices. Their findings are problems only if the devices would be used; a machine without them
//! is fine.

use super::Findings;
use crate::commands::doctor::facts::{Facts, KernelDevice, Memlock, ModuleState};
use crate::commands::doctor::finding::Finding;

/// The modules that the kernel provider needs.
const NEEDED: [&str; 4] = ["ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm"];
const RDMA_CM: &str = "/dev/infiniband/rdma_cm";
/// Below this many bytes, the memory regions of an ordinary program soon use up the limit.
const MEMLOCK_COMFORTABLE: u64 = 64 << 20;

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let kernel = &facts.kernel;
    let is_used = facts.is_kernel();
    // A missing part is only reported if it is needed.
    let matters = is_used || !kernel.devices.is_empty();
    if !matters {
        return;
    }
    for module in kernel
        .modules
        .iter()
        .filter(|module| NEEDED.contains(&module.name))
    {
        if !module.state.is_there() {
            findings.problem_if(
                is_used,
                Finding::ModuleMissing {
                    name: module.name,
                    state: module.state,
                },
            );
        }
    }
    if kernel.devices.is_empty() {
        findings.problem_if(is_used, no_device(facts));
    }
    judge_nodes(facts, is_used, findings);
    match &kernel.library {
        Some(Err(why)) => {
            let why = why.clone();
            findings.problem_if(is_used, Finding::VerbsUnusable { why });
        }
        _ if kernel.drivers.is_empty() => {
            findings.problem_if(is_used, Finding::VerbsDriversMissing);
        }
        _ => {}
    }
    for device in &kernel.devices {
        judge_ports(device, is_used, findings);
    }
    if let Memlock {
        soft: Some(bytes),
        is_exempt: false,
        ..
    } = facts.host.memlock
        && bytes < MEMLOCK_COMFORTABLE
    {
        let limit = facts.host.memlock;
        findings.problem_if(is_used, Finding::MemlockLow { limit });
    }
}

fn no_device(facts: &Facts) -> Finding {
    let is_rxe = |name: &str| name == "rdma_rxe";
    let mut modules = facts.kernel.modules.iter();
    let rxe = modules.find(|module| is_rxe(module.name));
    let mut interfaces = facts.software.iter().map(|device| &device.interface);
    Finding::KernelHasNoDevice {
        rxe: rxe.map_or(ModuleState::Absent, |rxe| rxe.state),
        // rdma_rxe does not serve loopback before Linux 6.16.
        interface: interfaces.find(|name| *name != "lo").cloned(),
    }
}

fn judge_nodes(facts: &Facts, is_used: bool, findings: &mut Findings) {
    let nodes = &facts.kernel.nodes;
    let is_needed = |path: &str| path == RDMA_CM || path.contains("/uverbs");
    let unusable = nodes
        .iter()
        .filter(|node| is_needed(&node.path) && !node.is_usable);
    let mut refused = false;
    for node in unusable {
        refused |= node.path == RDMA_CM;
        findings.problem_if(
            is_used,
            Finding::NodeUnusable {
                path: node.path.clone(),
                mode: node.mode,
            },
        );
    }
    if !nodes.iter().any(|node| node.path == RDMA_CM) {
        findings.problem_if(is_used, Finding::NodeMissing { path: RDMA_CM });
    } else if let Some(Err(why)) = &facts.kernel.offers
        && !refused
    {
        let why = why.clone();
        findings.problem_if(is_used, Finding::RdmaCmUnusable { why });
    }
}

fn judge_ports(device: &KernelDevice, is_used: bool, findings: &mut Findings) {
    for port in device.ports.iter().filter(|port| !port.is_active()) {
        findings.problem_if(
            is_used,
            Finding::KernelPortDown {
                device: device.name.clone(),
                port: port.number,
                state: port.state.clone(),
                link_layer: port.link_layer.clone(),
            },
        );
    }
}

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
            findings.problem_if(is_used, module_missing(module.name, module.state));
        }
    }
    if kernel.devices.is_empty() {
        findings.problem_if(is_used, no_device(facts));
    }
    judge_nodes(facts, is_used, findings);
    match &kernel.library {
        Some(Err(why)) => {
            let text = format!("libibverbs cannot be used: {why}");
            let remedy = "apt-get install libibverbs1 ibverbs-providers";
            findings.problem_if(is_used, Finding::new("verbs-unusable", text, remedy));
        }
        _ if kernel.drivers.is_empty() => {
            let text = "libibverbs has no driver of any device";
            let remedy = "apt-get install ibverbs-providers";
            findings.problem_if(is_used, Finding::new("verbs-drivers-missing", text, remedy));
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
        let text = format!(
            "{} may be locked: memory regions of the kernel's devices must fit into that",
            crate::text::bytes(bytes)
        );
        let remedy = "ulimit -l unlimited (to keep it: a line `* - memlock unlimited` in /etc/security/limits.d/rdma.conf)";
        findings.problem_if(is_used, Finding::new("memlock-low", text, remedy));
    }
}

fn module_missing(name: &str, state: ModuleState) -> Finding {
    let (text, remedy) = match state {
        ModuleState::Available => (
            format!("the kernel module {name} is not loaded"),
            format!("modprobe {name}"),
        ),
        _ => (
            format!("the running kernel has no module {name}"),
            format!(
                "install a kernel that has it (Debian: apt-get install linux-image-amd64), then modprobe {name}"
            ),
        ),
    };
    Finding::new("module-missing", text, remedy)
}

fn no_device(facts: &Facts) -> Finding {
    let is_rxe = |name: &str| name == "rdma_rxe";
    let mut modules = facts.kernel.modules.iter();
    let rxe = modules.find(|module| is_rxe(module.name));
    let mut interfaces = facts.software.iter().map(|device| &device.interface);
    // rdma_rxe does not serve loopback before Linux 6.16.
    let interface = interfaces.find(|name| *name != "lo");
    let add = format!(
        "rdma link add rxe0 type rxe netdev {}",
        interface.map_or("INTERFACE", String::as_str)
    );
    let remedy = match rxe.map_or(ModuleState::Absent, |rxe| rxe.state) {
        ModuleState::Absent => "export PORTOLAN_PROVIDER=software".into(),
        ModuleState::Available => format!("modprobe rdma_rxe; {add}"),
        ModuleState::Loaded | ModuleState::BuiltIn => add,
    };
    Finding::new("kernel-no-device", "the kernel has no RDMA device", remedy)
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
        let (path, mode) = (&node.path, node.mode);
        let text = format!("{path} (mode {mode:04o}) may not be read and written by this user");
        let remedy = format!("chmod a+rw {path} (to keep it: a rule of udev; rdma-core has one)");
        findings.problem_if(is_used, Finding::new("node-unusable", text, remedy));
    }
    if !nodes.iter().any(|node| node.path == RDMA_CM) {
        let text = format!("there is no {RDMA_CM}");
        findings.problem_if(
            is_used,
            Finding::new("node-missing", text, "modprobe rdma_ucm"),
        );
    } else if let Some(Err(why)) = &facts.kernel.offers
        && !refused
    {
        let text = format!("the kernel's rdma_cm device cannot be used: {why}");
        let remedy = "modprobe rdma_ucm; ls -l /dev/infiniband";
        findings.problem_if(is_used, Finding::new("rdma-cm-unusable", text, remedy));
    }
}

fn judge_ports(device: &KernelDevice, is_used: bool, findings: &mut Findings) {
    for port in device.ports.iter().filter(|port| !port.is_active()) {
        let (device, number) = (&device.name, port.number);
        let text = format!("{device} port {number} is {}", port.state);
        let remedy = match port.link_layer.as_str() {
            "InfiniBand" => {
                format!("ibstat {device} {number}; a subnet manager must run on the fabric")
            }
            _ => format!("rdma link show {device}/{number}; ip link set INTERFACE up"),
        };
        findings.problem_if(is_used, Finding::new("kernel-port-down", text, remedy));
    }
}

//! Judges the software device, mainly its UDP port.

use std::net::SocketAddr;

use portolan::provider::PinnedBy;

use super::Findings;
use super::network::interface_down;
use crate::commands::doctor::facts::{Facts, Owner, UdpSocket};
use crate::commands::doctor::finding::Finding;

/// The MTU for the largest packets, 4096 bytes, with room for all headers.
const LARGE_PATH_MTU: u32 = 4096;
const HELD_BY_KERNEL: &str = "port-held-by-kernel";

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let is_used = facts.is_software();
    if facts.software.is_empty() {
        let text = "no network interface has an address, so there is no software device";
        let remedy = "ip link set lo up; ip address show";
        findings.problem_if(is_used, Finding::new("software-no-device", text, remedy));
    }
    judge_port(facts, is_used, findings);
    for device in &facts.software {
        if !device.running {
            findings.note(interface_down(&device.interface));
        }
        let path_mtu = device.active_mtu.bytes() as u32;
        if is_used && path_mtu < LARGE_PATH_MTU {
            let (interface, mtu) = (&device.interface, device.interface_mtu);
            let text = format!(
                "{interface} has an MTU of {mtu}, so packets carry {path_mtu} bytes; 4200 would give 4096"
            );
            let remedy = format!(
                "ip link set {interface} mtu 4200 (all hosts and switches of the network must have it)"
            );
            findings.note(Finding::new("small-mtu", text, remedy));
        }
    }
    judge_kernel_devices(facts, is_used, findings);
}

fn judge_port(facts: &Facts, is_used: bool, findings: &mut Findings) {
    if let Some(why) = &facts.port.trust_error {
        let finding = Finding::new("trust-unknown", why, "unset PORTOLAN_TRUST");
        findings.problem_if(is_used, finding);
        // Whom the holders would share with is unknown, so report none.
        return;
    }
    let members = match &facts.port.group {
        Some(Err(why)) => {
            let text = format!("UDP port 4791 cannot be shared: {why}");
            findings.problem_if(is_used, Finding::new("group-unusable", text, "portolan ps"));
            // The holders are unknown, so report none.
            return;
        }
        Some(Ok(group)) => group.pids.as_slice(),
        None => &[],
    };
    for socket in &facts.port.sockets {
        let Some(finding) = held(facts, socket, members) else {
            continue;
        };
        // If the kernel's devices serve their routes, they hold the port legitimately.
        let is_by_right = facts.is_by_route()
            && finding.code == HELD_BY_KERNEL
            && soft_device(facts).is_some()
            && !facts.goes_by_software();
        findings.problem_if(is_used && !is_by_right, finding);
    }
}

/// The kernel's first device without hardware.
fn soft_device(facts: &Facts) -> Option<&str> {
    let mut devices = facts.kernel.devices.iter();
    let device = devices.find(|device| device.driver.is_none());
    device.map(|device| device.name.as_str())
}

/// A process that has a socket on the port and does not share it. If a member's process id is unknown, because it is in another
/// pid namespace (0), each process may be that member.
fn held(facts: &Facts, socket: &UdpSocket, members: &[u32]) -> Option<Finding> {
    let address = socket.address;
    let has_group = facts.port.group.is_some();
    let (holder, remedy) = match &socket.owner {
        Owner::Process { pid, .. } if members.contains(pid) || members.contains(&0) => {
            return None;
        }
        // Sockets without a process are parked by the group that shares the port.
        Owner::Kernel | Owner::Unknown if has_group => return None,
        // Expected, if the kernel's devices are used.
        Owner::Kernel if facts.is_kernel() => return None,
        Owner::Unknown if socket.uid != 0 || soft_device(facts).is_none() => (
            format!("a process of user {}", socket.uid),
            format!("as root: ss -ulpn 'sport = :{}'", address.port()),
        ),
        Owner::Kernel | Owner::Unknown => return Some(held_by_kernel(facts, address)),
        Owner::Process { pid, program } => {
            (format!("process {pid} ({program})"), format!("kill {pid}"))
        }
    };
    let text = format!("{holder} holds UDP {address}: the software device cannot have the port");
    Some(Finding::new("port-held", text, remedy))
}

fn held_by_kernel(facts: &Facts, address: SocketAddr) -> Finding {
    let (holder, remedy) = match soft_device(facts) {
        Some(device) => (
            format!("the kernel's rdma_rxe ({device})"),
            format!(
                "export PORTOLAN_PROVIDER=kernel (or do without it: rdma link delete {device}; modprobe -r rdma_rxe)"
            ),
        ),
        None => (
            "the kernel itself (rdma_rxe?)".into(),
            "modprobe -r rdma_rxe".into(),
        ),
    };
    Finding::new(
        HELD_BY_KERNEL,
        format!("{holder} holds UDP {address}"),
        remedy,
    )
}

/// Kernel devices on the same interfaces as software devices.
fn judge_kernel_devices(facts: &Facts, is_used: bool, findings: &mut Findings) {
    for device in &facts.kernel.devices {
        let ports = device
            .ports
            .iter()
            .filter(|port| port.is_ethernet() && port.is_active());
        for gid in ports.flat_map(|port| &port.gids) {
            let Some(interface) = &gid.interface else {
                continue;
            };
            let mut software = facts.software.iter();
            if !software.any(|device| device.interface == *interface) {
                continue;
            }
            let name = &device.name;
            let pin = facts.pin_name();
            let remedy = match facts.pinned_by {
                Some(PinnedBy::Program) => format!("omit {pin}"),
                _ => format!("unset {pin}"),
            };
            match &device.driver {
                // It serves its own routes.
                _ if facts.is_by_route() => {}
                Some(driver) => {
                    let text = format!(
                        "{name} ({driver}) may take packets for UDP port 4791 from {interface} before a program can: the \
                         software device on {interface} may receive nothing"
                    );
                    let finding = Finding::new("hardware-takes-port", text, remedy);
                    findings.problem_if(is_used, finding);
                }
                // It holds the port, which is already reported.
                None if findings.has(HELD_BY_KERNEL) => {}
                None if is_used => {
                    let text = format!(
                        "the kernel's {name} serves {interface}, too, but {pin} pins the software device"
                    );
                    findings.note(Finding::new("kernel-device-could", text, remedy));
                }
                None => {}
            }
        }
    }
}

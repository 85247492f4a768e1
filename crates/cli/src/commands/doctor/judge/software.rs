//! What concerns the software device: above all its UDP port.

use super::Findings;
use crate::commands::doctor::facts::{Facts, Owner, UdpSocket};
use crate::commands::doctor::finding::{Finding, Holder};

/// The MTU at which packets carry the most, 4096 bytes, with room for all headers.
const LARGE_PATH_MTU: u32 = 4096;

pub(super) fn judge(facts: &Facts, findings: &mut Findings) {
    let is_used = facts.is_software();
    if facts.software.is_empty() {
        findings.problem_if(is_used, Finding::SoftwareHasNoDevice);
    }
    judge_port(facts, is_used, findings);
    for device in &facts.software {
        if !device.running {
            let interface = device.interface.clone();
            findings.note(Finding::InterfaceDown { interface });
        }
        let path_mtu = device.active_mtu.bytes() as u32;
        if is_used && path_mtu < LARGE_PATH_MTU {
            findings.note(Finding::SmallMtu {
                interface: device.interface.clone(),
                mtu: device.interface_mtu,
                path_mtu,
            });
        }
    }
    judge_kernel_devices(facts, is_used, findings);
}

fn judge_port(facts: &Facts, is_used: bool, findings: &mut Findings) {
    let members = match &facts.port.group {
        Some(Err(why)) => {
            let why = why.clone();
            findings.problem_if(is_used, Finding::GroupUnusable { why });
            // The holders are not known, so none is blamed.
            return;
        }
        Some(Ok(group)) => group.pids.as_slice(),
        None => &[],
    };
    for socket in &facts.port.sockets {
        let Some(finding) = held(facts, socket, members) else {
            continue;
        };
        // Where the kernel's devices serve their ways, the port is theirs by right.
        let is_by_right = facts.is_by_route()
            && matches!(
                finding,
                Finding::PortHeldByKernel {
                    device: Some(_),
                    ..
                }
            )
            && !facts.goes_by_software();
        findings.problem_if(is_used && !is_by_right, finding);
    }
}

/// Processes that have a socket on the port and do not share it.
fn held(facts: &Facts, socket: &UdpSocket, members: &[u32]) -> Option<Finding> {
    let address = socket.address;
    let has_group = facts.port.group.is_some();
    let soft = || {
        let mut devices = facts.kernel.devices.iter();
        let device = devices.find(|device| device.driver.is_none());
        device.map(|device| device.name.clone())
    };
    let holder = match &socket.owner {
        Owner::Process { pid, .. } if members.contains(pid) => return None,
        // Parked where no process has it, by those who share the port.
        Owner::Kernel | Owner::Unknown if has_group => return None,
        // As it should be, where its devices are used.
        Owner::Kernel if facts.is_kernel() => return None,
        Owner::Kernel => {
            let device = soft();
            return Some(Finding::PortHeldByKernel { address, device });
        }
        Owner::Unknown if socket.uid == 0 && soft().is_some() => {
            let device = soft();
            return Some(Finding::PortHeldByKernel { address, device });
        }
        Owner::Unknown => Holder::User(socket.uid),
        Owner::Process { pid, program } => Holder::Process {
            pid: *pid,
            program: program.clone(),
        },
    };
    Some(Finding::PortHeld { address, holder })
}

/// The kernel's devices on the interfaces that software devices are on.
fn judge_kernel_devices(facts: &Facts, is_used: bool, findings: &mut Findings) {
    for device in &facts.kernel.devices {
        let ports = device
            .ports
            .iter()
            .filter(|port| port.is_ethernet() && port.is_active());
        for gid in ports.flat_map(|port| &port.gids) {
            let Some(interface) = gid.interface.clone() else {
                continue;
            };
            let mut software = facts.software.iter();
            if !software.any(|device| device.interface == interface) {
                continue;
            }
            let name = device.name.clone();
            match &device.driver {
                // It serves its own ways.
                _ if facts.is_by_route() => {}
                Some(driver) => findings.problem_if(
                    is_used,
                    Finding::HardwareTakesPort {
                        device: name,
                        driver: driver.clone(),
                        interface,
                    },
                ),
                // It holds the port, which says it all.
                None if findings.has("port-held-by-kernel") => {}
                None if is_used => findings.note(Finding::KernelDeviceCould {
                    device: name,
                    interface,
                }),
                None => {}
            }
        }
    }
}

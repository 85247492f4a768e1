//! Judges the software device, mainly its UDP port.

use super::Findings;
use crate::commands::doctor::facts::{Facts, Owner, UdpSocket};
use crate::commands::doctor::finding::{Finding, Holder};

/// The MTU for the largest packets, 4096 bytes, with room for all headers.
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

/// A process that has a socket on the port and does not share it.
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
        // Sockets without a process are parked by the group that shares the port.
        Owner::Kernel | Owner::Unknown if has_group => return None,
        // Expected, if the kernel's devices are used.
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

/// Kernel devices on the same interfaces as software devices.
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
                // It serves its own routes.
                _ if facts.is_by_route() => {}
                Some(driver) => findings.problem_if(
                    is_used,
                    Finding::HardwareTakesPort {
                        device: name,
                        driver: driver.clone(),
                        interface,
                    },
                ),
                // It holds the port, which is already reported.
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

//! The devices that a stack would have, without starting one.

use std::net::IpAddr;

use portolan_provider::Result;
use portolan_provider::verbs::Mtu;

use crate::io::host::device::GID_TABLE_LEN;
use crate::io::host::identity::{device_name, node_guid};

use crate::io::net::interfaces;

/// A device that a [`Stack`](crate::io::Stack) would have if it were started at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePreview {
    /// Name, such as `sw_eth0`.
    pub name: String,
    /// Name of the network interface behind it.
    pub interface: String,
    /// Linux's index of the network interface, which is also the device's own index.
    pub interface_index: u32,
    /// Node GUID, host order.
    pub node_guid: u64,
    /// The GID table, by slot.
    pub gids: Vec<IpAddr>,
    /// Largest packet that the interface sends, bytes of IP.
    pub interface_mtu: u32,
    /// The path MTU that its port would have.
    pub active_mtu: Mtu,
    /// Whether the interface is up and running.
    pub running: bool,
}

/// The devices that a stack would have if it were started at this moment. Starts nothing, and needs no port.
///
/// # Errors
/// `Os` if the system does not list its interfaces.
pub fn preview() -> Result<Vec<DevicePreview>> {
    let mut previews: Vec<DevicePreview> = Vec::new();
    for interface in interfaces::list()? {
        let Some(active_mtu) = Mtu::for_interface(interface.mtu) else {
            continue;
        };
        if interface.addresses.is_empty() {
            continue;
        }
        let is_taken = |name: &str| previews.iter().any(|other| other.name == name);
        let name = device_name(&interface, is_taken);
        let is_taken = |guid| previews.iter().any(|other| other.node_guid == guid);
        let node_guid = node_guid(&interface, is_taken);
        let mut gids = Vec::new();
        for ip in interface.addresses.into_iter().take(GID_TABLE_LEN) {
            if !gids.contains(&ip) {
                gids.push(ip);
            }
        }
        previews.push(DevicePreview {
            name,
            interface: interface.name,
            interface_index: interface.index,
            node_guid,
            gids,
            interface_mtu: interface.mtu,
            active_mtu,
            running: interface.running,
        });
    }
    Ok(previews)
}

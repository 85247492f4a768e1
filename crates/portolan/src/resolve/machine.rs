//! The look-ups of this machine, its RDMA devices included.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_addrinfo::lookups::{DeviceAnswer, DeviceChoice, DeviceQuestion, LinkLayer, Lookups};
use portolan_provider::address::ip_to_gid;
use portolan_provider::traits::{Device, Provider};
use portolan_roce::io::{DevicePreview, preview};
use portolan_wire::addr::Gid;

use crate::provider::opened_provider;

/// Port of a software device.
const PORT: u8 = 1;

/// The system's resolver and routing tables, and the devices of the process's provider.
///
/// A provider that is not open is not opened for a question: the devices that it would have are asked
/// then, as they are at the first question of this value.
#[derive(Debug, Default)]
pub struct Machine {
    provider: Option<Arc<dyn Provider>>,
    preview: OnceCell<Vec<DevicePreview>>,
}

impl Machine {
    /// With the process's provider, if that is open.
    pub fn new() -> Self {
        Self::of(opened_provider())
    }

    /// With the devices of this provider.
    pub fn on(provider: Arc<dyn Provider>) -> Self {
        Self::of(Some(provider))
    }

    fn of(provider: Option<Arc<dyn Provider>>) -> Self {
        Self {
            provider,
            preview: OnceCell::new(),
        }
    }

    fn preview(&self) -> &[DevicePreview] {
        // If the interfaces cannot be read there are none to be had.
        self.preview.get_or_init(|| preview().unwrap_or_default())
    }

    fn of_address(&self, ip: IpAddr, interface_index: Option<u32>) -> Option<DeviceChoice> {
        if let Some(provider) = &self.provider {
            // A link-local address may be on several interfaces; its zone tells.
            if let Some(index) = interface_index {
                return on_interface(&**provider, ip, index);
            }
            let (device, gid_index) = provider.device_of(ip).ok()?;
            return Some(choice(&*device, gid_index, ip_to_gid(ip)));
        }
        let mut previews = self.preview().iter();
        previews.find_map(|device| {
            if interface_index.is_some_and(|index| index != device.interface_index) {
                return None;
            }
            let slot = device.gids.iter().position(|gid| *gid == ip)?;
            Some(previewed(device, slot))
        })
    }

    fn named(&self, name: &str) -> Option<DeviceChoice> {
        let is_it = |other: &str, index: u32| other == name || name.parse() == Ok(index);
        if let Some(provider) = &self.provider {
            let devices = provider.devices().ok()?;
            let device = devices
                .iter()
                .find(|device| is_it(device.name(), device.index()))?;
            let gids = device.gids(PORT).ok()?;
            let entry = gids.iter().find(|entry| entry.gid.is_link_local());
            let entry = entry.or(gids.first())?;
            return Some(choice(&**device, entry.index, entry.gid));
        }
        let device = self
            .preview()
            .iter()
            .find(|device| is_it(&device.name, device.interface_index))?;
        let is_link_local = |ip: &IpAddr| ip_to_gid(*ip).is_link_local();
        let slot = device.gids.iter().position(is_link_local).unwrap_or(0);
        Some(previewed(device, slot))
    }
}

impl Lookups for Machine {
    fn device(&self, question: &DeviceQuestion) -> DeviceAnswer {
        let found = match question {
            DeviceQuestion::OfAddress {
                ip,
                interface_index,
            } => self.of_address(*ip, *interface_index),
            DeviceQuestion::Named { name } => self.named(name),
        };
        match found {
            Some(device) => DeviceAnswer::Found(device),
            None => {
                let why =
                    "software devices are there for interfaces that are up and have an address";
                DeviceAnswer::None { why: why.into() }
            }
        }
    }
}

fn on_interface(provider: &dyn Provider, ip: IpAddr, index: u32) -> Option<DeviceChoice> {
    let devices = provider.devices().ok()?;
    let device = devices
        .iter()
        .find(|device| device.interface_index() == index)?;
    let gid = ip_to_gid(ip);
    let gids = device.gids(PORT).ok()?;
    let entry = gids.iter().find(|entry| entry.gid == gid)?;
    Some(choice(&**device, entry.index, gid))
}

fn choice(device: &dyn Device, gid_index: u32, gid: Gid) -> DeviceChoice {
    DeviceChoice {
        name: device.name().into(),
        index: device.index(),
        port_num: PORT,
        gid_index,
        gid,
        link_layer: LinkLayer::Ethernet,
    }
}

fn previewed(device: &DevicePreview, slot: usize) -> DeviceChoice {
    DeviceChoice {
        name: device.name.clone(),
        index: device.interface_index,
        port_num: PORT,
        gid_index: slot as u32,
        gid: device
            .gids
            .get(slot)
            .map_or(Gid::UNSPECIFIED, |ip| ip_to_gid(*ip)),
        link_layer: LinkLayer::Ethernet,
    }
}

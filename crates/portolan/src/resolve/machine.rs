//! This machine's lookups, including its RDMA devices.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use portolan_addrinfo::PathData;
use portolan_addrinfo::lookups::{
    DeviceAnswer, DeviceChoice, DeviceQuestion, LinkLayer, Lookups, PathQuestion, SaService,
    ServiceRecord, Waiting,
};
use portolan_provider::Cause;
use portolan_provider::address::ip_to_gid;
use portolan_provider::traits::{Device, Provider};
use portolan_provider::verbs::GidEntry;
use portolan_roce::io::{DevicePreview, preview};
use portolan_wire::addr::Gid;

use super::fabric;
use crate::provider::{Choice, Place, decide, kernel_provider, opened_software, pinned};

/// The port in use: the only one of a software device, and the first of others.
const PORT: u8 = 1;

/// The system's resolver and routing tables, and the devices of each address's provider
/// ([`crate::provider`]).
///
/// A lookup opens the kernel provider, which only reads its state. It does not start the software
/// device, which would then take part in the network. Instead it uses a preview of the software
/// devices, read at the first lookup of this value.
///
/// ```
/// use portolan::provider::software_provider;
/// use portolan::resolve::{Machine, get_addrinfo_with};
///
/// // Whichever devices the route leads to, use the software ones.
/// let machine = Machine::on(software_provider()?);
/// let found = get_addrinfo_with(&machine, Some("127.0.0.1"), Some("7471"), None)?;
/// let source = found[0].src_addr.and_then(|address| address.inet());
/// assert!(source.is_some_and(|source| source.ip().is_loopback()), "{}", found[0].explain);
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Machine {
    devices: Devices,
    preview: OnceCell<Vec<DevicePreview>>,
    /// The InfiniBand port to query; `None` means any.
    fabric_port: Option<Gid>,
    waiting: Waiting,
}

/// The devices to use.
#[derive(Debug, Default)]
enum Devices {
    /// Those of the provider that serves each address.
    #[default]
    ByRoute,
    /// Those of one provider.
    Of(Arc<dyn Provider>),
    /// Those of one provider, which this does not keep alive.
    OfOthers(Weak<dyn Provider>),
}

/// A device, or why there is none.
type Found = Result<DeviceChoice, String>;

impl Machine {
    /// Creates lookups with the devices of each address's provider.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates lookups with this provider's devices.
    pub fn on(provider: Arc<dyn Provider>) -> Self {
        Self::of(Devices::Of(provider))
    }

    /// Like [`Machine::on`], for lookups that may outlive their caller: they do not keep the
    /// provider alive.
    pub(crate) fn borrowing(provider: &Arc<dyn Provider>) -> Self {
        Self::of(Devices::OfOthers(Arc::downgrade(provider)))
    }

    fn of(devices: Devices) -> Self {
        Self {
            devices,
            preview: OnceCell::new(),
            fabric_port: None,
            waiting: Waiting::default(),
        }
    }

    /// Queries only the administrator of this port's subnet.
    #[must_use]
    pub fn at_port(mut self, gid: Option<Gid>) -> Self {
        self.fabric_port = gid;
        self
    }

    fn preview(&self) -> &[DevicePreview] {
        // If the interfaces cannot be read, there are no devices.
        self.preview.get_or_init(|| preview().unwrap_or_default())
    }

    /// Finds a provider's device, or otherwise an InfiniBand port.
    fn find(&self, question: &DeviceQuestion) -> Found {
        let of_provider = self.find_at_provider(question);
        if of_provider.is_ok() {
            return of_provider;
        }
        let port = match question {
            DeviceQuestion::TowardsGid { gid, source } => {
                fabric::towards(*gid, source.or(self.fabric_port))
            }
            DeviceQuestion::Named { name } => fabric::named(name),
            DeviceQuestion::OfAddress { .. } => None,
        };
        port.map_or(of_provider, Ok)
    }

    fn find_at_provider(&self, question: &DeviceQuestion) -> Found {
        match &self.devices {
            Devices::Of(provider) => find_on(&**provider, question),
            Devices::OfOthers(provider) => {
                let provider = provider.upgrade().ok_or("the provider is gone")?;
                find_on(&*provider, question)
            }
            Devices::ByRoute => match question {
                DeviceQuestion::OfAddress {
                    ip,
                    interface_index,
                    leaves_by,
                } => self.by_route(question, *ip, leaves_by.or(*interface_index)),
                DeviceQuestion::Named { .. } | DeviceQuestion::TowardsGid { .. } => {
                    self.anywhere(question)
                }
            },
        }
    }

    /// Finds a local address's device at the provider that serves it.
    fn by_route(
        &self,
        question: &DeviceQuestion,
        address: IpAddr,
        interface_index: Option<u32>,
    ) -> Found {
        let place = Place {
            address,
            interface_index,
        };
        let (choice, reason) = decide(|| Ok(place)).map_err(|error| error.to_string())?;
        let found = match choice {
            Choice::Kernel => self.at_kernel(question),
            Choice::Software => self.at_software(question),
        };
        let provider = format!("{}: {reason}", choice.name());
        match found {
            Ok(device) => Ok(DeviceChoice { provider, ..device }),
            Err(why) => Err(format!("{why} (provider {provider})")),
        }
    }

    /// Finds a device without an address: at the pinned provider, or at the kernel's before the
    /// software one.
    fn anywhere(&self, question: &DeviceQuestion) -> Found {
        match pinned().map_err(|error| error.to_string())? {
            Some((Choice::Kernel, _)) => self.at_kernel(question),
            None if portolan_kernel::has_devices() => {
                let found = self.at_kernel(question);
                found.or_else(|_| self.at_software(question))
            }
            _ => self.at_software(question),
        }
    }

    fn at_kernel(&self, question: &DeviceQuestion) -> Found {
        let provider = kernel_provider().map_err(|error| error.to_string())?;
        find_on(&*provider, question)
    }

    fn at_software(&self, question: &DeviceQuestion) -> Found {
        match opened_software() {
            Some(provider) => find_on(&*provider, question),
            None => self
                .previewed(question)
                .ok_or_else(|| none_of(Choice::Software.name())),
        }
    }

    fn previewed(&self, question: &DeviceQuestion) -> Option<DeviceChoice> {
        let mut previews = self.preview().iter();
        match question {
            DeviceQuestion::OfAddress {
                ip,
                interface_index,
                ..
            } => previews.find_map(|device| {
                if interface_index.is_some_and(|index| index != device.interface_index) {
                    return None;
                }
                let slot = device.gids.iter().position(|gid| gid == ip)?;
                Some(previewed(device, slot))
            }),
            DeviceQuestion::Named { name } => {
                let device = previews
                    .find(|device| is_called(name, &device.name, device.interface_index))?;
                let is_link_local = |ip: &IpAddr| ip_to_gid(*ip).is_link_local();
                let slot = device.gids.iter().position(is_link_local).unwrap_or(0);
                Some(previewed(device, slot))
            }
            DeviceQuestion::TowardsGid { .. } => None,
        }
    }
}

impl Lookups for Machine {
    fn set_waiting(&mut self, waiting: Waiting) {
        self.waiting = waiting;
    }

    fn device(&self, question: &DeviceQuestion) -> DeviceAnswer {
        match self.find(question) {
            Ok(device) => DeviceAnswer::Found(device),
            Err(why) => DeviceAnswer::None { why },
        }
    }

    fn paths(&self, question: &PathQuestion) -> Result<Vec<PathData>, Cause> {
        fabric::paths(question, &self.waiting)
    }

    fn service_records(&self, service: &SaService) -> Result<Vec<ServiceRecord>, Cause> {
        fabric::service_records(service, self.fabric_port, &self.waiting)
    }
}

/// Describes the search, for the error of a failed lookup.
fn none_of(provider: &str) -> String {
    let looked_at = match provider == Choice::Software.name() {
        true => "software devices exist for interfaces that are up and have an address",
        false => "none of the kernel's RDMA devices has it in its GID table",
    };
    looked_at.into()
}

fn find_on(provider: &dyn Provider, question: &DeviceQuestion) -> Found {
    let found = match question {
        // A link-local address may be on several interfaces; its zone selects one.
        DeviceQuestion::OfAddress {
            ip,
            interface_index: Some(index),
            ..
        } => on_interface(provider, *ip, *index),
        DeviceQuestion::OfAddress { ip, leaves_by, .. } => leaves_by
            .and_then(|index| on_interface(provider, *ip, index))
            .or_else(|| of_address(provider, *ip)),
        DeviceQuestion::Named { name } => named(provider, name),
        DeviceQuestion::TowardsGid { .. } => None,
    };
    found.ok_or_else(|| none_of(provider.name()))
}

/// Returns whether a zone refers to the device with this name and index.
fn is_called(zone: &str, name: &str, index: u32) -> bool {
    zone == name || zone.parse() == Ok(index)
}

fn of_address(provider: &dyn Provider, ip: IpAddr) -> Option<DeviceChoice> {
    let (device, gid_index) = provider.device_of(ip).ok()?;
    let gids = device.gids_of(ip).ok()?;
    let entry = gids.iter().find(|entry| entry.index == gid_index)?;
    choice(&*device, entry)
}

fn named(provider: &dyn Provider, name: &str) -> Option<DeviceChoice> {
    let devices = provider.devices().ok()?;
    let mut devices = devices.iter();
    let device = devices.find(|device| is_called(name, device.name(), device.index()))?;
    let gids = device.gids(PORT).ok()?;
    let entry = gids.iter().find(|entry| entry.gid.is_link_local());
    let entry = entry.or(gids.first())?;
    choice(&**device, entry)
}

fn on_interface(provider: &dyn Provider, ip: IpAddr, index: u32) -> Option<DeviceChoice> {
    provider.devices().ok()?.iter().find_map(|device| {
        let gids = device.gids_of(ip).ok()?;
        // A GID table may have addresses of several interfaces, such as VLANs.
        let is_here = |entry: &&GidEntry| match entry.interface_index {
            0 => device.interface_index() == index,
            known => known == index,
        };
        let entry = gids.iter().find(is_here)?;
        choice(&**device, entry)
    })
}

/// A GID table entry of a device; `None` if the device has just gone.
fn choice(device: &dyn Device, entry: &GidEntry) -> Option<DeviceChoice> {
    Some(DeviceChoice {
        name: device.name().into(),
        index: device.index(),
        port_num: entry.port_num,
        gid_index: entry.index,
        gid: entry.gid,
        link_layer: device.port_attr(entry.port_num).ok()?.link_layer,
        provider: String::new(),
    })
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
        provider: String::new(),
    }
}

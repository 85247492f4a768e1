//! The port from which a GID is queried.

use std::net::IpAddr;

use portolan_provider::traits::Device;
use portolan_provider::verbs::LinkLayer;
use portolan_roce::io::DevicePreview;
use portolan_sa::{self as sa, Client, ClientConfig, umad};
use portolan_wire::addr::Gid;

use super::Reason;
use super::route::Ethernet;

/// Maximum number of ports of a device: the most that the verbs can number.
const PORTS_MAX: u8 = u8::MAX;

/// A snapshot of a port of an RDMA device.
///
/// ```
/// use portolan::reach::Port;
/// use portolan::software::preview;
///
/// // Without starting the software devices.
/// for device in preview()?.iter().filter(|device| device.running) {
///     let port = Port::of_preview(device).expect("its interface is up");
///     assert!(port.is_on(device.interface_index));
///     println!("{} port {}", port.device(), port.port_num());
/// }
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Port {
    pub(super) device: String,
    pub(super) port_num: u8,
    pub(super) link: Link,
}

#[derive(Clone, Debug)]
pub(super) enum Link {
    Ethernet(Ethernet),
    InfiniBand(InfiniBand),
}

/// The query client of an InfiniBand port.
#[derive(Clone, Debug)]
pub(super) struct InfiniBand {
    pub(super) client: Client,
    /// Its first GID, which the subnet manager assigns.
    pub(super) gid: Option<Gid>,
}

impl Port {
    /// Returns a port of a device; port 0 selects the first active one.
    ///
    /// # Errors
    /// `InvalidArgument` if the device lacks the port; `Io` if the port is down, the device has no
    /// active port, or an InfiniBand port has no user MAD device.
    pub fn of(device: &dyn Device, port_num: u8) -> Result<Self, Reason> {
        let port_num = match port_num {
            0 => first_active(device)?,
            port_num => port_num,
        };
        let Ok(attr) = device.port_attr(port_num) else {
            return Err(Reason::InvalidArgument {
                what: "port",
                expected: "one that the device has, or 0",
                found: port_num.to_string(),
            });
        };
        if !attr.active {
            return Err(Reason::Io(format!("port {port_num} is down")));
        }
        if attr.link_layer == LinkLayer::InfiniBand {
            return Self::of_umad(&umad_of(device.name(), port_num)?);
        }
        let gids = device.gids(port_num);
        let gids = gids.map_err(|error| Reason::Io(error.to_string()))?;
        let mut interfaces: Vec<u32> = gids.iter().map(|entry| entry.interface_index).collect();
        interfaces.push(device.interface_index());
        interfaces.retain(|index| *index != 0);
        interfaces.sort_unstable();
        interfaces.dedup();
        Ok(Self {
            device: device.name().to_owned(),
            port_num,
            link: Link::Ethernet(Ethernet {
                addresses: gids.iter().map(|entry| entry.gid.to_ip()).collect(),
                interfaces,
            }),
        })
    }

    /// Creates an Ethernet port of the named device from the IP addresses of its GIDs and their
    /// network interfaces (0 means none).
    pub fn ethernet(
        device: &str,
        port_num: u8,
        addresses: Vec<IpAddr>,
        mut interfaces: Vec<u32>,
    ) -> Self {
        interfaces.retain(|index| *index != 0);
        interfaces.sort_unstable();
        interfaces.dedup();
        let device = device.to_owned();
        let link = Link::Ethernet(Ethernet {
            addresses,
            interfaces,
        });
        Self {
            device,
            port_num,
            link,
        }
    }

    /// Returns an InfiniBand port by its device's name, through its user MAD device.
    ///
    /// # Errors
    /// `Io` if there is none; otherwise as [`Port::of_umad`].
    pub fn infiniband_named(device: &str, port_num: u8) -> Result<Self, Reason> {
        Self::of_umad(&umad_of(device, port_num)?)
    }

    /// Returns the port of a software device without starting the device.
    ///
    /// # Errors
    /// `Io` if its network interface is down.
    pub fn of_preview(device: &DevicePreview) -> Result<Self, Reason> {
        if !device.running {
            return Err(Reason::Io(format!("{} is down", device.interface)));
        }
        Ok(Self {
            device: device.name.clone(),
            port_num: 1,
            link: Link::Ethernet(Ethernet {
                addresses: device.gids.clone(),
                interfaces: vec![device.interface_index],
            }),
        })
    }

    /// Returns an InfiniBand port by its user MAD device, with its own client of the administrator.
    ///
    /// # Errors
    /// `Io` if it is gone or down; `InvalidArgument` if it is not an InfiniBand port.
    pub fn of_umad(device: &umad::Device) -> Result<Self, Reason> {
        let port = device
            .port()
            .map_err(|error| Reason::Io(error.to_string()))?;
        if port.link_layer != LinkLayer::InfiniBand {
            return Err(Reason::InvalidArgument {
                what: "link layer of the port",
                expected: "InfiniBand",
                found: port.link_layer.to_string(),
            });
        }
        if port.state < sa::PortState::Active {
            return Err(Reason::Io(format!(
                "port {} is {}",
                port.port_num, port.state
            )));
        }
        let client = Client::of_device(ClientConfig::default(), device.clone());
        Ok(Self::infiniband(client, &port))
    }

    /// Creates an InfiniBand port that queries its administrator through `client`.
    pub fn infiniband(client: Client, port: &sa::Port) -> Self {
        Self {
            device: port.device.clone(),
            port_num: port.port_num,
            link: Link::InfiniBand(InfiniBand {
                client,
                gid: port.gid(),
            }),
        }
    }

    /// Name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Its port, from 1.
    pub fn port_num(&self) -> u8 {
        self.port_num
    }

    /// Returns whether it is on this network interface.
    pub fn is_on(&self, interface_index: u32) -> bool {
        match &self.link {
            Link::Ethernet(ethernet) => ethernet.interfaces.contains(&interface_index),
            Link::InfiniBand(_) => false,
        }
    }

    /// Returns whether this port would be used for a GID, from local knowledge only: the kernel's
    /// routing uses it or, on InfiniBand, the GID is in the port's subnet.
    pub fn leads_to(&self, gid: Gid) -> bool {
        match &self.link {
            Link::Ethernet(ethernet) => super::route::find(ethernet, gid).is_ok(),
            Link::InfiniBand(port) => {
                let own = port.gid.map(Gid::subnet_prefix);
                own == Some(gid.subnet_prefix())
            }
        }
    }
}

fn umad_of(device: &str, port_num: u8) -> Result<umad::Device, Reason> {
    let devices = umad::devices().map_err(|error| Reason::Io(error.to_string()))?;
    let is_it = |umad: &umad::Device| umad.device == device && umad.port_num == port_num;
    let why =
        "the port has no user MAD device to ask its subnet administrator by (modprobe ib_umad)";
    let found = devices.into_iter().find(is_it);
    found.ok_or_else(|| Reason::Io(why.into()))
}

fn first_active(device: &dyn Device) -> Result<u8, Reason> {
    for port_num in 1..=PORTS_MAX {
        match device.port_attr(port_num) {
            Ok(attr) if attr.active => return Ok(port_num),
            Ok(_) => {}
            // Ports are numbered without gaps, so this is the end.
            Err(_) => break,
        }
    }
    Err(Reason::Io("no port of the device is active".into()))
}

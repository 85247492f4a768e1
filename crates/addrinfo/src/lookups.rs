//! The look-ups that addresses are found by, as questions, answers, and whoever answers them.

use std::fmt;
use std::net::IpAddr;

use portolan_provider::{Address, Cause};
use portolan_wire::addr::{Gid, PKey};

pub use portolan_provider::verbs::LinkLayer;

use crate::names::{self, NameError, NameOptions, NameResult};
use crate::path::PathData;
use crate::route::{self, Query, Route};

/// A look-up to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// A host, a service or both to socket addresses.
    Names(NameQuestion),
    /// The way to a destination.
    Route(Query),
    /// The RDMA device of a source.
    Device(DeviceQuestion),
    /// The paths between two ports of InfiniBand.
    Paths(PathQuestion),
    /// The records of a service at InfiniBand's subnet administrator.
    ServiceRecords(SaService),
}

/// What was found. It must be of its question's kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Question::Names`].
    Names(Result<Vec<NameResult>, NameError>),
    /// To [`Question::Route`].
    Route(Result<Route, Cause>),
    /// To [`Question::Device`].
    Device(DeviceAnswer),
    /// To [`Question::Paths`].
    Paths(Result<Vec<PathData>, Cause>),
    /// To [`Question::ServiceRecords`].
    ServiceRecords(Result<Vec<ServiceRecord>, Cause>),
}

/// A name to look up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameQuestion {
    /// The host.
    pub node: Option<String>,
    /// The service.
    pub service: Option<String>,
    /// How.
    pub options: NameOptions,
}

impl Question {
    /// Whether the answer may take its time: the system's resolver or the subnet administrator gives
    /// it. The others come from this machine's memory.
    pub fn may_block(&self) -> bool {
        match self {
            Self::Names(question) => question.may_block(),
            Self::Paths(_) | Self::ServiceRecords(_) => true,
            Self::Route(_) | Self::Device(_) => false,
        }
    }
}

impl NameQuestion {
    /// Whether the system's resolver has to be asked, which may take its time.
    pub fn may_block(&self) -> bool {
        names::may_block(self.node.as_deref(), self.service.as_deref(), self.options)
    }
}

/// A device to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceQuestion {
    /// The device whose GID table has a local address.
    OfAddress {
        /// The address.
        ip: IpAddr,
        /// The interface that it is on, where the address alone does not tell (link-local ones).
        interface_index: Option<u32>,
        /// The interface by which the route leaves this machine, if it does.
        leaves_by: Option<u32>,
    },
    /// The device that a zone of a GID names.
    Named {
        /// Its name, or its index as digits.
        name: String,
    },
    /// The port of InfiniBand whose subnet a GID is of.
    TowardsGid {
        /// The destination.
        gid: Gid,
        /// The GID of the port, where that is decided already.
        source: Option<Gid>,
    },
}

/// The device that was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceAnswer {
    /// This one.
    Found(DeviceChoice),
    /// None.
    None {
        /// What was looked at.
        why: String,
    },
    /// Whoever answers knows no devices.
    Unknown,
}

/// A device, its port and a slot of the GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    /// Name, such as `sw_eth0`.
    pub name: String,
    /// Number of the device.
    pub index: u32,
    /// Port, from 1.
    pub port_num: u8,
    /// Slot of the GID table.
    pub gid_index: u32,
    /// The GID there.
    pub gid: Gid,
    /// What the port is linked by.
    pub link_layer: LinkLayer,
    /// Whose device it is and why that provider serves, as a clause; empty if there is nothing to choose.
    pub provider: String,
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            port_num,
            gid_index,
            gid,
            provider,
            ..
        } = self;
        write!(f, "{name} port {port_num} GID index {gid_index} ({gid})")?;
        if provider.is_empty() {
            return Ok(());
        }
        write!(f, ", provider {provider}")
    }
}

/// Paths to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathQuestion {
    /// The device that they start from.
    pub device: DeviceChoice,
    /// Local address.
    pub source: Address,
    /// Destination.
    pub destination: Address,
    /// What hints demand of them; see [`PathData::meets`].
    pub wanted: Vec<PathData>,
}

/// A service to look for at the subnet administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaService {
    /// By its id, host order.
    Id(u64),
    /// By its name, 1 to 63 bytes.
    Name(String),
}

/// A service that the subnet administrator knows (ServiceRecord, IBTA 15.2.5.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRecord {
    /// Service id.
    pub id: u64,
    /// Port that offers it.
    pub gid: Gid,
    /// Partition.
    pub pkey: PKey,
    /// The local port that asked.
    pub local_gid: Gid,
}

/// Whoever answers. A method not given answers that there is no such thing here.
pub trait Lookups {
    /// Resolves a host, a service or both.
    fn names(&self, question: &NameQuestion) -> Result<Vec<NameResult>, NameError> {
        let NameQuestion {
            node,
            service,
            options,
        } = question;
        names::resolve(node.as_deref(), service.as_deref(), *options)
    }

    /// Finds the way to a destination.
    fn route(&self, query: &Query) -> Result<Route, Cause> {
        route::lookup(query)
    }

    /// Finds a device.
    fn device(&self, _question: &DeviceQuestion) -> DeviceAnswer {
        DeviceAnswer::Unknown
    }

    /// Finds paths of InfiniBand.
    fn paths(&self, _question: &PathQuestion) -> Result<Vec<PathData>, Cause> {
        Err(Cause::Unsupported(
            "asking the subnet administrator for paths",
        ))
    }

    /// Finds the records of a service at the subnet administrator.
    fn service_records(&self, _service: &SaService) -> Result<Vec<ServiceRecord>, Cause> {
        Err(Cause::NoSuchObject("an InfiniBand port that could ask it"))
    }

    /// Answers any question.
    fn answer(&self, question: &Question) -> Answer {
        match question {
            Question::Names(question) => Answer::Names(self.names(question)),
            Question::Route(query) => Answer::Route(self.route(query)),
            Question::Device(question) => Answer::Device(self.device(question)),
            Question::Paths(question) => Answer::Paths(self.paths(question)),
            Question::ServiceRecords(service) => {
                Answer::ServiceRecords(self.service_records(service))
            }
        }
    }
}

/// The system's resolver and routing tables, in the caller's thread; no devices.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Lookups for System {}

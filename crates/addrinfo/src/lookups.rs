//! The lookups behind address resolution: questions, answers, and the trait that answers them.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use portolan_provider::{Address, Cause};
use portolan_wire::addr::{Gid, PKey};

pub use portolan_provider::verbs::LinkLayer;

use crate::names::{self, NameError, NameOptions, NameResult};
use crate::path::PathData;
use crate::route::{self, Query, Route};

/// A lookup to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Resolve a host, a service or both to socket addresses.
    Names(NameQuestion),
    /// Find the route to a destination.
    Route(Query),
    /// Find the RDMA device of a source address.
    Device(DeviceQuestion),
    /// Find the paths between two InfiniBand ports.
    Paths(PathQuestion),
    /// Find a service's records at InfiniBand's subnet administrator.
    ServiceRecords(SaService),
}

/// The result of a lookup. It must be of its question's kind.
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

/// A name lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameQuestion {
    /// The host.
    pub node: Option<String>,
    /// The service.
    pub service: Option<String>,
    /// Options of the lookup.
    pub options: NameOptions,
}

impl Question {
    /// Returns whether the lookup may block, because the system's resolver or the subnet
    /// administrator answers it. The others use only local state.
    pub fn may_block(&self) -> bool {
        match self {
            Self::Names(question) => question.may_block(),
            Self::Paths(_) | Self::ServiceRecords(_) => true,
            Self::Route(_) | Self::Device(_) => false,
        }
    }
}

impl NameQuestion {
    /// Returns whether this machine's files probably have the answer, so that no server is asked.
    pub(crate) fn is_local(&self) -> bool {
        names::is_local(self.node.as_deref(), self.service.as_deref(), self.options)
    }

    /// Returns whether the lookup needs the system's resolver, which may block.
    pub fn may_block(&self) -> bool {
        names::may_block(self.node.as_deref(), self.service.as_deref(), self.options)
    }
}

/// A device lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceQuestion {
    /// The device whose GID table has a local address.
    OfAddress {
        /// The address.
        ip: IpAddr,
        /// The address's interface, if the address alone is ambiguous (link-local ones).
        interface_index: Option<u32>,
        /// The interface by which the route leaves this machine, if it does.
        leaves_by: Option<u32>,
    },
    /// The device that a GID's zone names.
    Named {
        /// Its name, or its index as digits.
        name: String,
    },
    /// The InfiniBand port on the subnet of a GID.
    TowardsGid {
        /// The destination.
        gid: Gid,
        /// The GID of the port, if already chosen.
        source: Option<Gid>,
    },
}

/// The result of a device lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceAnswer {
    /// The device.
    Found(DeviceChoice),
    /// No device matches.
    None {
        /// What was searched.
        why: String,
    },
    /// The lookup implementation does not know devices.
    Unknown,
}

/// A device, its port and a GID table index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice {
    /// Name, such as `sw_eth0`.
    pub name: String,
    /// Number of the device.
    pub index: u32,
    /// Port, from 1.
    pub port_num: u8,
    /// GID table index.
    pub gid_index: u32,
    /// The GID at that index.
    pub gid: Gid,
    /// The link layer of the port.
    pub link_layer: LinkLayer,
    /// The device's provider and why it was selected, as a clause; empty if there was no choice.
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

/// A path lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathQuestion {
    /// The local device.
    pub device: DeviceChoice,
    /// Local address.
    pub source: Address,
    /// Destination.
    pub destination: Address,
    /// Paths in the hints; see [`PathData::meets`].
    pub wanted: Vec<PathData>,
}

/// A service to look up at the subnet administrator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaService {
    /// By its id, host order.
    Id(u64),
    /// By its name, 1 to 63 bytes.
    Name(String),
}

/// A service registered at the subnet administrator (ServiceRecord, IBTA 15.2.5.15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRecord {
    /// Service id.
    pub id: u64,
    /// Port that offers it.
    pub gid: Gid,
    /// Partition.
    pub pkey: PKey,
    /// The local port through which the query was sent.
    pub local_gid: Gid,
}

/// Whether a caller still waits for the answers. The default is a caller that always does.
#[derive(Clone, Debug, Default)]
pub struct Waiting(Option<Weak<()>>);

impl Waiting {
    /// A caller that waits as long as `token` lives.
    pub fn while_alive(token: &Arc<()>) -> Self {
        Self(Some(Arc::downgrade(token)))
    }

    /// Whether the caller has cancelled the lookup, or its deadline has passed.
    pub fn is_over(&self) -> bool {
        let token = self.0.as_ref();
        token.is_some_and(|token| token.strong_count() == 0)
    }
}

/// Answers lookups. The default methods report that nothing was found.
pub trait Lookups {
    /// Names the caller of the next questions. A lookup that sends several queries should stop between two of them once
    /// its caller has gone. The default method does nothing.
    fn set_waiting(&mut self, _waiting: Waiting) {}

    /// Resolves a host, a service or both.
    fn names(&self, question: &NameQuestion) -> Result<Vec<NameResult>, NameError> {
        let NameQuestion {
            node,
            service,
            options,
        } = question;
        names::resolve(node.as_deref(), service.as_deref(), *options)
    }

    /// Finds the route to a destination.
    fn route(&self, query: &Query) -> Result<Route, Cause> {
        route::lookup(query)
    }

    /// Finds a device.
    fn device(&self, _question: &DeviceQuestion) -> DeviceAnswer {
        DeviceAnswer::Unknown
    }

    /// Finds InfiniBand paths.
    fn paths(&self, _question: &PathQuestion) -> Result<Vec<PathData>, Cause> {
        Err(Cause::Unsupported(
            "asking the subnet administrator for paths",
        ))
    }

    /// Finds the records of a service at the subnet administrator.
    fn service_records(&self, _service: &SaService) -> Result<Vec<ServiceRecord>, Cause> {
        Err(Cause::NoSuchObject(
            "an InfiniBand port to query it through",
        ))
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

/// The system's resolver and routing tables, on the caller's thread; no devices.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Lookups for System {}

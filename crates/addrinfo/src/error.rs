//! Why no address was found, with the error code that rdma_getaddrinfo(3) documents.

use std::fmt;

use portolan_provider::address::{IbTextError, SockaddrError};
use portolan_provider::error::errno;
use portolan_provider::{Address, Cause, Error, Step};
use portolan_wire::addr::PortSpace;

use crate::hints::{Family, QpType};
use crate::names::{Eai, NameError, Reason, asked};
use crate::path::ROUTE_RECORDS_MAX;

/// Maximum connection data in hints, in bytes: the private data field of a REQ (IBTA 12.6.5).
pub const CONNECT_DATA_MAX: usize = 92;
/// Maximum length of an InfiniBand service name, in bytes (ServiceRecord's field without its NUL).
pub const SERVICE_NAME_MAX: usize = 63;

const EAFNOSUPPORT: i32 = 97;

/// A failed address lookup: the query and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem} ({})", asked(.node.as_deref(), .service.as_deref()), .problem.code().name())]
#[non_exhaustive]
pub struct AddrInfoError {
    /// The requested node.
    pub node: Option<String>,
    /// The requested service.
    pub service: Option<String>,
    /// Why it failed.
    pub problem: Box<Problem>,
}

/// Why no address was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The query has neither a node nor a service nor hints with an address.
    #[error(
        "the query is empty: give a host, a service, or hints with a source, a destination or a \
         route"
    )]
    Nothing,
    /// The host or service did not resolve.
    #[error("{0}")]
    Name(Reason),
    /// The service exists for no queue pair type.
    #[error("the service is not known; give a port number or add it to /etc/services")]
    UnknownService,
    /// Unknown flags.
    #[error(
        "unknown ai_flags {unknown:#x}; valid are RAI_PASSIVE, RAI_NUMERICHOST, \
         RAI_NOROUTE, RAI_FAMILY, RAI_SA and RAI_DNS"
    )]
    UnknownFlags {
        /// The unknown flags.
        unknown: u32,
    },
    /// Both RAI_SA and RAI_DNS.
    #[error("RAI_SA and RAI_DNS exclude each other: leave one of them out")]
    SaAndDns,
    /// An address family that rdma_getaddrinfo does not support.
    #[error("address family {0} is not supported; AF_INET (2), AF_INET6 (10) and AF_IB (27) are")]
    UnknownFamily(i32),
    /// A queue pair type that rdma_getaddrinfo does not support.
    #[error(
        "queue pair type {0} is not supported; RC (2), UC (3), UD (4), XRC_SEND (9) and XRC_RECV (10) are"
    )]
    UnknownQpType(i32),
    /// An unknown port space.
    #[error(
        "unknown port space {0:#x}; valid are TCP (0x106), UDP (0x111), IB (0x13f) and \
         IPOIB (0x2)"
    )]
    UnknownPortSpace(i32),
    /// The queue pair type does not exist in the port space.
    #[error("queue pairs of type {qp_type} do not belong to port space {port_space}: {}", Eai::QpType.text())]
    Inconsistent {
        /// The requested queue pair type.
        qp_type: QpType,
        /// The requested port space.
        port_space: PortSpace,
    },
    /// An address in the hints is malformed.
    #[error("hints.{field}: {error}")]
    Address {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        error: SockaddrError,
    },
    /// An address has a family other than the requested one.
    #[error("hints.{field} {address} is not of the requested family {expected}")]
    AddressFamily {
        /// The field.
        field: &'static str,
        /// The address.
        address: Address,
        /// The requested family.
        expected: Family,
    },
    /// The host has addresses, but none of the requested family.
    #[error(
        "the host has no {expected} address, but {found} of another family; ask for another family, or for any"
    )]
    NoneOfFamily {
        /// The requested family.
        expected: Family,
        /// Number of its addresses of other families.
        found: usize,
    },
    /// The length of a route is not that of an array of records.
    #[error(
        "hints.ai_route has {length} bytes: 1 to {ROUTE_RECORDS_MAX} records of 64 (ibv_path_record) \
         or of 72 (ibv_path_data) are taken"
    )]
    RouteLength {
        /// Its length, in bytes.
        length: usize,
    },
    /// Too many paths.
    #[error("hints.ai_route has {count} records, the limit is {ROUTE_RECORDS_MAX}")]
    TooManyPaths {
        /// Number of paths.
        count: usize,
    },
    /// The connection data exceeds what a message can carry.
    #[error("hints.ai_connect has {length} bytes, the limit is {CONNECT_DATA_MAX}")]
    ConnectTooLong {
        /// Its length, in bytes.
        length: usize,
    },
    /// A link-local address has no zone.
    #[error(
        "{address} is link-local and needs its link: write {address}%eth0 (`ip link` lists links)"
    )]
    NoZone {
        /// The address.
        address: std::net::Ipv6Addr,
    },
    /// The node is not an InfiniBand address, but only those were requested.
    #[error("{0}; with AF_IB the host is GID[%DEVICE][,pkey=..][,sid=..]")]
    NotGid(IbTextError),
    /// No device has the name in a GID's zone.
    #[error("no RDMA device is named `{name}`: {why}; `portolan devices` lists them")]
    NoSuchDevice {
        /// The name as written.
        name: String,
        /// What was searched.
        why: String,
    },
    /// Both a service id and a service are given.
    #[error("both sid= and a service are given: leave one of them out")]
    TwoServices,
    /// A service id is given where only ports are valid.
    #[error(
        "service id {0:#x} is not a port (0 to 65535); service ids belong to RDMA_PS_IB and AF_IB"
    )]
    ServiceId(u64),
    /// The source of the hints cannot be used.
    #[error("hints.ai_src_addr {source_address} cannot be the source: {cause}")]
    Source {
        /// The address.
        source_address: Address,
        /// Why it cannot be used.
        cause: Cause,
    },
    /// RAI_SA with a node.
    #[error("RAI_SA looks services up, not hosts: leave the node out")]
    SaNode,
    /// RAI_SA without a service.
    #[error("RAI_SA needs a service: the name of an InfiniBand service, or its id")]
    SaNoService,
    /// The name of an InfiniBand service is longer than its field, or empty.
    #[error("the name of an InfiniBand service has 1 to {SERVICE_NAME_MAX} bytes, not {length}")]
    SaServiceName {
        /// Its length, in bytes.
        length: usize,
    },
    /// The subnet administrator could not be queried.
    #[error("cannot query the subnet administrator: {0}")]
    Sa(Cause),
    /// The subnet administrator has no such service.
    #[error("the subnet administrator knows no such service")]
    SaNothing,
    /// The deadline passed before the lookups finished.
    #[error("the deadline of {after_ms} ms passed: {}", Eai::Again.text())]
    Deadline {
        /// How long the lookup waited, in milliseconds.
        after_ms: u64,
    },
    /// An answer belongs to a different question.
    #[error("a lookup returned an answer of another kind (a bug of the program)")]
    WrongAnswer,
    /// A lookup panicked.
    #[error("a lookup panicked (a bug of the program)")]
    Defect,
}

impl Problem {
    /// The code of rdma_getaddrinfo(3). Only codes of that page occur; [`Eai::System`] carries the
    /// errno.
    pub fn code(&self) -> Eai {
        match self {
            Self::Nothing
            | Self::UnknownService
            | Self::NoZone { .. }
            | Self::NotGid(_)
            | Self::NoSuchDevice { .. } => Eai::NoName,
            Self::Name(reason) => name_code(reason),
            Self::UnknownFlags { .. } | Self::SaAndDns => Eai::BadFlags,
            Self::UnknownFamily(_) => Eai::Family,
            Self::UnknownQpType(_) | Self::UnknownPortSpace(_) | Self::Inconsistent { .. } => {
                Eai::QpType
            }
            Self::AddressFamily { .. } | Self::NoneOfFamily { .. } => Eai::AddrFamily,
            Self::TwoServices | Self::ServiceId(_) => Eai::Service,
            Self::Deadline { .. } => Eai::Again,
            Self::Address { .. }
            | Self::RouteLength { .. }
            | Self::TooManyPaths { .. }
            | Self::ConnectTooLong { .. }
            | Self::SaNoService
            | Self::SaServiceName { .. } => Eai::System(errno::EINVAL),
            Self::Source { cause, .. } | Self::Sa(cause) => Eai::System(cause.errno()),
            Self::SaNode => Eai::System(errno::EOPNOTSUPP),
            Self::SaNothing => Eai::System(errno::ENOENT),
            Self::WrongAnswer | Self::Defect => Eai::System(errno::EIO),
        }
    }
}

/// Maps the resolver's codes to those of the page; a code that the page lacks becomes the nearest
/// one.
fn name_code(reason: &Reason) -> Eai {
    match reason {
        Reason::NodeTooLong { .. } => Eai::NoName,
        Reason::ServiceTooLong { .. } => Eai::Service,
        Reason::TooManyAddresses => Eai::Memory,
        Reason::Resolver(Eai::Overflow) => Eai::Memory,
        Reason::Resolver(Eai::Other(_)) => Eai::System(errno::EIO),
        other => other.eai(),
    }
}

impl AddrInfoError {
    /// Creates the error of a lookup of this node and service.
    pub fn new(node: Option<&str>, service: Option<&str>, problem: Problem) -> Self {
        Self {
            node: node.map(Into::into),
            service: service.map(Into::into),
            problem: Box::new(problem),
        }
    }

    /// Creates an error in the hints, found before node and service are examined.
    pub(crate) fn of_hints(problem: Problem) -> Self {
        Self::new(None, None, problem)
    }

    /// Creates the error for a deadline that passed before the lookups finished.
    pub fn deadline(node: Option<&str>, service: Option<&str>, after_ms: u64) -> Self {
        Self::new(node, service, Problem::Deadline { after_ms })
    }

    /// The code of rdma_getaddrinfo(3), numbered as in glibc.
    pub fn code(&self) -> Eai {
        self.problem.code()
    }

    /// The errno (positive) for calls that return -1 and set errno.
    pub fn errno(&self) -> i32 {
        match self.code() {
            Eai::System(errno) => errno,
            Eai::BadFlags | Eai::QpType | Eai::Service => errno::EINVAL,
            Eai::Family | Eai::AddrFamily => EAFNOSUPPORT,
            Eai::Again => errno::EAGAIN,
            Eai::Memory | Eai::Overflow => errno::ENOMEM,
            Eai::Fail | Eai::Other(_) => errno::EIO,
            Eai::NoName | Eai::NoData => errno::ENOENT,
        }
    }
}

impl From<NameError> for AddrInfoError {
    fn from(error: NameError) -> Self {
        let NameError {
            node,
            service,
            reason,
        } = error;
        Self {
            node,
            service,
            problem: Box::new(Problem::Name(reason)),
        }
    }
}

impl From<AddrInfoError> for Cause {
    fn from(error: AddrInfoError) -> Self {
        let found = error.to_string();
        let AddrInfoError {
            node,
            service,
            problem,
        } = error;
        match *problem {
            Problem::Name(reason) => NameError {
                node,
                service,
                reason,
            }
            .into(),
            Problem::Source { cause, .. } | Problem::Sa(cause) => cause,
            Problem::SaNothing | Problem::UnknownService | Problem::NoneOfFamily { .. } => {
                Self::NameNotKnown(found)
            }
            Problem::NoSuchDevice { .. } => Self::NoDevice { why: found },
            Problem::Deadline { after_ms } => Self::TimedOut {
                after_ms,
                retries: 0,
            },
            Problem::SaNode => Self::Unsupported("a node with RAI_SA"),
            Problem::WrongAnswer | Problem::Defect => Self::Os {
                call: "rdma_getaddrinfo",
                errno: errno::EIO,
            },
            _ => Self::InvalidArgument {
                what: "address query",
                expected: "a consistent host, service and hints".into(),
                found,
            },
        }
    }
}

impl From<AddrInfoError> for Error {
    fn from(error: AddrInfoError) -> Self {
        Self::new(Step::ResolveName, error.into())
    }
}

impl fmt::Display for Eai {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

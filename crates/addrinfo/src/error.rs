//! Why no address was found, with the code that rdma_getaddrinfo(3) documents for it.

use std::fmt;

use portolan_provider::address::{IbTextError, SockaddrError};
use portolan_provider::error::errno;
use portolan_provider::{Address, Cause, Error, Step};
use portolan_wire::addr::PortSpace;

use crate::hints::{Family, QpType};
use crate::names::{Eai, NameError, Reason, asked};
use crate::path::ROUTE_RECORDS_MAX;

/// Longest connection data of hints, bytes: the private data field of a REQ (IBTA 12.6.5).
pub const CONNECT_DATA_MAX: usize = 92;
/// Longest name of an InfiniBand service, bytes (ServiceRecord's field, less its NUL).
pub const SERVICE_NAME_MAX: usize = 63;

const EAFNOSUPPORT: i32 = 97;

/// Addresses that were not found: what was asked, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem} ({})", asked(.node.as_deref(), .service.as_deref()), .problem.code().name())]
pub struct AddrInfoError {
    /// The node asked for.
    pub node: Option<String>,
    /// The service asked for.
    pub service: Option<String>,
    /// Why it failed.
    pub problem: Box<Problem>,
}

/// Why no address was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Neither node nor service, nor hints with an address.
    #[error(
        "nothing is asked for: give a host, a service, or hints with a source, a destination or a \
         route"
    )]
    Nothing,
    /// The host or service did not resolve.
    #[error("{0}")]
    Name(Reason),
    /// A service that no queue pair type has.
    #[error("the service is not known; give a port number or add it to /etc/services")]
    UnknownService,
    /// Flags that do not exist.
    #[error(
        "flags {unknown:#x} of ai_flags do not exist; there are RAI_PASSIVE, RAI_NUMERICHOST, \
         RAI_NOROUTE, RAI_FAMILY, RAI_SA and RAI_DNS"
    )]
    UnknownFlags {
        /// Those that do not exist.
        unknown: u32,
    },
    /// Both RAI_SA and RAI_DNS.
    #[error("RAI_SA and RAI_DNS exclude each other: leave one of them out")]
    SaAndDns,
    /// An address family that is none of rdma_getaddrinfo's.
    #[error("address family {0} is not supported; AF_INET (2), AF_INET6 (10) and AF_IB (27) are")]
    UnknownFamily(i32),
    /// A queue pair type that is none of rdma_getaddrinfo's.
    #[error(
        "queue pair type {0} is not supported; RC (2), UC (3), UD (4), XRC_SEND (9) and XRC_RECV (10) are"
    )]
    UnknownQpType(i32),
    /// A port space that does not exist.
    #[error(
        "port space {0:#x} does not exist; there are TCP (0x106), UDP (0x111), IB (0x13f) and \
         IPOIB (0x2)"
    )]
    UnknownPortSpace(i32),
    /// The queue pair type does not exist in the port space.
    #[error("queue pairs of type {qp_type} do not belong to port space {port_space}: {}", Eai::QpType.text())]
    Inconsistent {
        /// Queue pair type asked for.
        qp_type: QpType,
        /// Port space asked for.
        port_space: PortSpace,
    },
    /// An address of the hints whose bytes are none.
    #[error("hints.{field}: {error}")]
    Address {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        error: SockaddrError,
    },
    /// An address of another family than asked for.
    #[error("hints.{field} {address} is not of the family asked for, {expected}")]
    AddressFamily {
        /// The field.
        field: &'static str,
        /// The address.
        address: Address,
        /// The family asked for.
        expected: Family,
    },
    /// The host has addresses, but none of the family asked for.
    #[error(
        "the host has no {expected} address, but {found} of another family; ask for another family, or for any"
    )]
    NoneOfFamily {
        /// The family asked for.
        expected: Family,
        /// How many addresses of others it has.
        found: usize,
    },
    /// A route whose length is that of no array of records.
    #[error(
        "hints.ai_route has {length} bytes: 1 to {ROUTE_RECORDS_MAX} records of 64 (ibv_path_record) \
         or of 72 (ibv_path_data) are taken"
    )]
    RouteLength {
        /// Its length, bytes.
        length: usize,
    },
    /// More paths than are taken.
    #[error("hints.ai_route has {count} records, the limit is {ROUTE_RECORDS_MAX}")]
    TooManyPaths {
        /// How many there are.
        count: usize,
    },
    /// Connection data longer than any message carries.
    #[error("hints.ai_connect has {length} bytes, the limit is {CONNECT_DATA_MAX}")]
    ConnectTooLong {
        /// Its length, bytes.
        length: usize,
    },
    /// A link-local address that does not say its link.
    #[error(
        "{address} is link-local and means nothing without its link: write {address}%eth0 (`ip link` lists links)"
    )]
    NoZone {
        /// The address.
        address: std::net::Ipv6Addr,
    },
    /// Not an InfiniBand address, and only those were asked for.
    #[error("{0}; with AF_IB the host is GID[%DEVICE][,pkey=..][,sid=..]")]
    NotGid(IbTextError),
    /// No device has the name that the zone of a GID says.
    #[error("no RDMA device is called `{name}`: {why}; `portolan devices` lists them")]
    NoSuchDevice {
        /// The name as written.
        name: String,
        /// What was looked at.
        why: String,
    },
    /// A service id beside a service.
    #[error("the host says sid= and a service is given too: leave one of them out")]
    TwoServices,
    /// A service id where only ports are.
    #[error(
        "service id {0:#x} is no port (0 to 65535); service ids belong to RDMA_PS_IB and AF_IB"
    )]
    ServiceId(u64),
    /// The source of the hints cannot be used.
    #[error("hints.ai_src_addr {source_address} cannot be the source: {cause}")]
    Source {
        /// The address.
        source_address: Address,
        /// Why not.
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
        /// Its length, bytes.
        length: usize,
    },
    /// The subnet administrator could not be asked.
    #[error("the subnet administrator cannot be asked: {0}")]
    Sa(Cause),
    /// The subnet administrator has no such service.
    #[error("the subnet administrator knows no such service")]
    SaNothing,
    /// A deadline passed before the look-ups had ended.
    #[error("the deadline of {after_ms} ms passed: {}", Eai::Again.text())]
    Deadline {
        /// How long was waited, milliseconds.
        after_ms: u64,
    },
    /// The look-up was given an answer to another question.
    #[error("a look-up was answered with something else (a defect of the program)")]
    WrongAnswer,
    /// A look-up panicked.
    #[error("a look-up panicked (a defect of the program)")]
    Defect,
}

impl Problem {
    /// The code of rdma_getaddrinfo(3). Only codes of that page are used;
    /// [`Eai::System`] carries the errno.
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

/// The resolver's codes as far as the page has them, and the nearest of the page for the others.
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
    /// The error of a look-up of this node and service.
    pub fn new(node: Option<&str>, service: Option<&str>, problem: Problem) -> Self {
        Self {
            node: node.map(Into::into),
            service: service.map(Into::into),
            problem: Box::new(problem),
        }
    }

    /// An error found before node and service were looked at.
    pub(crate) fn of_hints(problem: Problem) -> Self {
        Self::new(None, None, problem)
    }

    /// The answer when a deadline passed before the look-ups had ended.
    pub fn deadline(node: Option<&str>, service: Option<&str>, after_ms: u64) -> Self {
        Self::new(node, service, Problem::Deadline { after_ms })
    }

    /// The code of rdma_getaddrinfo(3), with the numbers of glibc.
    pub fn code(&self) -> Eai {
        self.problem.code()
    }

    /// Linux's errno (positive), as calls report it that know -1 and errno only.
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
                expected: "a host, a service and hints that agree".into(),
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

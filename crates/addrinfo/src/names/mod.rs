//! Resolves host and service names to socket addresses.
//!
//! Numeric text never reaches a name service. All else goes to the system's resolver
//! (getaddrinfo(3): nsswitch, `/etc/hosts`, DNS, service names), on the caller's thread, for as
//! long as the system's own settings permit. Callers that must not block use a [`pool`].

mod error;
mod literal;
mod local;
pub mod pool;
mod sys;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

pub(crate) use error::asked;
pub use error::{Eai, NameError, Reason};
pub(crate) use literal::{Literal, Service, Zone};
pub(crate) use local::is_local;

/// Maximum length of a host, in bytes: `NI_MAXHOST` of `netdb.h` without the terminating NUL.
pub const HOST_MAX: usize = 1024;
/// Maximum length of a service, in bytes: `NI_MAXSERV` of `netdb.h` without the terminating NUL.
pub const SERVICE_MAX: usize = 31;
/// Maximum number of addresses of one name; more is an error.
pub const ADDRESSES_MAX: usize = 1024;

/// An IP address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
}

/// The socket type for which a service name is looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SocketType {
    /// `SOCK_STREAM`: the connected port spaces.
    #[default]
    Stream,
    /// `SOCK_DGRAM`: the UDP port space.
    Datagram,
}

/// Options of a name lookup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NameOptions {
    /// For listening: no node means the wildcard address instead of loopback (`AI_PASSIVE`).
    pub passive: bool,
    /// Require a numeric address; do not use name services (`AI_NUMERICHOST`).
    pub numeric_host: bool,
    /// Return only addresses of this family.
    pub family: Option<Family>,
    /// The socket type for service names.
    pub socket_type: SocketType,
    /// Also return the node's canonical name (`AI_CANONNAME`).
    pub canonical_name: bool,
    /// Return only families of which this machine has a non-loopback address (`AI_ADDRCONFIG`).
    pub configured_only: bool,
}

/// One address of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameResult {
    /// Address and port; an IPv6 address keeps its scope id.
    pub addr: SocketAddr,
    /// The node's canonical name; only on the first result and if requested.
    pub canonical_name: Option<String>,
}

/// Resolves a node, a service or both to socket addresses, in the system's order of preference (RFC
/// 6724, `/etc/gai.conf`). Returns at least one.
///
/// Without a node the result is the loopback address, or the wildcard address with
/// [`NameOptions::passive`]. Without a service the port is 0. A link-local IPv6 address without a
/// zone resolves with scope id 0; [`crate::route`] then requires the zone.
///
/// Numeric addresses, zones and ports, and the wildcard addresses (IPv4 first), are resolved here.
/// All else blocks the caller's thread.
///
/// # Errors
/// [`NameError`]. Its [`NameError::eai`] is the code of getaddrinfo(3), except for invalid input
/// that libc accepts silently (port 65536, port -1, an embedded NUL).
pub fn resolve(
    node: Option<&str>,
    service: Option<&str>,
    options: NameOptions,
) -> Result<Vec<NameResult>, NameError> {
    let outcome = match plan(node, service, options) {
        Ok(Plan::Numeric { literal, port }) => numeric(&literal, port).map(|addr| {
            let canonical_name = node.filter(|_| options.canonical_name).map(String::from);
            vec![NameResult {
                addr,
                canonical_name,
            }]
        }),
        Ok(Plan::Wildcard { port }) => Ok(wildcards(port, options.family).collect()),
        Ok(Plan::Ask {
            literal,
            node,
            service,
        }) => literal
            // Check the zone first: for an unknown one libc would only report an unknown name.
            .map_or(Ok(0), |literal| scope_id(&literal))
            .and_then(|_| self::sys::ask(node, service, options)),
        Err(reason) => Err(reason),
    };
    outcome.map_err(|reason| NameError::new(node, service, reason))
}

/// Calls getaddrinfo(3) even for numeric text, and counts its results. The benchmark baseline for
/// [`resolve`].
///
/// # Errors
/// As for [`resolve`].
pub fn count_by_libc(
    node: Option<&str>,
    service: Option<&str>,
    options: NameOptions,
) -> Result<usize, NameError> {
    let planned = service.map_or(Ok(PlannedService::Port(0)), plan_service);
    planned
        .and_then(|planned| self::sys::count(node, planned, options))
        .map_err(|reason| NameError::new(node, service, reason))
}

/// A service as planned for the resolver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlannedService<'a> {
    /// A port in host order; 0 if no service was given.
    Port(u16),
    /// A service name.
    Name(&'a str),
}

/// How a lookup is answered.
#[derive(Debug, PartialEq, Eq)]
enum Plan<'a> {
    /// From the text itself.
    Numeric { literal: Literal, port: u16 },
    /// Directly, for a server that listens at all addresses. libc would sort the two wildcards by
    /// their source addresses: it requests all addresses from the kernel and connects two sockets.
    /// A server's clients may try to connect during that time and fail.
    Wildcard { port: u16 },
    /// By the system's resolver, which knows service names even if the node is numeric.
    Ask {
        literal: Option<Literal>,
        node: Option<&'a str>,
        service: PlannedService<'a>,
    },
}

/// Rejects queries that are invalid without a resolver, and answers a numeric address without a
/// zone and with a port, which needs neither the resolver nor the machine's interfaces.
pub(crate) fn check(
    node: Option<&str>,
    service: Option<&str>,
    options: NameOptions,
) -> Result<Option<SocketAddr>, Reason> {
    match plan(node, service, options)? {
        Plan::Numeric { literal, port } if literal.zone.is_none() => {
            Ok(Some(SocketAddr::new(literal.address, port)))
        }
        _ => Ok(None),
    }
}

/// Returns whether the lookup needs the system's resolver.
pub(crate) fn may_block(node: Option<&str>, service: Option<&str>, options: NameOptions) -> bool {
    matches!(plan(node, service, options), Ok(Plan::Ask { .. }))
}

/// Returns whether the text is a numeric address, with or without a zone.
pub(crate) fn is_numeric(node: &str) -> bool {
    Literal::parse(node).is_some()
}

/// Checks the query and decides how to answer it.
fn plan<'a>(
    node: Option<&'a str>,
    service: Option<&'a str>,
    options: NameOptions,
) -> Result<Plan<'a>, Reason> {
    if node.is_none() && service.is_none() {
        return Err(Reason::Nothing);
    }
    let service = service.map_or(Ok(PlannedService::Port(0)), plan_service)?;
    let Some(text) = node else {
        let is_wildcard = options.passive && !options.configured_only;
        return Ok(match service {
            PlannedService::Port(port) if is_wildcard => Plan::Wildcard { port },
            service => Plan::Ask {
                literal: None,
                node,
                service,
            },
        });
    };
    match text {
        "" => return Err(Reason::EmptyNode),
        _ if text.contains('\0') => return Err(Reason::EmbeddedNul("host")),
        _ if text.len() > HOST_MAX => return Err(Reason::NodeTooLong { length: text.len() }),
        _ => {}
    }
    let literal = Literal::parse(text);
    if let Some(literal) = &literal {
        check_family(literal.address, options.family)?;
    }
    match (literal, service) {
        (Some(literal), PlannedService::Port(port)) => Ok(Plan::Numeric { literal, port }),
        (literal, service) => Ok(Plan::Ask {
            literal,
            node,
            service,
        }),
    }
}

pub(crate) fn plan_service(text: &str) -> Result<PlannedService<'_>, Reason> {
    match text {
        "" => return Err(Reason::EmptyService),
        _ if text.contains('\0') => return Err(Reason::EmbeddedNul("service")),
        _ => {}
    }
    match Service::parse(text) {
        Service::Port(port) => Ok(PlannedService::Port(port)),
        Service::OutOfRange => Err(Reason::PortOutOfRange),
        Service::Malformed => Err(Reason::MalformedService),
        Service::Name(_) if text.len() > SERVICE_MAX => {
            Err(Reason::ServiceTooLong { length: text.len() })
        }
        Service::Name(name) => Ok(PlannedService::Name(name)),
    }
}

fn check_family(address: IpAddr, family: Option<Family>) -> Result<(), Reason> {
    match (family, address) {
        (Some(Family::V4), IpAddr::V6(_)) => Err(Reason::WrongFamily {
            expected: "IPv4",
            found: "IPv6",
        }),
        (Some(Family::V6), IpAddr::V4(_)) => Err(Reason::WrongFamily {
            expected: "IPv6",
            found: "IPv4",
        }),
        _ => Ok(()),
    }
}

/// The wildcard addresses, in the order of libc's default policy table.
fn wildcards(port: u16, family: Option<Family>) -> impl Iterator<Item = NameResult> {
    let both: [(Family, IpAddr); 2] = [
        (Family::V4, Ipv4Addr::UNSPECIFIED.into()),
        (Family::V6, Ipv6Addr::UNSPECIFIED.into()),
    ];
    both.into_iter()
        .filter(move |(of, _)| family.is_none_or(|family| family == *of))
        .map(move |(_, address)| NameResult {
            addr: (address, port).into(),
            canonical_name: None,
        })
}

/// The socket address of a literal.
fn numeric(literal: &Literal, port: u16) -> Result<SocketAddr, Reason> {
    let scope_id = scope_id(literal)?;
    Ok(match literal.address {
        IpAddr::V4(address) => (address, port).into(),
        IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, scope_id).into(),
    })
}

/// The index of the interface that a literal's zone names, which must exist; 0 without a zone.
fn scope_id(literal: &Literal) -> Result<u32, Reason> {
    match &literal.zone {
        None => Ok(0),
        Some(Zone::Name(name)) => crate::sys::interface::index_of(name)
            .ok_or_else(|| Reason::NoSuchZone { zone: name.clone() }),
        Some(Zone::Index(index)) => crate::sys::interface::name_of(*index)
            .map(|_| *index)
            .ok_or_else(|| Reason::NoSuchZone {
                zone: index.to_string(),
            }),
    }
}

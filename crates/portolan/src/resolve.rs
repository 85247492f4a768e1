//! Names to addresses: the basic form. `rdma_getaddrinfo`'s hints and routes build on it.

use std::net::SocketAddr;

use portolan_addrinfo::names::{self, NameOptions, NameResult};
use portolan_addrinfo::route;
pub use portolan_addrinfo::{Endpoint, parse_endpoint};
use portolan_provider::{Cause, Error, Result, Step};

/// An address of a name, and the way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The address; for listening the local one, else the destination.
    pub addr: SocketAddr,
    /// The name's canonical form, on the first result.
    pub canonical_name: Option<String>,
    /// The local address that the routing table chooses for the destination; `None` for listening
    /// and where there is no route.
    pub source: Option<SocketAddr>,
}

/// Resolves `host:port` (`[ipv6%zone]:port`, `host`) to the addresses to connect to, in the order
/// to try them.
///
/// # Errors
/// The text is no endpoint (`InvalidArgument`), the host or service is not known
/// (`NameNotKnown`), or the name server failed for the moment (`NameTemporaryFailure`).
pub fn resolve(text: &str) -> Result<Vec<Resolved>> {
    let found = look_up(text, false)?;
    let with_source = |result: NameResult| Resolved {
        source: source_for(result.addr),
        addr: result.addr,
        canonical_name: result.canonical_name,
    };
    Ok(found.into_iter().map(with_source).collect())
}

/// Resolves `addr:port`, `name:port` or `:port` to the addresses to listen on.
///
/// # Errors
/// As for [`resolve`].
pub fn resolve_passive(text: &str) -> Result<Vec<Resolved>> {
    let found = look_up(text, true)?;
    let local = |result: NameResult| Resolved {
        addr: result.addr,
        canonical_name: result.canonical_name,
        source: None,
    };
    Ok(found.into_iter().map(local).collect())
}

fn look_up(text: &str, passive: bool) -> Result<Vec<NameResult>> {
    let failed = |cause: Cause| Error::new(Step::ResolveName, cause);
    let endpoint = parse_endpoint(text).map_err(|error| failed(error.into()))?;
    let options = NameOptions {
        passive,
        canonical_name: true,
        ..NameOptions::default()
    };
    names::resolve(endpoint.node(), endpoint.service(), options)
        .map_err(|error| failed(error.into()))
}

/// The source that routing chooses; the port is the connection manager's to choose.
fn source_for(destination: SocketAddr) -> Option<SocketAddr> {
    let query = route::Query {
        destination: destination.ip(),
        interface_index: crate::software::scope_of(destination),
        source: None,
    };
    let route = route::lookup(&query).ok()?;
    Some(SocketAddr::new(route.source, 0))
}

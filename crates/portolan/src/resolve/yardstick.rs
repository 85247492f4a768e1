//! Baselines for benchmarks of resolution: its system calls alone.
//!
//! ```
//! use portolan::resolve::yardstick::{getaddrinfo, route};
//!
//! assert!(getaddrinfo("localhost", "7471")? > 0);
//! route("127.0.0.1:7471".parse().unwrap())?;
//! # Ok::<(), portolan::Error>(())
//! ```

use std::net::SocketAddr;

use portolan_addrinfo::names::{NameOptions, count_by_libc};
use portolan_addrinfo::route;
use portolan_provider::{Error, Result, Step};

/// Calls getaddrinfo(3) with canonical names; returns the number of results.
///
/// # Errors
/// What it returned.
pub fn getaddrinfo(node: &str, service: &str) -> Result<usize> {
    let options = NameOptions {
        canonical_name: true,
        ..NameOptions::default()
    };
    Ok(count_by_libc(Some(node), Some(service), options)?)
}

/// Requests the route to an address from the kernel (RTM_GETROUTE), on a socket that the thread
/// keeps open.
///
/// # Errors
/// There is none.
pub fn route(destination: SocketAddr) -> Result<()> {
    let failed = |cause| Error::new(Step::ResolveRoute, cause);
    route::lookup(&destination.into()).map(drop).map_err(failed)
}

//! Resolves names to addresses with routes: rdma_getaddrinfo(3) for Rust.
//!
//! [`resolve()`] takes `host:port`; [`resolve_async`] is its non-blocking form. [`Request`]
//! supports all of rdma_getaddrinfo:
//!
//! ```
//! use portolan::resolve::{Family, Hints, Request};
//!
//! let request = Request::parse("127.0.0.1:7471")?.hints(Hints::new().family(Family::Inet));
//! for address in request.addresses()? {
//!     println!("{:?} from {:?}", address.dst_addr, address.src_addr);
//!     println!("{}", address.explain);
//! }
//! # Ok::<(), portolan::Error>(())
//! ```
//!
//! # Names that need no server, and slow servers
//!
//! The blocking calls ask libc's resolver in the caller's thread: they wait only for their own name, and cannot be
//! interrupted. The others ([`resolve_async`], [`Request::start`],
//! [`CmId::resolve_addrinfo`](crate::cm::CmId::resolve_addrinfo)) run up to eight lookups of the process at once. Further
//! ones, up to 16,384, wait in order.
//!
//! * Numeric addresses are resolved at once and never wait.
//! * Names in `/etc/hosts` (its first 64 KiB), and services without a host or with a numeric one, have threads of their
//!   own. So they do not wait while names of a slow server occupy the others.
//! * libc answers all names, in the order that its configuration says (nsswitch.conf(5)).
//! * A time limit runs from the call on, and includes the wait. A lookup beyond it fails with `EAI_AGAIN`; its thread is
//!   free again when libc returns, which takes as long as resolv.conf(5) permits (`timeout`, `attempts`).
//!
//! A program that looks up many names gives them time accordingly, looks up few at a time, or resolves in its own threads
//! ([`resolve()`]).

pub(crate) mod fabric;
mod future;
mod machine;
pub mod yardstick;

use std::net::SocketAddr;
use std::sync::Arc;
use std::vec::IntoIter;

pub use portolan_addrinfo::{
    AddrInfo, AddrInfoError, Decision, Eai, Endpoint, EndpointError, Explain, Family, Flags, Hints,
    PathData, Problem, QpType, get_addrinfo_with, parse_endpoint,
};
use portolan_provider::traits::Provider;
use portolan_provider::{Cause, Error, Result, Step};

pub use self::future::{Resolving, resolve_async};
pub use self::machine::Machine;

/// A name's address with its route, a result of [`resolve()`], which has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resolved {
    /// The local address for listening; otherwise the destination.
    pub addr: SocketAddr,
    /// The name's canonical form.
    pub canonical_name: Option<String>,
    /// The source address that the routing table selects, if an RDMA device has it; `None` for
    /// listening or without a route.
    pub source: Option<SocketAddr>,
    /// The decisions that led to this result.
    pub explain: Explain,
}

/// Resolves `host:port` (`[ipv6%zone]:port`, `host`) to addresses to connect to, in order of
/// preference.
///
/// ```
/// for found in portolan::resolve("127.0.0.1:7471")? {
///     println!("{} from {:?}: {}", found.addr, found.source, found.explain);
///     assert!(found.addr.ip().is_loopback());
/// }
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// The text is not an endpoint (`InvalidArgument`), the host or service is unknown
/// (`NameNotKnown`), or the name server failed temporarily (`NameTemporaryFailure`).
pub fn resolve(text: &str) -> Result<Vec<Resolved>> {
    Ok(Request::parse(text)?
        .addresses()?
        .filter_map(Resolved::active)
        .collect())
}

impl Resolved {
    fn active(info: AddrInfo) -> Option<Self> {
        Some(Self {
            addr: info.dst_addr?.inet()?,
            canonical_name: info.dst_canonname,
            source: info.src_addr.and_then(|address| address.inet()),
            explain: info.explain,
        })
    }
}

/// Resolves `addr:port`, `name:port` or `:port` to addresses to listen on. Without a port (`addr`, `name`) the addresses have
/// port 0, which selects a free port.
///
/// ```
/// use portolan::Listener;
/// use portolan::resolve::resolve_passive;
///
/// let found = resolve_passive("127.0.0.1:0")?;
/// let listener = Listener::bind_to(found[0].addr)?;
/// assert_ne!(listener.local_addr()?.port(), 0);
/// # Ok::<(), portolan::Error>(())
/// ```
///
/// # Errors
/// As for [`resolve`].
pub fn resolve_passive(text: &str) -> Result<Vec<Resolved>> {
    let passive = |info: AddrInfo| {
        Some(Resolved {
            addr: info.src_addr?.inet()?,
            canonical_name: info.src_canonname,
            source: None,
            explain: info.explain,
        })
    };
    let request = Request::parse(text)?.hints(Hints::new().passive());
    Ok(request.addresses()?.filter_map(passive).collect())
}

/// Finds the addresses of a node, a service or hints on the caller's thread (rdma_getaddrinfo(3)),
/// in order of preference. Returns at least one.
///
/// ```
/// use portolan::resolve::{Eai, get_addrinfo};
///
/// let found = get_addrinfo(Some("127.0.0.1"), Some("7471"), None)?;
/// let to = found[0].dst_addr.and_then(|address| address.inet());
/// assert_eq!(to, Some("127.0.0.1:7471".parse().unwrap()));
///
/// let error = get_addrinfo(Some("127.0.0.1"), Some("no-such-service"), None).unwrap_err();
/// assert_eq!(error.code(), Eai::NoName, "{error}");
/// # Ok::<(), portolan::resolve::AddrInfoError>(())
/// ```
///
/// # Errors
/// [`AddrInfoError`], with the manual's codes.
pub fn get_addrinfo(
    node: Option<&str>,
    service: Option<&str>,
    hints: Option<&Hints>,
) -> std::result::Result<Vec<AddrInfo>, AddrInfoError> {
    get_addrinfo_with(&Machine::new(), node, service, hints)
}

/// A resolution request. (Work to post is a [`connection::Request`](crate::connection::Request).)
///
/// ```
/// use portolan::resolve::{Family, Hints, Request};
///
/// let request = Request::new(Some("localhost"), Some("7471"));
/// let request = request.hints(Hints::new().family(Family::Inet));
/// for address in request.addresses()? {
///     println!("{:?}", address.dst_addr);
/// }
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Request {
    node: Option<String>,
    service: Option<String>,
    hints: Option<Hints>,
    provider: Option<Arc<dyn Provider>>,
}

impl Request {
    /// Creates a request for a host, a service or both; for neither, if hints give the addresses.
    pub fn new(node: Option<&str>, service: Option<&str>) -> Self {
        Self {
            node: node.map(Into::into),
            service: service.map(Into::into),
            ..Self::default()
        }
    }

    /// Parses `host:port` and the other forms of [`parse_endpoint`].
    ///
    /// # Errors
    /// The text is not an endpoint (`InvalidArgument`).
    pub fn parse(text: &str) -> Result<Self> {
        let failed = |cause: Cause| Error::new(Step::ResolveName, cause);
        let endpoint = parse_endpoint(text).map_err(|error| failed(error.into()))?;
        Ok(Self::new(endpoint.node(), endpoint.service()))
    }

    /// Sets the hints.
    #[must_use]
    pub fn hints(mut self, hints: Hints) -> Self {
        self.hints = Some(hints);
        self
    }

    /// Uses this provider's devices instead of the default ones.
    #[must_use]
    pub fn provider(mut self, provider: Arc<dyn Provider>) -> Self {
        self.provider = Some(provider);
        self
    }

    /// Resolves on the caller's thread.
    ///
    /// # Errors
    /// [`AddrInfoError`] as an [`Error`] of the step `ResolveName`.
    pub fn addresses(&self) -> Result<Addresses> {
        Ok(self.run()?)
    }

    /// Like [`Request::addresses`], with the original error and its manual code.
    ///
    /// # Errors
    /// [`AddrInfoError`].
    pub fn run(&self) -> std::result::Result<Addresses, AddrInfoError> {
        let machine = self.machine();
        let (node, service) = (self.node.as_deref(), self.service.as_deref());
        let found = get_addrinfo_with(&machine, node, service, self.hints.as_ref())?;
        Ok(Addresses {
            found: found.into_iter(),
        })
    }

    fn machine(&self) -> Machine {
        match &self.provider {
            Some(provider) => Machine::on(provider.clone()),
            None => Machine::new(),
        }
    }
}

/// The addresses found, in order of preference: the result of a [`Request`], which has an example.
#[derive(Clone, Debug)]
pub struct Addresses {
    found: IntoIter<AddrInfo>,
}

impl Iterator for Addresses {
    type Item = AddrInfo;

    fn next(&mut self) -> Option<AddrInfo> {
        self.found.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.found.size_hint()
    }
}

impl ExactSizeIterator for Addresses {}

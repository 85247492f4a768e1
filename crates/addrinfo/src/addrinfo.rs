//! What rdma_getaddrinfo(3) gives, and the call itself.

use portolan_provider::Address;
use portolan_wire::addr::PortSpace;

use crate::error::AddrInfoError;
use crate::explain::Explain;
use crate::hints::{Family, Flags, Hints, QpType};
use crate::lookups::{Lookups, System};
use crate::path::PathData;
use crate::plan::{self, Plan};

/// An address to connect to or to listen at, with what is needed to do so (`struct rdma_addrinfo`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddrInfo {
    /// [`Flags::PASSIVE`] if it is to listen at, [`Flags::SA`] if the subnet administrator gave it.
    pub flags: Flags,
    /// Family of the addresses.
    pub family: Family,
    /// Queue pair type.
    pub qp_type: QpType,
    /// Port space.
    pub port_space: PortSpace,
    /// The local address; `None` (`ai_src_len` 0) where none that is appropriate could be found.
    pub src_addr: Option<Address>,
    /// The destination with its port; `None` (`ai_dst_len` 0) for listening.
    pub dst_addr: Option<Address>,
    /// Canonical name of the source: the host's for listening, else the address as text.
    pub src_canonname: Option<String>,
    /// Canonical name of the destination.
    pub dst_canonname: Option<String>,
    /// Paths, where the transport needs them (InfiniBand) and there are some.
    pub route: Vec<PathData>,
    /// Data to go before the user's private data when connecting.
    pub connect: Vec<u8>,
    /// Why all this is so.
    pub explain: Explain,
}

/// Finds the addresses of a node, a service or hints, in the order to try them
/// (rdma_getaddrinfo(3)). There is at least one.
///
/// Asks in the caller's thread, for as long as the system's resolver takes. RDMA devices are not
/// known here: sources are those of the routing table. The library `portolan` knows its devices.
///
/// # Errors
/// [`AddrInfoError`]; its [`AddrInfoError::code`] is the page's.
pub fn get_addrinfo(
    node: Option<&str>,
    service: Option<&str>,
    hints: Option<&Hints>,
) -> Result<Vec<AddrInfo>, AddrInfoError> {
    get_addrinfo_with(&System, node, service, hints)
}

/// The same, with look-ups of the caller's.
///
/// # Errors
/// As for [`get_addrinfo`].
pub fn get_addrinfo_with(
    lookups: &(impl Lookups + ?Sized),
    node: Option<&str>,
    service: Option<&str>,
    hints: Option<&Hints>,
) -> Result<Vec<AddrInfo>, AddrInfoError> {
    let at_once = plan::without_look_ups(node, service, hints)
        .map_err(|problem| AddrInfoError::new(node, service, problem))?;
    if let Some(found) = at_once {
        return Ok(found);
    }
    let mut plan = Plan::new(node, service, hints)?;
    while let Some(question) = plan.question() {
        let answer = lookups.answer(question);
        plan.answer(answer);
    }
    plan.finish()
}

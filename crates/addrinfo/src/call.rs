//! The call of rdma_getaddrinfo(3) itself.

use crate::addrinfo::AddrInfo;
use crate::error::AddrInfoError;
use crate::hints::Hints;
use crate::lookups::{Lookups, System};
use crate::plan::{self, Plan};

/// Finds the addresses of a node, a service or hints, in the order to try them (rdma_getaddrinfo(3)). Returns at least
/// one.
///
/// Blocks the caller's thread for as long as the system's resolver takes. It does not consider RDMA devices: the
/// sources are those of the routing table. The library `portolan` also considers its devices.
///
/// # Errors
/// [`AddrInfoError`]; its [`AddrInfoError::code`] is the code of the man page.
pub fn get_addrinfo(
    node: Option<&str>,
    service: Option<&str>,
    hints: Option<&Hints>,
) -> Result<Vec<AddrInfo>, AddrInfoError> {
    get_addrinfo_with(&System, node, service, hints)
}

/// Like `get_addrinfo`, with the caller's own lookups.
///
/// # Errors
/// As for `get_addrinfo`.
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

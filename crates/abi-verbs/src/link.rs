//! Resolves the hardware address for a GID.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::net::IpAddr;
use std::sync::mpsc;
use std::time::Duration;

use portolan_addrinfo::neighbour::Resolver;
use portolan_addrinfo::route;
use portolan_provider::Cause;
use portolan_provider::address::gid_to_ip;
use rustix::io::Errno;

use crate::guard::Result;
use crate::layout::{AhAttr, Context};
use crate::query;

/// Time limit for a neighbour's answer.
const DEADLINE: Duration = Duration::from_secs(3);

/// The hardware address of the next hop to an address vector's destination; zeros within this machine.
///
/// # Errors
/// `EINVAL` for a source that is not in the GID table; `EHOSTUNREACH`, `ENETUNREACH`, `ETIMEDOUT`.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn resolve(context: *mut Context, attr: &AhAttr) -> Result<[u8; 6]> {
    let destination = gid_to_ip(attr.grh.dgid.into());
    if let Some(address) = of_group(destination) {
        return Ok(address);
    }
    let index = attr.grh.sgid_index.into();
    // SAFETY: the context is open.
    let source = unsafe { query::gid(context, attr.port_num.into(), index) };
    let source = source.map_err(|_| Errno::INVAL)?;
    let is_on_link = matches!(destination, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let query = route::Query::to(destination).with_source(gid_to_ip(source.gid.into()));
    let query = match is_on_link {
        true => query.on_interface(source.ndev_ifindex),
        false => query,
    };
    let route = route::lookup(&query).map_err(|cause| errno(&cause))?;
    if !route.needs_neighbour() {
        return Ok([0; 6]);
    }
    let (answer, answered) = mpsc::channel();
    let done = Box::new(move |outcome| {
        let _ = answer.send(outcome);
    });
    let asked = Resolver::shared()
        .and_then(|shared| shared.resolve(route.next_hop(), route.interface_index, DEADLINE, done));
    asked.map_err(|cause| errno(&cause))?;
    // The resolver answers within the deadline or stops.
    let found = answered.recv().map_err(|_| Errno::TIMEDOUT)?;
    let found = found.map_err(|cause| errno(&cause))?;
    Ok(found.ethernet().unwrap_or_default())
}

fn errno(cause: &Cause) -> Errno {
    Errno::from_raw_os_error(cause.errno())
}

/// The hardware address of a group, derived from its IP address (RFC 1112, RFC 2464).
fn of_group(ip: IpAddr) -> Option<[u8; 6]> {
    match ip {
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddr::V6(ip) if ip.is_multicast() => {
            let [.., a, b, c, d] = ip.octets();
            Some([0x33, 0x33, a, b, c, d])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_hardware_address_follows_from_its_number() {
        let of = |ip: &str| of_group(ip.parse().unwrap());
        assert_eq!(of("239.129.2.3"), Some([1, 0, 0x5e, 1, 2, 3]));
        assert_eq!(of("ff02::1:2"), Some([0x33, 0x33, 0, 1, 0, 2]));
        assert_eq!(of("10.0.0.1"), None);
    }
}

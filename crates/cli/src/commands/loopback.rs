//! The loopback interface: without it nothing within this host connects.

use std::net::{IpAddr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use portolan::Error;
use portolan::provider::Address;

use crate::output;

/// The name of the loopback interface, if there is one and it is down.
pub(super) fn that_is_down() -> Option<String> {
    // Each interface is there at least once, with its link-layer address.
    let mut entries = getifaddrs().ok()?;
    let loopback = entries.find(|entry| entry.flags.contains(InterfaceFlags::IFF_LOOPBACK))?;
    let is_up = loopback.flags.contains(InterfaceFlags::IFF_UP);
    (!is_up).then_some(loopback.interface_name)
}

/// That it is down, and what brings it up.
pub(super) fn advice(name: &str) -> String {
    format!("the loopback interface {name} is down; bring it up: ip link set {name} up")
}

/// Tells of an error, and of a reason that it does not have: the loopback interface is down.
pub(crate) fn complain(error: &anyhow::Error) {
    output::complain(&format_args!("{error:#}"));
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    if causes.any(is_within_this_host) {
        warn_if_down();
    }
}

/// Like [`complain`], for a listener's address, which can be bound even if it cannot be reached.
pub(super) fn warn_listener(local: SocketAddr) {
    if local.ip().to_canonical().is_loopback() {
        warn_if_down();
    }
}

fn warn_if_down() {
    if let Some(name) = that_is_down() {
        output::complain(&advice(&name));
    }
}

/// Whether one of the addresses is a loopback one, or both are the same.
fn is_within_this_host(error: &Error) -> bool {
    let ip = |address: Option<Address>| match address {
        Some(Address::Inet(address)) => Some(address.ip().to_canonical()),
        _ => None,
    };
    let (local, remote) = (ip(error.context.local), ip(error.context.remote));
    let is_loopback = |ip: Option<IpAddr>| ip.is_some_and(|ip| ip.is_loopback());
    is_loopback(local) || is_loopback(remote) || (local.is_some() && local == remote)
}

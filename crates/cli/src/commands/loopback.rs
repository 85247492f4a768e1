//! The loopback interface, which every connection within this host needs.

use std::net::{IpAddr, SocketAddr};

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use portolan::Error;
use portolan::provider::{self, Address};

use crate::output;

/// The name of the loopback interface, if it is down.
pub(super) fn that_is_down() -> Option<String> {
    // Each interface occurs at least once, with its link-layer address.
    let mut entries = getifaddrs().ok()?;
    let loopback = entries.find(|entry| entry.flags.contains(InterfaceFlags::IFF_LOOPBACK))?;
    let is_up = loopback.flags.contains(InterfaceFlags::IFF_UP);
    (!is_up).then_some(loopback.interface_name)
}

/// Says that it is down and how to enable it.
pub(super) fn advice(name: &str) -> String {
    format!("the loopback interface {name} is down; bring it up: ip link set {name} up")
}

/// Prints an error. Adds that the loopback interface is down, if that may be the reason.
pub(crate) fn complain(error: &anyhow::Error) {
    output::complain(&format_args!("{error:#}"));
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    if causes.any(is_within_this_host) {
        warn_if_down();
    }
}

/// Like [`complain`], for a listener's address, which can be bound even if it is unreachable: the whole of 127.0.0.0/8 can.
pub(super) fn warn_listener(local: SocketAddr) {
    let ip = local.ip().to_canonical();
    if !ip.is_loopback() {
        return;
    }
    warn_if_down();
    // The kernel's provider gives a loopback address to any of its devices.
    let chosen = provider::at(local).map(|chosen| chosen.provider);
    if chosen.is_ok_and(|chosen| chosen.name() == "software" && chosen.device_of(ip).is_err()) {
        output::complain(&format_args!(
            "no software device has {ip}, so no request arrives there; listen on an address that `portolan devices` lists"
        ));
    }
}

fn warn_if_down() {
    if let Some(name) = that_is_down() {
        output::complain(&advice(&name));
    }
}

/// Whether one of the addresses is a loopback address, or both are the same.
fn is_within_this_host(error: &Error) -> bool {
    let ip = |address: Option<Address>| match address {
        Some(Address::Inet(address)) => Some(address.ip().to_canonical()),
        _ => None,
    };
    let (local, remote) = (ip(error.context.local), ip(error.context.remote));
    let is_loopback = |ip: Option<IpAddr>| ip.is_some_and(|ip| ip.is_loopback());
    is_loopback(local) || is_loopback(remote) || (local.is_some() && local == remote)
}

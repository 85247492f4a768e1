//! The local ports for the check: those of the named device, or of all devices. Each GID uses the port that routing
//! selects.

use anyhow::{Result, anyhow};
use portolan::provider::{Choice, kernel_provider, pinned};
use portolan::reach::Reason;
use portolan::sa::{LinkLayer, umad};

use super::Port;
use super::target::Target;

/// The candidate ports, at least one.
///
/// # Errors
/// There is none, or the requested one does not exist.
pub(super) fn candidates(device: Option<&str>, port_num: u8) -> Result<Vec<Port>> {
    let (mut ports, mut refused) = (Vec::new(), Vec::new());
    let mut names = Vec::new();
    let mut add = |name: &str, port: Result<Port, Reason>| {
        names.push(name.to_owned());
        if device.is_some_and(|device| device != name) {
            return;
        }
        match port {
            Ok(port) => ports.push(port),
            Err(reason) => refused.push(anyhow!("{name}: {reason}")),
        }
    };
    // An InfiniBand port queries its administrator, whichever provider programs would use.
    for umad in umad::devices()? {
        let is_infiniband = umad
            .port()
            .is_ok_and(|port| port.link_layer == LinkLayer::InfiniBand);
        if is_infiniband && (port_num == 0 || port_num == umad.port_num) {
            add(&umad.device, Port::of_umad(&umad));
        }
    }
    let pinned = pinned()?.map(|(choice, _)| choice);
    let kernel = match pinned {
        Some(Choice::Kernel) => kernel_provider()?.devices()?,
        // A machine without kernel devices is fine.
        None => {
            let provider = kernel_provider().ok();
            provider
                .and_then(|kernel| kernel.devices().ok())
                .unwrap_or_default()
        }
        Some(Choice::Software) => Vec::new(),
    };
    for device in kernel {
        // InfiniBand ports are already in the list.
        let first = device.port_attr(port_num.max(1));
        if !first.is_ok_and(|attr| attr.link_layer == LinkLayer::InfiniBand) {
            add(device.name(), Port::of(&*device, port_num));
        }
    }
    if pinned != Some(Choice::Kernel) {
        // Do not start the provider for a query.
        for preview in portolan::software::preview()? {
            let port = match port_num {
                0 | 1 => Port::of_preview(&preview),
                _ => Err(Reason::InvalidArgument {
                    what: "port",
                    expected: "1, or 0",
                    found: port_num.to_string(),
                }),
            };
            add(&preview.name, port);
        }
    }
    match (ports.is_empty(), refused.into_iter().next(), device) {
        (false, _, _) => Ok(ports),
        (true, Some(error), _) => Err(error),
        (true, None, Some(device)) => {
            let names = names.join(", ");
            Err(anyhow!("there is no device {device}; there are: {names}"))
        }
        (true, None, None) => Err(anyhow!("there is no RDMA device")),
    }
}

/// The port from which a GID is checked.
pub(super) fn choose<'a>(ports: &'a [Port], target: &Target) -> &'a Port {
    let of_zone = |port: &&Port| target.interface_index.is_none_or(|index| port.is_on(index));
    let mut fitting = ports.iter().filter(of_zone);
    let leading = fitting.clone().find(|port| port.leads_to(target.gid));
    let last = || {
        ports
            .last()
            .unwrap_or_else(|| unreachable!("there is at least one"))
    };
    // If no port has a route there, the last one reports that; the first is usually the loopback device.
    leading.or_else(|| fitting.next_back()).unwrap_or_else(last)
}

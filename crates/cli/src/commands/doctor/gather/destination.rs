//! The routes to a destination that a connection of this process would use.

use std::time::Duration;

use portolan::provider::{Choice, kernel_provider};
use portolan::resolve::{AddrInfo, Decision, Request};
use portolan::software::DevicePreview;

use super::super::facts::{Destination, Way, WayFault};

pub(super) fn look(
    text: &str,
    provider: &Result<Choice, String>,
    software: &[DevicePreview],
    timeout: Duration,
) -> Destination {
    Destination {
        text: text.to_owned(),
        ways: ways(text, provider, software, timeout),
    }
}

fn ways(
    text: &str,
    provider: &Result<Choice, String>,
    software: &[DevicePreview],
    timeout: Duration,
) -> Result<Vec<Way>, String> {
    let mut request = Request::parse(text).map_err(|error| error.cause.to_string())?;
    // Do not start the software provider for a query.
    if let Ok(Choice::Kernel) = provider {
        let kernel = kernel_provider().map_err(|error| error.to_string())?;
        request = request.provider(kernel);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let resolving = request.start(timeout).map_err(|error| error.to_string())?;
    let found = runtime
        .block_on(resolving)
        .map_err(|error| error.to_string())?;
    Ok(found.filter_map(|info| way(&info, software)).collect())
}

fn way(info: &AddrInfo, software: &[DevicePreview]) -> Option<Way> {
    let mut is_on_this_host = false;
    let mut way = Way {
        address: info.dst_addr?.inet()?,
        source: info.src_addr.and_then(|source| source.inet()),
        device: None,
        interface_index: None,
        fault: None,
        reasons: Vec::new(),
    };
    for decision in info.explain.decisions().iter() {
        match decision {
            Decision::Device(choice) => {
                way.device = Some((choice.name.clone(), choice.gid_index));
            }
            Decision::Route(route) => {
                way.interface_index = Some(route.interface_index);
                is_on_this_host = route.is_on_this_machine();
            }
            Decision::NoRoute(cause) => way.fault = Some(WayFault::NoRoute(cause.to_string())),
            Decision::SourceLeftOut { source, .. } | Decision::NoDevice { source, .. } => {
                way.fault = Some(WayFault::NoDevice(*source));
            }
            _ => {}
        }
        way.reasons.push(decision.to_string());
    }
    // The source may be an address of a device when the destination is not: 127.0.0.1 for 127.0.1.1.
    let source = way.device.as_ref().map(|(name, _)| name);
    let goes_by_software = software.iter().any(|device| Some(&device.name) == source);
    let ip = way.address.ip().to_canonical();
    let is_of_device = software.iter().any(|device| device.gids.contains(&ip));
    if way.fault.is_none() && is_on_this_host && goes_by_software && !is_of_device {
        way.fault = Some(WayFault::NotOfADevice);
    }
    Some(way)
}

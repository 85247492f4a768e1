//! Selects a device by name: `mlx5_0` on a machine with several devices, or `sw_lo` on one without RDMA hardware.
//!
//! `cargo run -p portolan --example device_by_name` lists the devices and uses the software loopback device;
//! `device_by_name NAME` uses another one. The listener and the connector bind to the device's own address, so that no
//! other device is selected.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use portolan::provider::traits::{Device, Provider};
use portolan::provider::{kernel_provider, software_provider};
use portolan::{Connector, Error, Listener, Options};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

type Found = (Arc<dyn Provider>, Arc<dyn Device>);

/// All devices of this machine with their providers, hardware first.
fn devices() -> Result<Vec<Found>, Error> {
    // A machine without RDMA hardware has no kernel provider.
    let kernel = kernel_provider().ok();
    let mut found = Vec::new();
    for provider in kernel.into_iter().chain([software_provider()?]) {
        for device in provider.devices()? {
            found.push((provider.clone(), device));
        }
    }
    Ok(found)
}

/// An address of the device. Link-local addresses need a scope, so they come last.
fn address_of(device: &Arc<dyn Device>) -> Result<Option<IpAddr>, Error> {
    let gids = device.gids(1)?;
    let addresses = gids.iter().map(|entry| entry.gid.to_ip());
    let is_local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    Ok(addresses.min_by_key(is_local))
}

fn list() -> Result<(), Error> {
    for (provider, device) in devices()? {
        let (port, limits) = (device.port_attr(1)?, device.attr()?);
        println!(
            "{} of {}: {}, MTU {:?}, {} queue pairs",
            device.name(),
            provider.name(),
            if port.active { "active" } else { "down" },
            port.active_mtu,
            limits.max_qp
        );
    }
    Ok(())
}

/// Sends a message over the device. Returns the names of the devices at both ends.
fn talk(name: &str) -> Outcome<[String; 2]> {
    let all = devices()?;
    let wanted = all.iter().find(|(_, device)| device.name() == name);
    let (provider, device) = wanted.ok_or_else(|| format!("there is no device {name}"))?;
    let ip = address_of(device)?.ok_or_else(|| format!("{name} has no address"))?;
    let at = SocketAddr::new(ip, 0);
    let listener = Listener::bind_on(provider.clone(), at)?;
    let address = listener.local_addr()?;
    let options = Options::default().timeout(Duration::from_secs(20));
    let connector = Connector::new().provider(provider.clone()).source(at);
    let connector = connector.options(options);
    let client = thread::spawn(move || connector.connect_to(address));
    let server = listener.accept()?.accept()?;
    let client = client.join().expect("it does not panic")?;
    client.send(b"ahoy".to_vec())?.wait()?;
    assert_eq!(&server.receive()?[..], b"ahoy");
    let used = [&client, &server].map(|end| end.id().device());
    let [one, other] = used;
    Ok([one?.name().to_owned(), other?.name().to_owned()])
}

fn main() -> Outcome<()> {
    let name = std::env::args().nth(1);
    if name.is_none() {
        list()?;
    }
    let [one, other] = talk(name.as_deref().unwrap_or("sw_lo"))?;
    println!("a message went from {one} to {other}");
    Ok(())
}

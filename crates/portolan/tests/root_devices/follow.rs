//! Devices, ports and GID tables follow interfaces, links and addresses.

use std::sync::Arc;

use portolan::provider::traits::{Device, Provider};
use portolan::provider::verbs::{AsyncEvent, Mtu};
use portolan::software::SoftwareProvider;

use crate::harness::*;
use crate::support::ip_batch;
use crate::{device, on_interfaces};

const PORT: u8 = 1;

/// Waits for an asynchronous event and skips others.
#[track_caller]
fn await_event(device: &Arc<dyn Device>, wanted: AsyncEvent) {
    eventually(&format!("{wanted:?}"), || {
        device.take_async_event().unwrap() == Some(wanted)
    });
}

/// The used entries of IPv4 addresses in the GID table.
fn gids(device: &Arc<dyn Device>) -> Vec<(u32, String)> {
    let entries = device.gids(PORT).unwrap().into_iter();
    let v4 = entries.filter(|entry| entry.gid.to_ip().is_ipv4());
    v4.map(|entry| (entry.index, entry.gid.to_ip().to_string()))
        .collect()
}

fn names(provider: &SoftwareProvider) -> Vec<String> {
    let devices = provider.devices().unwrap();
    devices
        .iter()
        .map(|device| device.name().to_owned())
        .collect()
}

#[test]
fn an_interface_has_a_device_from_its_first_address_to_its_end() {
    on_interfaces(
        "link add tnew type veth peer name pnew\nlink set tnew up\n",
        || {
            let provider = own_provider();
            assert_eq!(names(&provider), ["sw_lo"], "no address, no device");
            ip_batch("addr add 10.9.1.1/24 dev tnew");
            eventually("a device", || names(&provider) == ["sw_lo", "sw_tnew"]);
            let device = device(&provider, "10.9.1.1");
            ip_batch("addr del 10.9.1.1/24 dev tnew");
            await_event(&device, AsyncEvent::GidChange(PORT));
            assert_eq!(
                names(&provider),
                ["sw_lo", "sw_tnew"],
                "the device ended with its address"
            );
            assert_eq!(gids(&device), []);
            ip_batch("link del tnew");
            await_event(&device, AsyncEvent::DeviceFatal);
            assert_eq!(names(&provider), ["sw_lo"]);
        },
    );
}

#[test]
fn an_address_takes_and_frees_a_gid_table_entry_without_moving_others() {
    const INTERFACES: &str = "link add tgids type veth peer name pgids\n\
        addr add 10.9.1.1/24 dev tgids\n\
        addr add 10.9.1.2/24 dev tgids\n\
        addr add 10.9.1.3/24 dev tgids\n";
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let device = device(&provider, "10.9.1.3");
        let before = gids(&device);
        assert_eq!(before.len(), 3);
        ip_batch("addr del 10.9.1.2/24 dev tgids");
        await_event(&device, AsyncEvent::GidChange(PORT));
        assert_eq!(gids(&device), [before[0].clone(), before[2].clone()]);
        ip_batch("addr add 10.9.1.9/24 dev tgids");
        await_event(&device, AsyncEvent::GidChange(PORT));
        let ninth = (before[1].0, "10.9.1.9".to_owned());
        assert_eq!(gids(&device), [before[0].clone(), ninth, before[2].clone()]);
    });
}

#[test]
fn a_link_that_goes_down_and_up_makes_the_port_inactive_and_active_again() {
    const INTERFACES: &str = "link add tdown type veth peer name pdown\n\
        addr add 10.9.1.1/24 dev tdown\n\
        link set tdown up\n\
    link set pdown up\n";
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let device = device(&provider, "10.9.1.1");
        // The kernel reports a new link's carrier up to a second late.
        eventually("the link", || device.port_attr(PORT).unwrap().active);
        ip_batch("link set tdown down");
        await_event(&device, AsyncEvent::PortErr(PORT));
        assert!(!device.port_attr(PORT).unwrap().active);
        ip_batch("link set tdown up");
        await_event(&device, AsyncEvent::PortActive(PORT));
        assert!(device.port_attr(PORT).unwrap().active);
    });
}

#[test]
fn a_device_stays_the_same_when_its_interface_is_renamed_or_has_another_mtu() {
    const INTERFACES: &str = "link add told type veth peer name pold\n\
        addr add 10.9.1.1/24 dev told\n";
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let device = device(&provider, "10.9.1.1");
        ip_batch("link set told name trenamed\nlink set trenamed mtu 5000");
        eventually("the MTU", || {
            device.port_attr(PORT).unwrap().active_mtu == Mtu::Mtu4096
        });
        assert_eq!(device.name(), "sw_told");
        // Another interface with the old name is another device.
        ip_batch("link add told type veth peer name pnext\naddr add 10.9.2.1/24 dev told");
        let other = crate::device(&provider, "10.9.2.1");
        assert_ne!(other.index(), device.index());
        assert_eq!(other.name(), format!("sw_told_{}", other.index()));
        assert!(device.alloc_pd().is_ok() && other.alloc_pd().is_ok());
    });
}

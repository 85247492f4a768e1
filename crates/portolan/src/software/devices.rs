//! Finds the devices of addresses, and reports changes of devices and neighbours to the engine.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use portolan_addrinfo::LinkAddress;
use portolan_addrinfo::neighbour::{Resolver, Watch};
use portolan_cm::{BoundDevice, Neighbour};
use portolan_provider::Cause;
use portolan_provider::traits::Device;
use portolan_roce::io::{DeviceChange, SoftDevice};

use super::core::Core;

impl Core {
    /// The device of a local address. An unknown address may be new, so the interfaces are read before it is reported
    /// missing.
    pub(super) fn find_device(&self, ip: IpAddr, interface: u32) -> Option<BoundDevice> {
        self.bound_device(ip, interface).or_else(|| {
            // If the interfaces cannot be read, use the last known state.
            let _ = self.stack().refresh();
            self.bound_device(ip, interface)
        })
    }

    /// Why there is no device for a local address.
    pub(super) fn no_device(&self, ip: IpAddr) -> Cause {
        let unknown = || format!("no interface has the address {ip}");
        let why = self.stack().why_left_out(ip).unwrap_or_else(unknown);
        Cause::NoDevice { why }
    }

    /// Whether a device still exists.
    ///
    /// Under the engine's lock this tells whether an id that is bound to the device now will be notified of its
    /// removal: the engine learns of the removal after the device has left the list.
    pub(super) fn is_present(&self, device: &BoundDevice) -> bool {
        self.stack().has_device(device.device_index)
    }

    /// Reports a change of a device to the engine.
    pub(super) fn device_changed(&self, device: &SoftDevice, change: DeviceChange) {
        let index = device.index();
        // Fails only before the first id can exist.
        let _ = self.run(|cm, now| {
            match change {
                DeviceChange::Added => {}
                DeviceChange::HardwareAddress => cm.hardware_address_changed(index),
                DeviceChange::Removed => cm.device_removed(now, index),
            }
            Ok(())
        });
    }

    /// Watches the next hop of an id while the result exists. Without a watch the id only misses hints, so failures
    /// are ignored.
    pub(super) fn watch(&self, neighbour: &Neighbour, known: LinkAddress) -> Option<Arc<Watch>> {
        let (hop, interface) = (neighbour.address, neighbour.interface_index);
        let mut shared = self.watches.lock();
        if let Some(watch) = shared.get(&(interface, hop)).and_then(Weak::upgrade) {
            return Some(watch);
        }
        let core = self.downgrade();
        let changed = move |address, interface_index, link_address: LinkAddress| {
            let (Some(core), Some(link_address)) = (core.upgrade(), link_address.ethernet()) else {
                return;
            };
            let neighbour = Neighbour {
                interface_index,
                address,
                link_address,
            };
            let _ = core.run(|cm, _| {
                cm.neighbour_changed(&neighbour);
                Ok(())
            });
        };
        let watch = Resolver::shared()
            .and_then(|resolver| resolver.watch(hop, interface, known, Arc::new(changed)))
            .inspect_err(|cause| tracing::debug!(%cause, %hop, "next hop not watched"))
            .ok()?;
        let watch = Arc::new(watch);
        // Remove the watches of destroyed ids from time to time.
        if shared.len().is_power_of_two() {
            shared.retain(|_, watch| watch.strong_count() > 0);
        }
        shared.insert((interface, hop), Arc::downgrade(&watch));
        Some(watch)
    }
}

//! Devices that come, change and go, and neighbours that change: found for addresses, and told to the
//! engine.

use std::net::IpAddr;
use std::sync::{Arc, Weak};

use portolan_addrinfo::LinkAddress;
use portolan_addrinfo::neighbour::{Resolver, Watch};
use portolan_cm::{BoundDevice, Neighbour};
use portolan_provider::traits::Device;
use portolan_roce::io::{DeviceChange, SoftDevice};

use super::core::Core;

impl Core {
    /// The device of a local address. An address that is not known may have come this very moment:
    /// the interfaces are looked at before it is said to be missing.
    pub(super) fn find_device(&self, ip: IpAddr, interface: u32) -> Option<BoundDevice> {
        self.bound_device(ip, interface).or_else(|| {
            // If it cannot be read, the last known state counts.
            let _ = self.stack().refresh();
            self.bound_device(ip, interface)
        })
    }

    /// Whether a device is still there. Asked under the engine's lock it tells whether an id that is
    /// bound to it now will hear of its end: the engine learns of it after the device has left the list.
    pub(super) fn is_present(&self, device: &BoundDevice) -> bool {
        self.stack().has_device(device.device_index)
    }

    /// Tells the engine what befell a device.
    pub(super) fn device_changed(&self, device: &SoftDevice, change: DeviceChange) {
        let index = device.index();
        // It fails only before the first id can exist.
        let _ = self.run(|cm, now| {
            match change {
                DeviceChange::Added => {}
                DeviceChange::HardwareAddress => cm.hardware_address_changed(index),
                DeviceChange::Removed => cm.device_removed(now, index),
            }
            Ok(())
        });
    }

    /// Watches the next hop of an id from now on, for as long as the result lives. What cannot be
    /// watched is done without: it is for a hint.
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
        // Those of ids that are gone go now and then.
        if shared.len().is_power_of_two() {
            shared.retain(|_, watch| watch.strong_count() > 0);
        }
        shared.insert((interface, hop), Arc::downgrade(&watch));
        Some(watch)
    }
}

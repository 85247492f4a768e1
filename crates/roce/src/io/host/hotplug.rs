//! Adds, updates and removes devices as the machine's network interfaces change.
//!
//! * An interface with an address gets a device. The device exists as long as the interface, even if the addresses,
//!   name, MTU or hardware address change.
//! * An address has a slot of the GID table while the interface has the address.
//! * When the interface is removed, so is the device. Its queue pairs fail, and no object can be created or posted to
//!   any more. Existing objects stay valid until they are destroyed.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use portolan_provider::Result;
use portolan_provider::verbs::AsyncEvent;

use crate::io::host::Host;
use crate::io::host::device::{DeviceCore, PORT};
use crate::io::host::queue_pair::QpCore;
use crate::io::net::interfaces::{self, Interface};

/// A change of a device ([`Gsi::device_changed`](crate::io::Gsi::device_changed)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// The device is new.
    Added,
    /// The hardware address of its interface changed.
    HardwareAddress,
    /// Its interface is gone.
    Removed,
}

/// Changes of devices, in the order in which they are reported.
pub(crate) type Changes = Vec<(Arc<DeviceCore>, DeviceChange)>;

impl Host {
    /// Updates the devices from the current interfaces.
    ///
    /// Interface indexes in `gone` were removed since the last call. An interface that has such an index is a new
    /// one.
    ///
    /// # Errors
    /// `Os` if the system does not list the interfaces. Nothing is changed then.
    pub(crate) fn follow_interfaces(&self, gone: &BTreeSet<u32>) -> Result<Changes> {
        let interfaces = interfaces::list()?;
        let mut changes = Changes::new();
        let mut kept = Vec::new();
        let removed = {
            let mut devices = self.devices.write();
            let mut old = std::mem::take(&mut *devices);
            for interface in &interfaces {
                let is_of = |device: &Arc<DeviceCore>| device.interface() == interface.index;
                let known = old.iter().position(is_of);
                match known.filter(|_| !gone.contains(&interface.index)) {
                    Some(at) => {
                        let device = old.remove(at);
                        kept.push((Arc::clone(&device), interface));
                        devices.push(device);
                    }
                    None => {
                        let new = self.new_device(interface, &devices);
                        changes.extend(new.clone().map(|device| (device, DeviceChange::Added)));
                        devices.extend(new);
                    }
                }
            }
            old
        };
        for (device, interface) in kept {
            if self.update_device(&device, interface) {
                changes.push((device, DeviceChange::HardwareAddress));
            }
        }
        for device in removed {
            self.fail_device(&device);
            changes.insert(0, (device, DeviceChange::Removed));
        }
        Ok(changes)
    }

    /// Creates a device for an interface that has an address and room for the smallest packet.
    fn new_device(
        &self,
        interface: &Interface,
        others: &[Arc<DeviceCore>],
    ) -> Option<Arc<DeviceCore>> {
        if interface.addresses.is_empty() {
            return None;
        }
        let device = DeviceCore::new(interface, others, self.config.limits.max_async_events)?;
        tracing::debug!(device = device.name(), "device added");
        Some(device)
    }

    /// Updates a device from its interface. Returns whether the hardware address changed.
    fn update_device(&self, core: &DeviceCore, interface: &Interface) -> bool {
        let updated = core.update(interface);
        if updated.gids {
            self.raise(core, AsyncEvent::GidChange(PORT));
        }
        match updated.active {
            Some(true) => self.raise(core, AsyncEvent::PortActive(PORT)),
            Some(false) => self.raise(core, AsyncEvent::PortErr(PORT)),
            None => {}
        }
        updated.hardware_address
    }

    /// Removes a device whose interface is gone or that failed. Flushes its work and notifies the listeners to its
    /// events.
    pub(crate) fn fail_device(&self, core: &Arc<DeviceCore>) {
        tracing::debug!(device = core.name(), "device removed");
        // Mark it first: a queue pair that is being created is either found below or sees the mark.
        core.mark_removed();
        for qp in self.qps.all() {
            if !Arc::ptr_eq(&qp.device, core) {
                continue;
            }
            // A queue pair that panics here must not keep the others from being failed.
            let failed = catch_unwind(AssertUnwindSafe(|| self.fail_queue_pair(&qp)));
            if failed.is_err() {
                tracing::error!(qpn = %qp.qpn, "panic while failing a queue pair: its owner may get no event");
            }
        }
        self.raise(core, AsyncEvent::DeviceFatal);
    }

    fn fail_queue_pair(&self, qp: &QpCore) {
        let mut state = qp.lock();
        if !state.closed && !std::mem::replace(&mut state.device_removed, true) {
            state.engine.fail();
            let now = self.clock.now();
            self.settle(qp, &mut state, now);
        }
    }

    fn raise(&self, core: &DeviceCore, event: AsyncEvent) {
        if !core.push_async_event(event) {
            self.monitor.counters.async_overflows.up();
        }
    }
}

//! Devices come, change and go with the machine's network interfaces.
//!
//! * An interface that has an address gets a device. The device stays while the interface does, with
//!   whatever addresses, name, MTU and hardware address that has meanwhile.
//! * An address is a slot of the GID table for as long as the interface has it.
//! * When the interface is gone the device is, too: its queue pairs fail, and nothing can be made or
//!   posted on it any more. What exists stays valid until it is destroyed.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use portolan_provider::Result;
use portolan_provider::verbs::AsyncEvent;

use crate::io::host::Host;
use crate::io::host::device::{DeviceCore, PORT};
use crate::io::host::queue_pair::QpCore;
use crate::io::net::interfaces::{self, Interface};

/// What befell a device ([`Gsi::device_changed`](crate::io::Gsi::device_changed)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// It is new.
    Added,
    /// Its interface has another hardware address.
    HardwareAddress,
    /// Its interface is gone.
    Removed,
}

/// Changes of devices, in the order in which they are reported.
pub(crate) type Changes = Vec<(Arc<DeviceCore>, DeviceChange)>;

impl Host {
    /// Makes the devices what the interfaces are now. Interfaces in `gone` went away since the last
    /// time: one that has such a number is another one.
    ///
    /// # Errors
    /// `Os` if the system does not tell; nothing has changed then.
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

    /// A device for an interface that has an address and room for the smallest packet.
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

    /// Takes over an interface's state; whether it has another hardware address.
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

    /// Ends a device whose interface is gone or that failed itself. Work is flushed, and listeners to its events
    /// are notified.
    pub(crate) fn fail_device(&self, core: &Arc<DeviceCore>) {
        tracing::debug!(device = core.name(), "device removed");
        // First, so that a queue pair that is being made is either found below or sees it.
        core.mark_removed();
        for qp in self.qps.all() {
            if !Arc::ptr_eq(&qp.device, core) {
                continue;
            }
            // One that makes this thread panic must not keep the others from hearing.
            let failed = catch_unwind(AssertUnwindSafe(|| self.fail_queue_pair(&qp)));
            if failed.is_err() {
                tracing::error!(qpn = %qp.qpn, "a panic: the queue pair's owner may not be told that it failed");
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

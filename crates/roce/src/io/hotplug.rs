//! Devices come, change and go with the machine's network interfaces.
//!
//! * An interface that has an address gets a device. The device stays while the interface does, with
//!   whatever addresses, name, MTU and hardware address that has meanwhile.
//! * An address is a slot of the GID table for as long as the interface has it.
//! * When the interface is gone the device is, too: its queue pairs fail, and nothing can be made or
//!   posted on it any more. What exists stays valid until it is destroyed.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use portolan_provider::verbs::AsyncEvent;
use portolan_provider::{Cause, Error, Result, Step};

use super::device::{DeviceCore, SoftDevice};
use super::interfaces::{self, Interface};
use super::shared::Shared;

/// What befell a device ([`Gsi::device_changed`](super::Gsi::device_changed)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// It is new.
    Added,
    /// Its interface has another hardware address.
    HardwareAddress,
    /// Its interface is gone.
    Removed,
}

/// Changes of devices, in the order in which they are told.
pub(super) type Changes = Vec<(Arc<SoftDevice>, DeviceChange)>;

impl Shared {
    /// Makes the devices what the interfaces are now. Interfaces in `gone` went away since the last
    /// time: one that has such a number is another one.
    ///
    /// # Errors
    /// `Os` if the system does not tell; nothing has changed then.
    pub(super) fn follow_interfaces(self: &Arc<Self>, gone: &BTreeSet<u32>) -> Result<Changes> {
        let interfaces = interfaces::list()?;
        let mut changes = Changes::new();
        let mut kept = Vec::new();
        let removed = {
            let mut devices = self.devices.write().unwrap_or_else(PoisonError::into_inner);
            let mut old = std::mem::take(&mut *devices);
            for interface in &interfaces {
                let is_of = |device: &Arc<SoftDevice>| device.core().interface() == interface.index;
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
            if self.update_device(device.core(), interface) {
                changes.push((device, DeviceChange::HardwareAddress));
            }
        }
        for device in removed {
            self.fail_device(device.core());
            changes.insert(0, (device, DeviceChange::Removed));
        }
        Ok(changes)
    }

    /// A device for an interface that has an address and room for the smallest packet.
    fn new_device(
        self: &Arc<Self>,
        interface: &Interface,
        others: &[Arc<SoftDevice>],
    ) -> Option<Arc<SoftDevice>> {
        if interface.addresses.is_empty() {
            return None;
        }
        let device = SoftDevice::new(interface, others, Arc::clone(self))?;
        tracing::debug!(device = device.core().name(), "device added");
        Some(Arc::new(device))
    }

    /// Takes over an interface's state; whether it has another hardware address.
    fn update_device(&self, core: &DeviceCore, interface: &Interface) -> bool {
        let updated = core.update(interface);
        if updated.gids {
            self.raise(core, AsyncEvent::GidChange(super::device::PORT));
        }
        match updated.active {
            Some(true) => self.raise(core, AsyncEvent::PortActive(super::device::PORT)),
            Some(false) => self.raise(core, AsyncEvent::PortErr(super::device::PORT)),
            None => {}
        }
        updated.hardware_address
    }

    /// Ends a device whose interface is gone: work is flushed, and whoever listens to its events is
    /// told.
    fn fail_device(&self, core: &Arc<DeviceCore>) {
        tracing::debug!(device = core.name(), "device removed");
        // First, so that a queue pair that is being made is either found below or sees it.
        core.mark_removed();
        for qp in self.qps.all() {
            if !Arc::ptr_eq(&qp.device, core) {
                continue;
            }
            let mut state = qp.lock();
            if !state.closed && !std::mem::replace(&mut state.device_removed, true) {
                state.engine.fail();
                let now = self.clock.now();
                self.settle(&qp, &mut state, now);
            }
        }
        self.raise(core, AsyncEvent::DeviceFatal);
    }

    fn raise(&self, core: &DeviceCore, event: AsyncEvent) {
        if !core.push_async_event(event) {
            self.monitor.counters.async_overflows.up();
        }
    }
}

/// The error of an operation on a device that is gone.
pub(super) fn removed(step: Step, device: &DeviceCore) -> Error {
    Error::new(step, Cause::DeviceRemoved).on(device.name(), None)
}

/// Readings of the interfaces that callers have asked for and wait for.
#[derive(Debug, Default)]
pub(super) struct Readings {
    counts: Mutex<Counts>,
    done: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    asked: u64,
    done: u64,
}

impl Readings {
    /// Notes that a reading is wanted; which.
    pub(super) fn ask(&self) -> u64 {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.asked += 1;
        counts.asked
    }

    /// Whether a reading is wanted that has not been made.
    pub(super) fn wanted(&self) -> Option<u64> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        (counts.asked > counts.done).then_some(counts.asked)
    }

    /// Tells that a reading was made that began after `number` was asked for.
    pub(super) fn finish(&self, number: u64) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.done = counts.done.max(number);
        self.done.notify_all();
    }

    /// Waits for a reading.
    ///
    /// # Errors
    /// `TimedOut`.
    pub(super) fn wait(&self, number: u64, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        while counts.done < number {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let (after_ms, retries) = (timeout.as_millis() as u64, 0);
                let cause = Cause::TimedOut { after_ms, retries };
                return Err(Error::new(Step::OpenDevice, cause));
            }
            let waited = self.done.wait_timeout(counts, left);
            counts = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_serves_all_who_asked_before_it_began_and_none_who_asked_later() {
        let readings = Readings::default();
        assert_eq!(readings.wanted(), None);
        let first = readings.ask();
        let began = readings.wanted().unwrap();
        let later = readings.ask();
        readings.finish(began);
        readings.wait(first, Duration::ZERO).unwrap();
        let waited = readings.wait(later, Duration::from_millis(1));
        assert!(matches!(waited.unwrap_err().cause, Cause::TimedOut { .. }));
        assert_eq!(readings.wanted(), Some(later));
        readings.finish(later);
        readings.wait(later, Duration::ZERO).unwrap();
        assert_eq!(readings.wanted(), None);
    }
}

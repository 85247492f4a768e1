//! Errors that several objects have alike.

use portolan_provider::{Cause, Error, Step};

use crate::io::host::device::DeviceCore;

/// The error for an object of another device or stack.
pub(crate) fn foreign(step: Step, what: &'static str) -> Error {
    Error::new(step, Cause::NoSuchObject(what))
}

/// The error of an operation on a device that is gone.
pub(crate) fn removed(step: Step, device: &DeviceCore) -> Error {
    Error::new(step, Cause::DeviceRemoved).on(device.name(), None)
}

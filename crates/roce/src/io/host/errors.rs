//! Errors that several objects share.

use portolan_provider::{Cause, Error, Step};

use crate::io::host::device::DeviceCore;

/// The error for an object that belongs to another device or stack.
pub(crate) fn foreign(step: Step, what: &'static str) -> Error {
    Error::new(step, Cause::NoSuchObject(what))
}

/// The error for an operation on a removed device.
#[cold]
pub(crate) fn removed(step: Step, device: &DeviceCore) -> Error {
    Error::new(step, Cause::DeviceRemoved).on(device.name(), None)
}

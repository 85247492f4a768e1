//! Address handles: resolved paths to hosts and groups.

use std::any::Any;
use std::sync::Arc;

use portolan_provider::verbs::{Ah, AhAttr};
use portolan_provider::{Result, Step};

use crate::io::host::Host;
use crate::io::host::device::DeviceCore;
use crate::io::host::errors::foreign;
use crate::io::host::gauge::Permit;
use crate::io::net::path::Path;

/// An address handle.
#[derive(Debug)]
pub struct SoftAh {
    attr: AhAttr,
    path: Path,
    /// The device whose GID table contains the source.
    device: Arc<DeviceCore>,
    _permit: Permit,
}

impl SoftAh {
    pub(crate) fn new(host: &Host, device: &Arc<DeviceCore>, attr: &AhAttr) -> Result<Self> {
        let step = Step::CreateAh;
        device.check_port(step, attr.port_num)?;
        let permit = host.gauges.ahs.take(step)?;
        Ok(Self {
            attr: *attr,
            path: device.path_to_any(step, attr, host.port())?,
            device: Arc::clone(device),
            _permit: permit,
        })
    }

    /// The path of an address handle of `device`.
    pub(crate) fn path_of(ah: &dyn Ah, device: &Arc<DeviceCore>) -> Result<Path> {
        let ah = ah.as_any().downcast_ref::<Self>();
        let ah = ah.filter(|ah| Arc::ptr_eq(&ah.device, device));
        ah.map(|ah| ah.path)
            .ok_or_else(|| foreign(Step::PostSend, "address handle of this device"))
    }
}

impl portolan_provider::sealed::Sealed for SoftAh {}

impl Ah for SoftAh {
    fn attr(&self) -> AhAttr {
        self.attr
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

//! XRC domains and their verbs.

use std::any::Any;
use std::sync::Arc;

use portolan_provider::traits::{Qp, Xrcd};
use portolan_provider::{Result, Step};

use crate::io::host::Host;
use crate::io::host::device::DeviceCore;
use crate::io::host::errors::foreign;
use crate::io::host::gauge::Permit;
use crate::io::host::xrc_domain::XrcDomain;
use crate::io::verbs::qp::SoftQp;

/// An XRC domain. It counts as a protection domain.
#[derive(Debug)]
pub struct SoftXrcd {
    domain: Arc<XrcDomain>,
    device: Arc<DeviceCore>,
    host: Arc<Host>,
    _permit: Permit,
}

impl SoftXrcd {
    pub(crate) fn new(host: &Arc<Host>, device: &Arc<DeviceCore>) -> Result<Self> {
        Ok(Self {
            domain: Arc::default(),
            device: Arc::clone(device),
            host: Arc::clone(host),
            _permit: host.gauges.pds.take(Step::AllocPd)?,
        })
    }

    /// The domain behind a trait object, if it belongs to the same stack.
    pub(crate) fn domain_of(xrcd: &Arc<dyn Xrcd>, host: &Arc<Host>) -> Result<Arc<XrcDomain>> {
        xrcd.as_any()
            .downcast_ref::<Self>()
            .filter(|xrcd| Arc::ptr_eq(&xrcd.host, host))
            .map(|xrcd| Arc::clone(&xrcd.domain))
            .ok_or_else(|| foreign(Step::CreateSrq, "XRC domain of this device"))
    }
}

impl portolan_provider::sealed::Sealed for SoftXrcd {}

impl Xrcd for SoftXrcd {
    fn create_qp(&self) -> Result<Arc<dyn Qp>> {
        self.host.entry.check(Step::CreateQp)?;
        let qp = SoftQp::in_domain(&self.host, &self.device, &self.domain)
            .map_err(|error| error.on(self.device.name(), None))?;
        Ok(Arc::new(qp))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

//! Address handles.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use portolan_abi_layout as abi;
use portolan_provider::verbs::{Ah, AhAttr};
use portolan_provider::{Result, Step};

use super::domain::Domain;
use super::outcome::made;

/// An address handle of the kernel's.
#[derive(Debug)]
pub(super) struct KernelAh {
    shared: Arc<AhShared>,
    attr: AhAttr,
}

/// The part that posted datagrams keep alive.
#[derive(Debug)]
pub(super) struct AhShared {
    pub(super) raw: NonNull<abi::Ah>,
    pub(super) pd: Arc<Domain>,
}

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for AhShared {}
// SAFETY: as above.
unsafe impl Sync for AhShared {}

impl KernelAh {
    pub(super) fn new(pd: Arc<Domain>, attr: &AhAttr) -> Result<Self> {
        let mut raw = abi::AhAttr::from(attr);
        // SAFETY: the protection domain is valid, and the library only reads the attributes.
        let raw = unsafe { (pd.device.library.create_ah)(pd.raw.as_ptr(), &mut raw) };
        let raw =
            made(Step::CreateAh, "ibv_create_ah", raw).map_err(|error| pd.device.explain(error))?;
        Ok(Self {
            shared: Arc::new(AhShared { raw, pd }),
            attr: *attr,
        })
    }

    pub(super) fn shared(&self) -> &Arc<AhShared> {
        &self.shared
    }
}

impl portolan_provider::sealed::Sealed for KernelAh {}

impl Ah for KernelAh {
    fn attr(&self) -> AhAttr {
        self.attr
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for AhShared {
    fn drop(&mut self) {
        if !self.pd.device.is_own() {
            return;
        }
        // SAFETY: no datagram in flight uses it, because that would keep it alive.
        let code = unsafe { (self.pd.device.library.destroy_ah)(self.raw.as_ptr()) };
        if code != 0 {
            tracing::warn!(code, "address handle not destroyed");
        }
    }
}

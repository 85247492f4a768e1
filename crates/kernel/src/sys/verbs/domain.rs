//! Protection domains, which the objects created in them keep alive.

use std::ptr::NonNull;
use std::sync::Arc;

use portolan_abi_layout as abi;
use portolan_provider::{Result, Step};

use super::open::OpenDevice;
use super::outcome::made;

/// A protection domain of the library's.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) raw: NonNull<abi::Pd>,
    pub(super) device: Arc<OpenDevice>,
}

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(super) fn new(device: Arc<OpenDevice>) -> Result<Arc<Self>> {
        // SAFETY: the context is open as long as `device` lives.
        let raw = unsafe { (device.library.alloc_pd)(device.context.as_ptr()) };
        let raw =
            made(Step::AllocPd, "ibv_alloc_pd", raw).map_err(|error| device.explain(error))?;
        Ok(Arc::new(Self { raw, device }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if !self.device.is_own() {
            return;
        }
        // SAFETY: the objects created in it are destroyed, because they keep it alive.
        let code = unsafe { (self.device.library.dealloc_pd)(self.raw.as_ptr()) };
        if code != 0 {
            tracing::warn!(code, "protection domain not deallocated");
        }
    }
}

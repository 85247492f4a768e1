//! Memory regions.

use std::ffi::c_void;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::{Arc, Mutex};

use portolan_provider::error::errno::EFAULT;
use portolan_provider::traits::Mr;
use portolan_provider::verbs::Access;
use portolan_provider::{Cause, Error, Result, Step};

use super::device::RegionPointer;
use super::pd::PdShared;
use super::{abi, check, made};
use crate::lock;

/// A memory region of the kernel's.
#[derive(Debug)]
pub(super) struct KernelMr {
    /// `None` once it is deregistered.
    raw: Mutex<Option<NonNull<abi::Mr>>>,
    lkey: u32,
    rkey: u32,
    pd: Arc<PdShared>,
}

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for KernelMr {}
// SAFETY: as above.
unsafe impl Sync for KernelMr {}

impl KernelMr {
    /// # Safety
    /// That of `Pd::register`.
    pub(super) unsafe fn register(
        pd: Arc<PdShared>,
        addr: u64,
        length: u64,
        access: Access,
    ) -> Result<Self> {
        let step = Step::RegisterMemory;
        let device = &pd.device;
        let too_long = |_| device.explain(Error::invalid(step, "length", "fewer bytes", length));
        let bytes = usize::try_from(length).map_err(too_long)?;
        let start: *mut c_void = with_exposed_provenance_mut(addr as usize);
        let access = access.bits().cast_signed();
        // SAFETY: the caller promises that the memory stays, and that it is the device's to use.
        let raw = unsafe { (device.library.reg_mr)(pd.raw.as_ptr(), start, bytes, access) };
        let raw = made(step, "ibv_reg_mr", raw).map_err(|error| match error.cause {
            Cause::Os { errno: EFAULT, .. } => {
                let cause = Cause::BadMemory { addr, len: length };
                device.explain(Error::new(step, cause))
            }
            _ => device.explain(error),
        })?;
        // SAFETY: the region exists.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        lock(&device.regions).insert(lkey, RegionPointer(raw));
        Ok(Self {
            raw: Mutex::new(Some(raw)),
            lkey,
            rkey,
            pd,
        })
    }
}

impl Mr for KernelMr {
    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }

    fn deregister(&self) -> Result<()> {
        let mut raw = lock(&self.raw);
        let Some(region) = *raw else {
            return Ok(());
        };
        let device = &self.pd.device;
        // Held across the call: another region may get the key right after, and no window is bound
        // meanwhile.
        let mut regions = lock(&device.regions);
        // SAFETY: the region exists, and it is taken from the table before anybody else looks.
        let code = unsafe { (device.library.dereg_mr)(region.as_ptr()) };
        check(Step::RegisterMemory, "ibv_dereg_mr", code).map_err(|error| device.explain(error))?;
        regions.remove(&self.lkey);
        *raw = None;
        Ok(())
    }
}

impl Drop for KernelMr {
    fn drop(&mut self) {
        if let Err(error) = self.deregister() {
            tracing::warn!(%error, "memory region stays registered");
        }
    }
}

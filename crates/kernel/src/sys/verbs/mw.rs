//! Memory windows. The library keeps the present key in its own structure, which binding changes; the
//! seam names a window of type 2 by that key.

use std::any::Any;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use portolan_provider::traits::Mw;
use portolan_provider::verbs::{MwBind, MwType};
use portolan_provider::{Cause, Error, Result, Step};

use super::device::{KernelDevice, WindowPointer};
use super::pd::PdShared;
use super::{abi, check, made};
use crate::lock;

/// A memory window of the kernel's.
#[derive(Debug)]
pub(super) struct KernelMw {
    raw: NonNull<abi::Mw>,
    mw_type: MwType,
    /// The key it was allocated with. Its lowest byte is the one that bindings change.
    first_rkey: u32,
    pd: Arc<PdShared>,
}

// SAFETY: libibverbs may be called by any thread; the key in the structure is read and written under
// the lock of the device's table.
unsafe impl Send for KernelMw {}
// SAFETY: as above.
unsafe impl Sync for KernelMw {}

/// What stays of a window's key.
fn index(rkey: u32) -> u32 {
    rkey >> 8
}

impl KernelMw {
    pub(super) fn new(pd: Arc<PdShared>, mw_type: MwType) -> Result<Self> {
        let device = &pd.device;
        // SAFETY: an open device and a protection domain of it.
        let raw =
            unsafe { ((*device.context.as_ptr()).ops.alloc_mw)(pd.raw.as_ptr(), mw_type as u32) };
        let raw =
            made(Step::AllocMw, "ibv_alloc_mw", raw).map_err(|error| device.explain(error))?;
        // SAFETY: the window exists.
        let first_rkey = unsafe { (*raw.as_ptr()).rkey };
        lock(&device.windows).insert(index(first_rkey), WindowPointer(raw));
        Ok(Self {
            raw,
            mw_type,
            first_rkey,
            pd,
        })
    }

    /// Posts a binding to a queue pair of the same device; the key from then on.
    ///
    /// # Safety
    /// The queue pair exists for as long as the call takes.
    pub(super) unsafe fn bind(
        &self,
        device: &Arc<KernelDevice>,
        qp: NonNull<abi::Qp>,
        mut bind: abi::MwBind,
        region: &MwBind,
    ) -> Result<u32> {
        if !Arc::ptr_eq(&self.pd.device, device) {
            return Err(super::foreign(Step::BindMw, "memory window of this device"));
        }
        let windows = lock(&device.windows);
        let is_allocated = windows.contains_key(&index(self.first_rkey));
        if !is_allocated {
            return Err(Error::new(
                Step::BindMw,
                Cause::NoSuchObject("memory window"),
            ));
        }
        let regions = lock(&device.regions);
        bind.bind_info.mr = region_of(&regions, region)?;
        // SAFETY: queue pair, window and region exist while the tables are locked.
        unsafe {
            let ops = &(*device.context.as_ptr()).ops;
            let code = (ops.bind_mw)(qp.as_ptr(), self.raw.as_ptr(), &mut bind);
            check(Step::BindMw, "ibv_bind_mw", code).map_err(|error| device.explain(error))?;
            Ok((*self.raw.as_ptr()).rkey)
        }
    }
}

type Regions = std::collections::HashMap<u32, super::device::RegionPointer>;

fn region_of(regions: &Regions, bind: &MwBind) -> Result<*mut abi::Mr> {
    match (bind.length, regions.get(&bind.lkey)) {
        (0, _) => Ok(null_mut()),
        (_, Some(region)) => Ok(region.0.as_ptr()),
        (_, None) => Err(Error::new(
            Step::BindMw,
            Cause::NoSuchObject("memory region"),
        )),
    }
}

/// Runs `post` with the window whose present key is `rkey` and the region that it is to open.
///
/// # Errors
/// `NoSuchObject` if either is not there.
pub(super) fn with_window<T>(
    device: &KernelDevice,
    rkey: u32,
    bind: &MwBind,
    post: impl FnOnce(*mut abi::Mw, *mut abi::Mr) -> T,
) -> Result<T> {
    let windows = lock(&device.windows);
    let Some(window) = windows.get(&index(rkey)) else {
        return Err(Error::new(
            Step::BindMw,
            Cause::NoSuchObject("memory window"),
        ));
    };
    let regions = lock(&device.regions);
    let region = region_of(&regions, bind)?;
    let window = window.0.as_ptr();
    // SAFETY: the window exists while it is in the table; its key is touched under the table's lock.
    unsafe { (*window).rkey = rkey };
    Ok(post(window, region))
}

impl Mw for KernelMw {
    fn rkey(&self) -> u32 {
        if self.mw_type == MwType::Type2 {
            return self.first_rkey;
        }
        let windows = lock(&self.pd.device.windows);
        let window = windows.get(&index(self.first_rkey));
        // SAFETY: the window exists while it is in the table.
        window.map_or(self.first_rkey, |window| unsafe {
            (*window.0.as_ptr()).rkey
        })
    }

    fn mw_type(&self) -> MwType {
        self.mw_type
    }

    fn deallocate(&self) -> Result<()> {
        let device = &self.pd.device;
        let mut windows = lock(&device.windows);
        if windows
            .get(&index(self.first_rkey))
            .is_none_or(|known| known.0 != self.raw)
        {
            return Ok(());
        }
        // SAFETY: the window exists, and nobody finds it any more once the table is unlocked.
        let code = unsafe { ((*device.context.as_ptr()).ops.dealloc_mw)(self.raw.as_ptr()) };
        check(Step::AllocMw, "ibv_dealloc_mw", code).map_err(|error| device.explain(error))?;
        windows.remove(&index(self.first_rkey));
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for KernelMw {
    fn drop(&mut self) {
        if let Err(error) = self.deallocate() {
            tracing::warn!(%error, "memory window stays allocated");
        }
    }
}

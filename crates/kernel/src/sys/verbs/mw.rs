//! Memory windows. Binding a window changes its key, which the library stores in its own structure. A provider
//! identifies a window of type 2 by that key.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use portolan_abi_layout as abi;
use portolan_provider::error::errno::EOPNOTSUPP;
use portolan_provider::traits::Mw;
use portolan_provider::verbs::{MwBind, MwType};
use portolan_provider::{Error, Result, Step};

use super::domain::Domain;
use super::open::OpenDevice;
use super::outcome::{check, failed, foreign, made};
use super::windows::{Place, Window, no_window, region_of};

/// A memory window of the kernel's.
#[derive(Debug)]
pub(super) struct KernelMw {
    /// Its entry in the device's table, never used by another window.
    place: Place,
    mw_type: MwType,
    /// The key from allocation. Bindings only change its lowest byte.
    first_rkey: u32,
    pd: Arc<Domain>,
}

/// Deallocates a window.
///
/// # Safety
/// If this succeeds, the window is removed from the table.
pub(super) unsafe fn dealloc(device: &OpenDevice, window: &Window) -> Result<()> {
    let code = device.ops().dealloc_mw.map_or(EOPNOTSUPP, |dealloc| {
        // SAFETY: a window in the table exists, and the caller has the table locked.
        unsafe { dealloc(window.raw.as_ptr()) }
    });
    check(Step::AllocMw, "ibv_dealloc_mw", code).map_err(|error| device.explain(error))
}

// SAFETY: libibverbs may be called by any thread; windows are only read under the table's lock.
unsafe impl Send for Window {}

impl KernelMw {
    pub(super) fn new(pd: Arc<Domain>, mw_type: MwType) -> Result<Self> {
        let device = &pd.device;
        let mut windows = device.windows.lock();
        let raw = match device.ops().alloc_mw {
            // SAFETY: the protection domain exists.
            Some(alloc) => made(Step::AllocMw, "ibv_alloc_mw", unsafe {
                alloc(pd.raw.as_ptr(), mw_type as u32)
            }),
            None => Err(failed(Step::AllocMw, "ibv_alloc_mw", EOPNOTSUPP)),
        };
        let raw = raw.map_err(|error| device.explain(error))?;
        // SAFETY: the window exists.
        let first_rkey = unsafe { (*raw.as_ptr()).rkey };
        let place = windows.insert(raw, first_rkey, mw_type);
        drop(windows);
        Ok(Self {
            place,
            mw_type,
            first_rkey,
            pd,
        })
    }

    /// Posts a binding to a queue pair of the same device, and returns the window's new key.
    ///
    /// # Safety
    /// The queue pair exists during the call.
    pub(super) unsafe fn bind(
        &self,
        device: &Arc<OpenDevice>,
        qp: NonNull<abi::Qp>,
        mut bind: abi::MwBind,
        region: &MwBind,
    ) -> Result<u32> {
        if !Arc::ptr_eq(&self.pd.device, device) {
            return Err(foreign(Step::BindMw, "memory window of this device"));
        }
        check_type(MwType::Type1, self.mw_type)?;
        let mut windows = device.windows.lock();
        let window = windows.at(self.place).ok_or_else(no_window)?;
        let regions = device.regions.lock();
        bind.bind_info.mr = region_of(&regions, region)?;
        let code = device.ops().bind_mw.map_or(EOPNOTSUPP, |bind_mw| {
            // SAFETY: the caller vouches for the queue pair; window and region exist while the tables are locked.
            unsafe { bind_mw(qp.as_ptr(), window.raw.as_ptr(), &mut bind) }
        });
        check(Step::BindMw, "ibv_bind_mw", code).map_err(|error| device.explain(error))?;
        window.note_region(region);
        // SAFETY: the window exists while the table is locked.
        Ok(unsafe { (*window.raw.as_ptr()).rkey })
    }
}

/// Checks that the window's type fits the way of binding it.
fn check_type(expected: MwType, found: MwType) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let name = |mw_type| match mw_type {
        MwType::Type1 => "type 1",
        MwType::Type2 => "type 2",
    };
    let expected = format_args!("one of {}", name(expected));
    let (step, what, found) = (Step::BindMw, "memory window", name(found));
    Err(Error::invalid(step, what, expected, found))
}

/// Runs `post` with the type 2 window whose current key is `rkey` and the region to bind it to.
///
/// # Errors
/// `NoSuchObject` if either does not exist, `InvalidArgument` for a window of type 1; errors of `post`.
pub(super) fn with_window(
    device: &OpenDevice,
    rkey: u32,
    bind: &MwBind,
    post: impl FnOnce(*mut abi::Mw, *mut abi::Mr) -> Result<()>,
) -> Result<()> {
    let mut windows = device.windows.lock();
    let window = windows.of_key(rkey).ok_or_else(no_window)?;
    check_type(MwType::Type2, window.mw_type)?;
    let regions = device.regions.lock();
    let region = region_of(&regions, bind)?;
    let raw = window.raw.as_ptr();
    // SAFETY: the window exists while it is in the table; the table's lock protects its key.
    unsafe { (*raw).rkey = rkey };
    post(raw, region)?;
    window.note_region(bind);
    Ok(())
}

impl portolan_provider::sealed::Sealed for KernelMw {}

impl Mw for KernelMw {
    fn rkey(&self) -> u32 {
        if self.mw_type == MwType::Type2 || !self.pd.device.is_own() {
            return self.first_rkey;
        }
        let mut windows = self.pd.device.windows.lock();
        let window = windows.at(self.place);
        // SAFETY: the window exists while it is in the table.
        window.map_or(self.first_rkey, |window| unsafe {
            (*window.raw.as_ptr()).rkey
        })
    }

    fn mw_type(&self) -> MwType {
        self.mw_type
    }

    fn deallocate(&self) -> Result<()> {
        let device = &self.pd.device;
        device.check(Step::AllocMw)?;
        let mut windows = device.windows.lock();
        let Some(window) = windows.at(self.place) else {
            return Ok(());
        };
        // SAFETY: it is removed from the table right after.
        unsafe { dealloc(device, window)? };
        windows.remove(self.place);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for KernelMw {
    fn drop(&mut self) {
        if self.pd.device.is_own()
            && let Err(error) = self.deallocate()
        {
            tracing::warn!(%error, "memory window stays allocated");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_bind_is_for_one_type_of_window() {
        check_type(MwType::Type1, MwType::Type1).unwrap();
        let error = check_type(MwType::Type1, MwType::Type2).unwrap_err();
        assert!(error.to_string().contains("one of type 1"), "{error}");
    }
}

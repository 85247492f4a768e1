//! Memory windows. The library keeps the present key in its own structure, which binding changes; the
//! seam names a window of type 2 by that key.

use std::any::Any;
use std::collections::HashMap;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use portolan_provider::traits::Mw;
use portolan_provider::verbs::{MwBind, MwType};
use portolan_provider::{Cause, Error, Result, Step};

use super::device::{KernelDevice, RegionPointer};
use super::pd::PdShared;
use super::{abi, check, made};
use crate::lock;

/// A memory window of the kernel's.
#[derive(Debug)]
pub(super) struct KernelMw {
    /// Its place in the device's table, where no other window ever is.
    place: Place,
    mw_type: MwType,
    /// The key it was allocated with. Its lowest byte is the one that bindings change.
    first_rkey: u32,
    pd: Arc<PdShared>,
}

/// What a window is found by: the part of its key that stays, and a number that no other window of the
/// device has or had. The library's pointer and the key may both come again once a window is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    index: u32,
    serial: u64,
}

/// The windows of a device, by the part of their keys that stays.
#[derive(Debug, Default)]
pub(super) struct Windows {
    allocated: HashMap<u32, Window>,
    serials: u64,
}

/// A window that is allocated for as long as it is in the table. The key in the library's structure is
/// read and written under the table's lock.
#[derive(Debug)]
struct Window {
    raw: NonNull<abi::Mw>,
    serial: u64,
    mw_type: MwType,
    /// Keys of the regions that it was asked to open parts of, the latest last. Which of these
    /// bindings were carried out only their completions tell.
    regions: Vec<u32>,
}

/// The regions of a device by their keys.
type Regions = HashMap<u32, RegionPointer>;

/// What stays of a window's key.
fn index(rkey: u32) -> u32 {
    rkey >> 8
}

fn no_window() -> Error {
    Error::new(Step::BindMw, Cause::NoSuchObject("memory window"))
}

impl Windows {
    fn insert(&mut self, raw: NonNull<abi::Mw>, rkey: u32, mw_type: MwType) -> Place {
        self.serials += 1;
        let (index, serial) = (index(rkey), self.serials);
        let window = Window {
            raw,
            serial,
            mw_type,
            regions: Vec::new(),
        };
        self.allocated.insert(index, window);
        Place { index, serial }
    }

    fn at(&mut self, place: Place) -> Option<&mut Window> {
        let window = self.allocated.get_mut(&place.index);
        window.filter(|window| window.serial == place.serial)
    }

    /// How many windows may be bound to the region.
    pub(super) fn count_on(&self, lkey: u32) -> usize {
        let windows = self.allocated.values();
        windows.filter(|window| window.opens(lkey)).count()
    }

    /// Deallocates the windows that may be bound to a region which is to go. First those that were asked to
    /// open it last, then, if the region still does not go, those that were once.
    ///
    /// # Errors
    /// The last of `deregister`.
    pub(super) fn close_on(
        &mut self,
        lkey: u32,
        device: &KernelDevice,
        mut deregister: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let mut outcome = Ok(());
        for is_due in [Window::opened_last, Window::opens] {
            self.allocated.retain(|_, window| {
                // SAFETY: the window exists; nobody finds it once it is taken from the locked table.
                !is_due(window, lkey) || unsafe { dealloc(device, window.raw) }.is_err()
            });
            outcome = deregister();
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// The region is gone.
    pub(super) fn forget_region(&mut self, lkey: u32) {
        for window in self.allocated.values_mut() {
            window.regions.retain(|known| *known != lkey);
        }
    }
}

impl Window {
    fn opens(&self, lkey: u32) -> bool {
        self.regions.contains(&lkey)
    }

    fn opened_last(&self, lkey: u32) -> bool {
        self.regions.last() == Some(&lkey)
    }

    /// A binding to the region is posted.
    fn note_region(&mut self, bind: &MwBind) {
        if bind.length > 0 {
            self.regions.retain(|known| *known != bind.lkey);
            self.regions.push(bind.lkey);
        }
    }
}

/// # Safety
/// The window exists, and nobody uses it afterwards unless this fails.
unsafe fn dealloc(device: &KernelDevice, raw: NonNull<abi::Mw>) -> Result<()> {
    // SAFETY: the device is open; the window is as the caller promises.
    let code = unsafe { ((*device.context.as_ptr()).ops.dealloc_mw)(raw.as_ptr()) };
    check(Step::AllocMw, "ibv_dealloc_mw", code).map_err(|error| device.explain(error))
}

// SAFETY: libibverbs may be called by any thread; windows are only looked at under the table's lock.
unsafe impl Send for Window {}

impl KernelMw {
    pub(super) fn new(pd: Arc<PdShared>, mw_type: MwType) -> Result<Self> {
        let device = &pd.device;
        let mut windows = lock(&device.windows);
        // SAFETY: an open device and a protection domain of it.
        let raw =
            unsafe { ((*device.context.as_ptr()).ops.alloc_mw)(pd.raw.as_ptr(), mw_type as u32) };
        let raw =
            made(Step::AllocMw, "ibv_alloc_mw", raw).map_err(|error| device.explain(error))?;
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
        check_type(MwType::Type1, self.mw_type)?;
        let mut windows = lock(&device.windows);
        let window = windows.at(self.place).ok_or_else(no_window)?;
        let regions = lock(&device.regions);
        bind.bind_info.mr = region_of(&regions, region)?;
        // SAFETY: queue pair, window and region exist while the tables are locked.
        let code = unsafe {
            let ops = &(*device.context.as_ptr()).ops;
            (ops.bind_mw)(qp.as_ptr(), window.raw.as_ptr(), &mut bind)
        };
        check(Step::BindMw, "ibv_bind_mw", code).map_err(|error| device.explain(error))?;
        window.note_region(region);
        // SAFETY: as above.
        Ok(unsafe { (*window.raw.as_ptr()).rkey })
    }
}

/// That a window is of the type that a way to bind it is for.
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

/// Runs `post` with the window of type 2 whose present key is `rkey` and the region that it is to open.
///
/// # Errors
/// `NoSuchObject` if either is not there, `InvalidArgument` for a window of type 1; those of `post`.
pub(super) fn with_window(
    device: &KernelDevice,
    rkey: u32,
    bind: &MwBind,
    post: impl FnOnce(*mut abi::Mw, *mut abi::Mr) -> Result<()>,
) -> Result<()> {
    let mut windows = lock(&device.windows);
    let window = windows.allocated.get_mut(&index(rkey));
    let window = window.ok_or_else(no_window)?;
    check_type(MwType::Type2, window.mw_type)?;
    let regions = lock(&device.regions);
    let region = region_of(&regions, bind)?;
    let raw = window.raw.as_ptr();
    // SAFETY: the window exists while it is in the table; its key is touched under the table's lock.
    unsafe { (*raw).rkey = rkey };
    post(raw, region)?;
    window.note_region(bind);
    Ok(())
}

impl Mw for KernelMw {
    fn rkey(&self) -> u32 {
        if self.mw_type == MwType::Type2 || !self.pd.device.is_own() {
            return self.first_rkey;
        }
        let mut windows = lock(&self.pd.device.windows);
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
        let mut windows = lock(&device.windows);
        let Some(window) = windows.at(self.place) else {
            return Ok(());
        };
        // SAFETY: the window exists, and nobody finds it any more once it is out of the locked table.
        unsafe { dealloc(device, window.raw)? };
        windows.allocated.remove(&self.place.index);
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

    const RKEY: u32 = 0x1200;

    fn bind(lkey: u32, length: u64) -> MwBind {
        MwBind {
            lkey,
            addr: 0x1000,
            length,
            access: portolan_provider::verbs::Access::REMOTE_READ,
        }
    }

    #[test]
    fn a_window_that_is_gone_is_not_found_where_another_has_its_key_and_memory() {
        let mut windows = Windows::default();
        let first = windows.insert(NonNull::dangling(), RKEY, MwType::Type1);
        assert!(windows.at(first).is_some());
        windows.allocated.remove(&first.index);
        let second = windows.insert(NonNull::dangling(), RKEY + 1, MwType::Type1);
        assert_eq!(first.index, second.index);
        assert!(windows.at(first).is_none());
        assert!(windows.at(second).is_some());
    }

    #[test]
    fn a_window_is_counted_on_each_region_that_it_was_asked_to_open_until_that_goes() {
        let mut windows = Windows::default();
        let place = windows.insert(NonNull::dangling(), RKEY, MwType::Type2);
        let window = windows.at(place).unwrap();
        for (lkey, length) in [(1, 8), (2, 8), (1, 8), (3, 0)] {
            window.note_region(&bind(lkey, length));
        }
        assert_eq!(window.regions, [2, 1]);
        assert!(window.opened_last(1) && !window.opened_last(2));
        assert_eq!([1, 2, 3].map(|lkey| windows.count_on(lkey)), [1, 1, 0]);
        windows.forget_region(1);
        assert_eq!([1, 2, 3].map(|lkey| windows.count_on(lkey)), [0, 1, 0]);
    }

    #[test]
    fn each_way_to_bind_is_for_one_type_of_window() {
        check_type(MwType::Type1, MwType::Type1).unwrap();
        let error = check_type(MwType::Type1, MwType::Type2).unwrap_err();
        assert!(error.to_string().contains("one of type 1"), "{error}");
    }
}

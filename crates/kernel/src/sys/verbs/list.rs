//! The devices there are.

use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use portolan_provider::traits::Device;
use portolan_provider::{Result, Step};

use super::abi;
use super::device::KernelDevice;
use super::failed;
use super::library::{self, Functions};
use crate::listing::{DEVICES, Listing};
use crate::lock;
use crate::sys::fork::ForkGuard;

/// The library with the devices that were opened of it.
#[derive(Debug)]
pub(crate) struct Devices {
    library: Arc<Functions>,
    /// Where the kernel lists them.
    folder: PathBuf,
    open: Mutex<Opened>,
}

/// Devices that were found, by index.
#[derive(Debug, Default)]
struct Opened {
    devices: Vec<Arc<KernelDevice>>,
    /// What the kernel listed before, if they were all of that.
    listing: Option<Listing>,
}

/// A device of the library's list.
struct Listed {
    raw: *mut abi::Device,
    name: String,
    index: u32,
}

impl Devices {
    /// Loads the library.
    ///
    /// # Errors
    /// `UnusableLibrary`.
    pub(crate) fn load(name: &str) -> Result<Self> {
        Ok(Self {
            library: Arc::new(library::load(name)?),
            folder: DEVICES.into(),
            open: Mutex::default(),
        })
    }

    /// The devices there are now, by index. Those that cannot be opened (a container may hide a
    /// device's file) are left out.
    ///
    /// The library takes milliseconds to list them, so it is asked again only if the kernel lists others than
    /// before, or not all of those could be had (one that has just come is listed before it can be opened).
    pub(crate) fn current(&self) -> Result<Vec<Arc<KernelDevice>>> {
        let mut open = lock(&self.open);
        // Before the library looks: what comes in between is another listing the next time.
        let listing = Listing::of(&self.folder);
        if listing.is_some() && listing == open.listing {
            return Ok(open.devices.clone());
        }
        open.devices = self.list(&open.devices)?;
        let names = open.devices.iter().map(|device| device.name());
        let is_whole = |listing: &Listing| listing.are_all(names);
        open.listing = listing.filter(is_whole);
        Ok(open.devices.clone())
    }

    /// The devices there are now; those that are open stay so.
    fn list(&self, open: &[Arc<KernelDevice>]) -> Result<Vec<Arc<KernelDevice>>> {
        let mut count = 0;
        // SAFETY: the library writes the length of the list it returns.
        let list = unsafe { (self.library.get_device_list)(&mut count) };
        if list.is_null() {
            return Err(failed(Step::OpenDevice, "ibv_get_device_list", -1));
        }
        let length = usize::try_from(count).unwrap_or(0);
        // SAFETY: the list has as many devices as the library said, and stays until it is freed.
        let entries = unsafe { std::slice::from_raw_parts(list, length) };
        let mut found: Vec<Arc<KernelDevice>> = Vec::with_capacity(entries.len());
        for (position, raw) in (0u32..).zip(entries) {
            let listed = self.describe(*raw, position);
            let known = open
                .iter()
                .find(|device| device.index() == listed.index && device.name() == listed.name);
            match known {
                Some(device) => found.push(device.clone()),
                None => found.extend(self.open(listed)),
            }
        }
        // SAFETY: the library's list, of which no entry is used any more; open devices are their own.
        unsafe { (self.library.free_device_list)(list) };
        found.sort_by_key(|device| device.index());
        Ok(found)
    }

    /// The device with this index, looked for anew only if it is not known.
    pub(crate) fn find(&self, index: u32) -> Result<Option<Arc<KernelDevice>>> {
        let of = |devices: &[Arc<KernelDevice>]| {
            let mut devices = devices.iter();
            devices.find(|device| device.index() == index).cloned()
        };
        let known = of(&lock(&self.open).devices);
        match known {
            Some(device) => Ok(Some(device)),
            None => Ok(of(&self.current()?)),
        }
    }

    fn describe(&self, raw: *mut abi::Device, position: u32) -> Listed {
        // SAFETY: a device of the list; its name is NUL-terminated and as good as the list.
        let (name, index) = unsafe {
            let name = CStr::from_ptr((self.library.get_device_name)(raw));
            (
                name.to_string_lossy().into_owned(),
                (self.library.get_device_index)(raw),
            )
        };
        Listed {
            raw,
            name,
            // Kernels before Linux 5.1 do not say; the list's order is the next best.
            index: u32::try_from(index).unwrap_or(position),
        }
    }

    fn open(&self, listed: Listed) -> Option<Arc<KernelDevice>> {
        let Listed { raw, name, index } = listed;
        let opened = ForkGuard::new().and_then(|fork| {
            // SAFETY: a device of the list.
            let context = unsafe { (self.library.open_device)(raw) };
            KernelDevice::of_context(&self.library, fork, context, name.clone(), index)
        });
        opened
            .inspect_err(|error| tracing::warn!(device = name, %error, "left out"))
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static LISTED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn list_none(count: *mut c_int) -> *mut *mut abi::Device {
        static END: AtomicUsize = AtomicUsize::new(0);
        LISTED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: room for the number.
        unsafe { *count = 0 };
        END.as_ptr().cast()
    }

    unsafe extern "C" fn free_nothing(_: *mut *mut abi::Device) {}

    #[test]
    fn the_library_lists_devices_again_only_when_the_kernel_lists_others_or_some_were_not_had() {
        let folder = std::env::temp_dir().join(format!("portolan-devices-{}", std::process::id()));
        let devices = Devices {
            library: Arc::new(Functions {
                get_device_list: list_none,
                free_device_list: free_nothing,
                ..Functions::missing()
            }),
            folder: folder.clone(),
            open: Mutex::default(),
        };
        let times_listed = |looks: usize| {
            let before = LISTED.load(Ordering::Relaxed);
            (0..looks).for_each(|_| assert!(devices.current().unwrap().is_empty()));
            LISTED.load(Ordering::Relaxed) - before
        };
        assert_eq!(times_listed(2), 2, "the kernel lists nothing anywhere");
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(times_listed(3), 1, "all of none are had");
        std::fs::write(folder.join("rxe0"), "").unwrap();
        assert_eq!(times_listed(3), 3, "it is not had");
        std::fs::remove_file(folder.join("rxe0")).unwrap();
        assert_eq!(times_listed(3), 1, "it is gone");
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(times_listed(1), 1);
    }
}

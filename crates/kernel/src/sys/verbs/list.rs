//! The devices there are.

use std::ffi::CStr;
use std::path::PathBuf;
use std::ptr::NonNull;
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

/// Devices that were opened, by index.
#[derive(Debug, Default)]
struct Opened {
    devices: Vec<Arc<KernelDevice>>,
    /// What the kernel listed before, if they were all of that.
    listing: Option<Listing>,
    /// The library's list of when the provider was opened, until all devices are opened.
    first: Option<DeviceList>,
}

/// The library's list of devices.
#[derive(Debug)]
struct DeviceList {
    library: Arc<Functions>,
    /// What the kernel listed before.
    listing: Option<Listing>,
    devices: Vec<Listed>,
    raw: NonNull<*mut abi::Device>,
}

/// A device of the library's list.
#[derive(Debug)]
struct Listed {
    raw: *mut abi::Device,
    name: String,
    index: u32,
}

// SAFETY: libibverbs may be called by any thread, and the list is its owner's alone.
unsafe impl Send for DeviceList {}

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

    /// Lists the devices and opens none, so that whoever needs one first does not wait for the list and the drivers.
    /// A failure is told to who asks for the devices.
    pub(crate) fn look_ahead(&self) {
        let listed = DeviceList::of(&self.library, Listing::of(&self.folder));
        lock(&self.open).first = listed.ok();
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
        let first = open.first.take();
        let listed = match first.filter(|first| listing.is_some() && first.listing == listing) {
            Some(first) => first,
            None => DeviceList::of(&self.library, listing)?,
        };
        open.devices = listed.open_all(&open.devices);
        let names = open.devices.iter().map(|device| device.name());
        let is_whole = |listing: &&Listing| listing.are_all(names);
        open.listing = listed.listing.as_ref().filter(is_whole).cloned();
        Ok(open.devices.clone())
    }

    /// The device with this index, looked for anew only if it is not known.
    pub(crate) fn find(&self, index: u32) -> Result<Option<Arc<KernelDevice>>> {
        if let Some(device) = self.known(index) {
            return Ok(Some(device));
        }
        let mut devices = self.current()?.into_iter();
        Ok(devices.find(|device| device.index() == index))
    }

    /// The device with this index if it is open, or can be by the list of when the provider was opened: the kernel
    /// numbers devices from 0 on, and gives a number again only after all others.
    fn known(&self, index: u32) -> Option<Arc<KernelDevice>> {
        let mut open = lock(&self.open);
        let known = open.devices.iter().find(|device| device.index() == index);
        if let Some(device) = known {
            return Some(device.clone());
        }
        let device = open.first.as_ref()?.open(index)?;
        open.devices.push(device.clone());
        open.devices.sort_by_key(|device| device.index());
        Some(device)
    }
}

impl DeviceList {
    /// Asks the library, which loads the devices' drivers.
    fn of(library: &Arc<Functions>, listing: Option<Listing>) -> Result<Self> {
        let mut count = 0;
        // SAFETY: the library writes the length of the list it returns.
        let list = unsafe { (library.get_device_list)(&mut count) };
        let raw = NonNull::new(list);
        let raw = raw.ok_or_else(|| failed(Step::OpenDevice, "ibv_get_device_list", -1))?;
        let length = usize::try_from(count).unwrap_or(0);
        // SAFETY: the list has as many devices as the library said, and stays until it is freed.
        let entries = unsafe { std::slice::from_raw_parts(list, length) };
        let devices = (0u32..).zip(entries);
        let devices = devices.map(|(position, raw)| describe(library, *raw, position));
        Ok(Self {
            library: library.clone(),
            listing,
            devices: devices.collect(),
            raw,
        })
    }

    /// All its devices that can be opened, by index; those that are open stay so.
    fn open_all(&self, open: &[Arc<KernelDevice>]) -> Vec<Arc<KernelDevice>> {
        let mut found: Vec<Arc<KernelDevice>> = Vec::with_capacity(self.devices.len());
        for listed in &self.devices {
            let known = open
                .iter()
                .find(|device| device.index() == listed.index && device.name() == listed.name);
            match known {
                Some(device) => found.push(device.clone()),
                None => found.extend(self.open_listed(listed)),
            }
        }
        found.sort_by_key(|device| device.index());
        found
    }

    /// Opens the device with this index.
    fn open(&self, index: u32) -> Option<Arc<KernelDevice>> {
        let listed = self.devices.iter().find(|listed| listed.index == index);
        self.open_listed(listed?)
    }

    fn open_listed(&self, listed: &Listed) -> Option<Arc<KernelDevice>> {
        let name = &listed.name;
        let opened = ForkGuard::new().and_then(|fork| {
            // SAFETY: a device of the list.
            let context = unsafe { (self.library.open_device)(listed.raw) };
            KernelDevice::of_context(&self.library, fork, context, name.clone(), listed.index)
        });
        opened
            .inspect_err(|error| tracing::warn!(device = name, %error, "left out"))
            .ok()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the library's list, of which no entry is used any more; open devices are their own.
        unsafe { (self.library.free_device_list)(self.raw.as_ptr()) };
    }
}

fn describe(library: &Functions, raw: *mut abi::Device, position: u32) -> Listed {
    // SAFETY: a device of the list; its name is NUL-terminated and as good as the list.
    let (name, index) = unsafe {
        let name = CStr::from_ptr((library.get_device_name)(raw));
        (
            name.to_string_lossy().into_owned(),
            (library.get_device_index)(raw),
        )
    };
    Listed {
        raw,
        name,
        // Kernels before Linux 5.1 do not say; the list's order is the next best.
        index: u32::try_from(index).unwrap_or(position),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::c_int;
    use std::path::Path;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    thread_local! {
        /// How often the library has listed devices, and how many of the lists it has back.
        static LISTED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }

    unsafe extern "C" fn list_none(count: *mut c_int) -> *mut *mut abi::Device {
        static END: AtomicUsize = AtomicUsize::new(0);
        let (listed, freed) = LISTED.get();
        LISTED.set((listed + 1, freed));
        // SAFETY: room for the number.
        unsafe { *count = 0 };
        END.as_ptr().cast()
    }

    unsafe extern "C" fn free_nothing(_: *mut *mut abi::Device) {
        let (listed, freed) = LISTED.get();
        LISTED.set((listed, freed + 1));
    }

    /// A library without devices, of which the kernel lists those in a folder.
    fn devices(folder: &Path) -> Devices {
        Devices {
            library: Arc::new(Functions {
                get_device_list: list_none,
                free_device_list: free_nothing,
                ..Functions::missing()
            }),
            folder: folder.into(),
            open: Mutex::default(),
        }
    }

    #[test]
    fn a_list_that_was_made_ahead_serves_the_first_look_unless_the_kernel_lists_others_since() {
        let folder = std::env::temp_dir().join(format!("portolan-ahead-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (comes_since, listed) in [(false, 1), (true, 2)] {
            LISTED.set((0, 0));
            let devices = devices(&folder);
            devices.look_ahead();
            if comes_since {
                std::fs::write(folder.join("rxe0"), "").unwrap();
            }
            assert!(devices.find(0).unwrap().is_none());
            assert_eq!(
                LISTED.get(),
                (listed, listed),
                "lists made, lists given back"
            );
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_library_lists_devices_again_only_when_the_kernel_lists_others_or_some_were_not_had() {
        let folder = std::env::temp_dir().join(format!("portolan-devices-{}", std::process::id()));
        let devices = devices(&folder);
        let times_listed = |looks: usize| {
            let (before, _) = LISTED.get();
            (0..looks).for_each(|_| assert!(devices.current().unwrap().is_empty()));
            LISTED.get().0 - before
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

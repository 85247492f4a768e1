//! The devices there are.

use std::ffi::CStr;
use std::sync::{Arc, Mutex};

use portolan_provider::traits::Device;
use portolan_provider::{Result, Step};

use super::abi;
use super::device::KernelDevice;
use super::failed;
use super::library::{self, Functions};
use crate::lock;
use crate::sys::fork::ForkGuard;

/// The library with the devices that were opened of it.
#[derive(Debug)]
pub(crate) struct Devices {
    library: Arc<Functions>,
    open: Mutex<Vec<Arc<KernelDevice>>>,
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
            open: Mutex::default(),
        })
    }

    /// The devices there are now, by index. Those that cannot be opened (a container may hide a
    /// device's file) are left out.
    pub(crate) fn refresh(&self) -> Result<Vec<Arc<KernelDevice>>> {
        let mut open = lock(&self.open);
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
        open.clone_from(&found);
        Ok(found)
    }

    /// The device with this index, looked for anew only if it is not known.
    pub(crate) fn find(&self, index: u32) -> Result<Option<Arc<KernelDevice>>> {
        let of = |devices: &[Arc<KernelDevice>]| {
            let mut devices = devices.iter();
            devices.find(|device| device.index() == index).cloned()
        };
        let known = of(&lock(&self.open));
        match known {
            Some(device) => Ok(Some(device)),
            None => Ok(of(&self.refresh()?)),
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

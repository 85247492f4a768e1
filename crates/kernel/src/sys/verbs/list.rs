//! The list of devices.

use portolan_threads::lock::Mutex;
use std::ffi::CStr;
use std::fmt::Display;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use portolan_abi_layout::{self as abi, Library, LoadError, Verbs};
use portolan_provider::{Cause, Error, Result, Step};

use super::open::OpenDevice;
use super::outcome::failed;
use crate::listing::{DEVICES, Listing};
use crate::sys::fork::ForkGuard;

/// A symbol that only Portolan's libibverbs exports. Its devices are the software provider's, which the kernel does not
/// know.
const OUR_MARK: &CStr = c"portolan_verbs";

/// The library and its opened devices.
#[derive(Debug)]
pub(crate) struct Devices {
    library: Arc<Verbs>,
    /// The folder in which the kernel lists them.
    folder: PathBuf,
    open: Mutex<Opened>,
}

/// The last listing, and the opened devices by index.
#[derive(Debug, Default)]
struct Opened {
    list: Option<DeviceList>,
    devices: Vec<Held>,
}

/// A device that was opened.
#[derive(Debug)]
enum Held {
    /// It stays open, because opening takes milliseconds and its driver can be removed while programs have it open.
    Open(Arc<OpenDevice>),
    /// It closes with its last user. On older kernels, removing a device without hardware (rdma_rxe, siw) waits for
    /// every program that has it open, and does not notify those programs.
    WhileUsed(Weak<OpenDevice>),
}

/// The library's list of devices.
#[derive(Debug)]
struct DeviceList {
    library: Arc<Verbs>,
    /// The kernel's listing at that time.
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

// SAFETY: libibverbs may be called by any thread, and only the owner uses the list.
unsafe impl Send for DeviceList {}

impl Devices {
    /// Loads the library.
    ///
    /// # Errors
    /// `UnusableLibrary` with the reason: it is absent, too old, or Portolan's own. `Os` without a descriptor or memory.
    pub(crate) fn load(name: &CStr) -> Result<Self> {
        let library = load_library(name)?;
        if library.has(OUR_MARK) {
            let why = "it is Portolan's own, which has none of the kernel's devices; put the machine's \
                       first in LD_LIBRARY_PATH";
            return Err(unusable(name, &why));
        }
        Self::of_library(name, library)
    }

    /// Loads the library, even if it is Portolan's own.
    ///
    /// # Errors
    /// `UnusableLibrary` with the reason: it is absent or too old. `Os` without a descriptor or memory.
    pub(crate) fn load_any(name: &CStr) -> Result<Self> {
        let library = load_library(name)?;
        Self::of_library(name, library)
    }

    fn of_library(name: &CStr, library: Library) -> Result<Self> {
        let verbs = Verbs::find(library).map_err(|error| unusable(name, &error))?;
        Ok(Self {
            library: Arc::new(verbs),
            folder: DEVICES.into(),
            open: Mutex::default(),
        })
    }

    /// Lists the devices without opening any, so that the first user need not wait for the list and the drivers. The
    /// next call that needs the devices reports a failure.
    pub(crate) fn look_ahead(&self) {
        let listed = DeviceList::of(&self.library, Listing::of(&self.folder));
        self.open.lock().list = listed.ok();
    }

    /// The current devices, by index. Omits devices that cannot be opened (a container may hide a device's file).
    ///
    /// The library takes milliseconds to list them. So it is queried again only if the kernel's listing differs from
    /// the previous one or from the library's (a new device is listed before it can be opened).
    pub(crate) fn current(&self) -> Result<Vec<Arc<OpenDevice>>> {
        let mut open = self.open.lock();
        // Before the library's query, so that a device that appears in between makes the next listing differ.
        let listing = Listing::of(&self.folder);
        let list = open.list.take();
        let list = match list.filter(|list| list.is_all_of(&listing)) {
            Some(list) => list,
            None => DeviceList::of(&self.library, listing)?,
        };
        let devices = list.open_all(&open.devices);
        open.list = Some(list);
        open.devices = devices.iter().map(|device| self.hold(device)).collect();
        Ok(devices)
    }

    /// The device with this index; lists the devices again only if it is unknown.
    pub(crate) fn find(&self, index: u32) -> Result<Option<Arc<OpenDevice>>> {
        if let Some(device) = self.known(index) {
            return Ok(Some(device));
        }
        let mut devices = self.current()?.into_iter();
        Ok(devices.find(|device| device.index() == index))
    }

    /// The device with this index if it is open, or can be opened by the last list. The kernel numbers devices from 0
    /// and reuses a number only after all others.
    fn known(&self, index: u32) -> Option<Arc<OpenDevice>> {
        let mut open = self.open.lock();
        let mut known = open.devices.iter().filter_map(Held::device);
        if let Some(device) = known.find(|device| device.index() == index) {
            return Some(device);
        }
        let device = open.list.as_ref()?.open(index)?;
        open.devices.retain(|held| held.device().is_some());
        open.devices.push(self.hold(&device));
        Some(device)
    }

    fn hold(&self, device: &Arc<OpenDevice>) -> Held {
        // sysfs link to the device's hardware.
        let hardware = self.folder.join(device.name()).join("device");
        match hardware.exists() {
            true => Held::Open(device.clone()),
            false => Held::WhileUsed(Arc::downgrade(device)),
        }
    }
}

impl Held {
    /// The device, if it is still open.
    fn device(&self) -> Option<Arc<OpenDevice>> {
        match self {
            Self::Open(device) => Some(device.clone()),
            Self::WhileUsed(device) => device.upgrade(),
        }
    }
}

impl DeviceList {
    /// Queries the library, which loads the devices' drivers.
    fn of(library: &Arc<Verbs>, listing: Option<Listing>) -> Result<Self> {
        let mut count = 0;
        // SAFETY: the library writes the length of the list it returns.
        let list = unsafe { (library.get_device_list)(&mut count) };
        let raw = NonNull::new(list);
        let raw = raw.ok_or_else(|| failed(Step::OpenDevice, "ibv_get_device_list", -1))?;
        let length = usize::try_from(count).unwrap_or(0);
        // SAFETY: the list has as many devices as the library returned, and stays valid until it is freed.
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

    /// Whether the list was made from this listing and contains all of its devices.
    fn is_all_of(&self, listing: &Option<Listing>) -> bool {
        let names = self.devices.iter().map(|listed| listed.name.as_str());
        let is_whole = |listing: &Listing| listing.are_all(names);
        self.listing == *listing && listing.as_ref().is_some_and(is_whole)
    }

    /// All devices that can be opened, by index; devices that are already open stay open.
    fn open_all(&self, open: &[Held]) -> Vec<Arc<OpenDevice>> {
        let mut found: Vec<Arc<OpenDevice>> = Vec::with_capacity(self.devices.len());
        for listed in &self.devices {
            let mut known = open.iter().filter_map(Held::device);
            match known
                .find(|device| device.index() == listed.index && device.name() == listed.name)
            {
                Some(device) => found.push(device),
                None => found.extend(self.open_listed(listed)),
            }
        }
        found.sort_by_key(|device| device.index());
        found
    }

    /// Opens the device with this index.
    fn open(&self, index: u32) -> Option<Arc<OpenDevice>> {
        let listed = self.devices.iter().find(|listed| listed.index == index);
        self.open_listed(listed?)
    }

    fn open_listed(&self, listed: &Listed) -> Option<Arc<OpenDevice>> {
        let name = &listed.name;
        let fork = ForkGuard::new();
        // SAFETY: a device of the list.
        let context = unsafe { (self.library.open_device)(listed.raw) };
        let opened =
            OpenDevice::of_context(&self.library, fork, context, name.clone(), listed.index);
        opened
            .inspect_err(|error| tracing::warn!(device = name, %error, "left out"))
            .ok()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: it is the library's list. Its entries are not used afterwards; open devices do not need them.
        unsafe { (self.library.free_device_list)(self.raw.as_ptr()) };
    }
}

fn load_library(name: &CStr) -> Result<Library> {
    Library::load(name).map_err(|error| match error {
        LoadError::NoRoom(errno) => {
            let (call, errno) = ("dlopen", errno.raw_os_error());
            Error::new(Step::OpenDevice, Cause::Os { call, errno })
        }
        error => unusable(name, &error),
    })
}

fn unusable(name: &CStr, why: &dyn Display) -> Error {
    let (library, why) = (name.to_string_lossy().into(), why.to_string());
    Error::new(Step::OpenDevice, Cause::UnusableLibrary { library, why })
}

fn describe(library: &Verbs, raw: *mut abi::Device, position: u32) -> Listed {
    // SAFETY: a device of the list; its name is NUL-terminated and lives as long as the list.
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
        // Kernels before Linux 5.1 do not report the index; use the position in the list.
        index: u32::try_from(index).unwrap_or(position),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::{CString, c_char, c_int};
    use std::os::fd::IntoRawFd;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::process::Command;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    thread_local! {
        /// How many lists the library has returned, and how many were freed.
        static LISTED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
        /// How many devices it has opened, and closed.
        static OPENED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }

    unsafe extern "C" fn list_none(count: *mut c_int) -> *mut *mut abi::Device {
        static END: AtomicUsize = AtomicUsize::new(0);
        let (listed, freed) = LISTED.get();
        LISTED.set((listed + 1, freed));
        // SAFETY: valid for writing the number.
        unsafe { *count = 0 };
        END.as_ptr().cast()
    }

    unsafe extern "C" fn free_nothing(_: *mut *mut abi::Device) {
        let (listed, freed) = LISTED.get();
        LISTED.set((listed, freed + 1));
    }

    /// A library without devices; the kernel lists those in a folder.
    fn devices(folder: &Path) -> Devices {
        Devices {
            library: Arc::new(Verbs {
                get_device_list: list_none,
                free_device_list: free_nothing,
                ..Verbs::aborting()
            }),
            folder: folder.into(),
            open: Mutex::default(),
        }
    }

    const NAMES: [&CStr; 2] = [c"mlx5_0", c"rxe0"];
    static DEVICES_RAW: [u8; 2] = [0, 1];

    unsafe extern "C" fn list_two(count: *mut c_int) -> *mut *mut abi::Device {
        // SAFETY: valid for writing the number.
        unsafe { *count = 2 };
        let entries = DEVICES_RAW
            .each_ref()
            .map(|raw| std::ptr::from_ref(raw).cast_mut().cast());
        Box::leak(Box::new(entries)).as_mut_ptr()
    }

    fn position(raw: *mut abi::Device) -> usize {
        // SAFETY: an element of `DEVICES_RAW`.
        usize::from(unsafe { *raw.cast::<u8>() })
    }

    unsafe extern "C" fn name_of(raw: *mut abi::Device) -> *const c_char {
        NAMES[position(raw)].as_ptr()
    }

    unsafe extern "C" fn index_of(raw: *mut abi::Device) -> c_int {
        position(raw) as c_int
    }

    unsafe extern "C" fn open_one(_: *mut abi::Device) -> *mut abi::Context {
        let (opened, closed) = OPENED.get();
        OPENED.set((opened + 1, closed));
        let (asynchronous, _) = std::io::pipe().unwrap();
        let context = Box::leak(Box::new(abi::Context::zeroed()));
        context.async_fd = asynchronous.into_raw_fd();
        context
    }

    unsafe extern "C" fn close_one(_: *mut abi::Context) -> c_int {
        let (opened, closed) = OPENED.get();
        OPENED.set((opened, closed + 1));
        0
    }

    #[test]
    fn a_software_device_closes_after_its_last_user_and_a_hardware_device_stays_open() {
        let folder = std::env::temp_dir().join(format!("portolan-held-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("mlx5_0/device")).unwrap();
        std::fs::create_dir_all(folder.join("rxe0")).unwrap();
        let devices = Devices {
            library: Arc::new(Verbs {
                get_device_list: list_two,
                free_device_list: free_nothing,
                get_device_name: name_of,
                get_device_index: index_of,
                open_device: open_one,
                close_device: close_one,
                ..Verbs::aborting()
            }),
            folder: folder.clone(),
            open: Mutex::default(),
        };
        let both = devices.current().unwrap();
        assert_eq!((both.len(), OPENED.get()), (2, (2, 0)));
        let again = devices.current().unwrap();
        assert!(
            both.iter()
                .zip(&again)
                .all(|(one, other)| Arc::ptr_eq(one, other))
        );
        let rxe0 = both[1].instance();
        assert_ne!(rxe0, both[0].instance());
        drop((both, again));
        assert_eq!(OPENED.get(), (2, 1), "rxe0 has no user");
        let (hardware, used) = (devices.find(0).unwrap(), devices.find(1).unwrap().unwrap());
        assert!(hardware.is_some_and(|device| device.name() == "mlx5_0"));
        assert_eq!((used.name(), OPENED.get()), ("rxe0", (3, 1)));
        assert_ne!(used.instance(), rxe0, "the device must be opened again");
        assert!(Arc::ptr_eq(&used, &devices.find(1).unwrap().unwrap()));
        drop(used);
        assert_eq!(OPENED.get(), (3, 2));
        for _ in 0..3 {
            assert!(devices.find(1).unwrap().is_some());
        }
        assert_eq!(devices.open.lock().devices.len(), 2, "none of the closed");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_list_made_ahead_is_used_first_unless_the_kernels_list_has_changed() {
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
            assert_eq!(LISTED.get(), (listed, listed - 1), "the last is kept");
            drop(devices);
            assert_eq!(LISTED.get(), (listed, listed));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_library_lists_devices_again_only_if_the_kernels_list_changed_or_some_were_unavailable() {
        let folder = std::env::temp_dir().join(format!("portolan-devices-{}", std::process::id()));
        let devices = devices(&folder);
        let times_listed = |looks: usize| {
            let (before, _) = LISTED.get();
            (0..looks).for_each(|_| assert!(devices.current().unwrap().is_empty()));
            LISTED.get().0 - before
        };
        assert_eq!(times_listed(2), 2, "without the kernel's list");
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(times_listed(3), 1, "an empty list is complete");
        std::fs::write(folder.join("rxe0"), "").unwrap();
        assert_eq!(times_listed(3), 3, "the device cannot be opened");
        std::fs::remove_file(folder.join("rxe0")).unwrap();
        assert_eq!(times_listed(3), 1, "the device is gone");
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(times_listed(1), 1);
    }

    #[test]
    fn a_library_of_our_own_is_refused_and_one_that_is_absent_is_named() {
        let error = Devices::load(c"libportolan-none.so.9").unwrap_err();
        assert!(matches!(error.cause, Cause::UnusableLibrary { .. }));
        assert!(error.to_string().contains("libportolan-none.so.9"));

        let stem = std::env::temp_dir().join(format!("portolan-ours-{}", std::process::id()));
        let (from, to) = (stem.with_extension("c"), stem.with_extension("so"));
        std::fs::write(&from, "int portolan_verbs;").unwrap();
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).args([&to, &from]);
        assert!(compiler.status().unwrap().success());
        let name = CString::new(to.as_os_str().as_bytes()).unwrap();
        let text = Devices::load(&name).unwrap_err().to_string();
        std::fs::remove_file(from).unwrap();
        std::fs::remove_file(to).unwrap();
        assert!(text.contains("Portolan's own"), "{text}");
    }
}

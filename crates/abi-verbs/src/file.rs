//! The equivalent of the kernel's file of an open device (`cmd_fd`): contexts imported by a copy of its descriptor
//! share its domains and regions.

#![allow(unsafe_code, reason = "descriptors of C programs")]

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use portolan_port_sharing::room::with_room;
use portolan_provider::traits::{Mr, Pd};
use portolan_threads::ProcessCell;
use portolan_threads::lock::{Mutex, MutexGuard};
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::io::Errno;

use crate::guard::Result;
use crate::layout::Device;
use crate::object::{Held, Users};

/// What the file of a context is called. Nothing is written to it: that may end the process (`RLIMIT_FSIZE`, setrlimit(2)).
const NAME: &str = "portolan-device";

/// State that the contexts of one file share.
pub(crate) struct File {
    /// Device and inode number of the file, which are the same for all copies of its descriptor.
    name: (u64, u64),
    device: Listed,
    pub(crate) pds: Handles<Domain>,
    pub(crate) mrs: Handles<Region>,
}

/// The file's device, which is never freed.
struct Listed(*mut Device);

// SAFETY: the memory at this address is never written again.
unsafe impl Send for Listed {}
// SAFETY: as above.
unsafe impl Sync for Listed {}

/// A protection domain, and the number of objects in it.
pub(crate) struct Domain {
    pub(crate) pd: Arc<dyn Pd>,
    pub(crate) users: Users,
}

/// A memory region.
pub(crate) struct Region {
    pub(crate) mr: Arc<dyn Mr>,
    pub(crate) state: Mutex<RegionState>,
}

/// The properties of a region that can change.
pub(crate) struct RegionState {
    pub(crate) pd: Held,
    /// Bytes.
    pub(crate) length: usize,
}

/// Objects by handle.
pub(crate) struct Handles<T>(Mutex<BTreeMap<u32, Arc<T>>>);

impl<T> Handles<T> {
    fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub(crate) fn insert(&self, handle: u32, object: &Arc<T>) {
        self.0.lock().insert(handle, Arc::clone(object));
    }

    /// # Errors
    /// `ENOENT` if it does not exist.
    pub(crate) fn find(&self, handle: u32) -> Result<Arc<T>> {
        self.0.lock().get(&handle).cloned().ok_or(Errno::NOENT)
    }

    /// Destroys an object for all contexts of the file, if `end` succeeds.
    ///
    /// # Errors
    /// `ENOENT` if another context has destroyed it; errors of `end`.
    pub(crate) fn end(&self, handle: u32, end: impl FnOnce(&T) -> Result<()>) -> Result<()> {
        let mut objects = self.0.lock();
        end(objects.get(&handle).ok_or(Errno::NOENT)?)?;
        objects.remove(&handle);
        Ok(())
    }
}

/// The files with open contexts; closed ones are removed when the next is opened.
fn open() -> MutexGuard<'static, Vec<Weak<File>>> {
    static OPEN: ProcessCell<Mutex<Vec<Weak<File>>>> = ProcessCell::new();
    OPEN.get_or_make(Mutex::default).lock()
}

/// Whether a descriptor is of a file that this library made in some process, by its name (memfd_create(2)).
fn is_of_a_context(descriptor: c_int) -> bool {
    let name = std::fs::read_link(format!("/proc/self/fd/{descriptor}"));
    name.is_ok_and(|name| name.as_os_str() == &*format!("/memfd:{NAME} (deleted)"))
}

impl File {
    /// Creates a file for a context, and its descriptor.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub(crate) fn create(device: *mut Device) -> Result<(Arc<Self>, OwnedFd)> {
        let fd = with_room(|| memfd_create(NAME, MemfdFlags::CLOEXEC))?;
        let stat = fstat(&fd)?;
        let file = Arc::new(Self {
            name: (stat.st_dev, stat.st_ino),
            device: Listed(device),
            pds: Handles::new(),
            mrs: Handles::new(),
        });
        let mut open = open();
        open.retain(|file| file.strong_count() > 0);
        open.push(Arc::downgrade(&file));
        Ok((file, fd))
    }

    /// The file of a descriptor.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` for a descriptor that is not a context's; `EOPNOTSUPP` for another process's, whose memory and
    /// queues are not accessible here; `ENODEV` if all its contexts are closed.
    ///
    /// # Safety
    /// The descriptor stays open during the call.
    pub(crate) unsafe fn of(descriptor: c_int) -> Result<Arc<Self>> {
        if descriptor < 0 {
            return Err(Errno::BADF);
        }
        // SAFETY: it is not a reserved number. The caller keeps it open; a closed descriptor would be an error of the
        // calls.
        let fd = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let stat = fstat(fd)?;
        let name = (stat.st_dev, stat.st_ino);
        let open = open();
        let mut found = open.iter().filter_map(Weak::upgrade);
        if let Some(file) = found.find(|file| file.name == name) {
            return Ok(file);
        }
        match is_of_a_context(descriptor) {
            true => Err(Errno::OPNOTSUPP),
            false => Err(Errno::INVAL),
        }
    }

    /// The device.
    pub(crate) fn device(&self) -> *mut Device {
        self.device.0
    }
}

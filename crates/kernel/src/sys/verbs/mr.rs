//! Memory regions.

use portolan_threads::lock::Mutex;
use std::any::Any;
use std::ffi::c_void;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::sync::Arc;

use portolan_abi_layout as abi;
use portolan_provider::error::errno::{EBUSY, EFAULT, EINVAL};
use portolan_provider::traits::Mr;
use portolan_provider::verbs::Access;
use portolan_provider::{Cause, Error, Result, Step};

use super::domain::Domain;
use super::mw::dealloc;
use super::outcome::{check, made};

/// A memory region of the kernel's.
#[derive(Debug)]
pub(super) struct KernelMr {
    /// `None` once it is deregistered.
    raw: Mutex<Option<NonNull<abi::Mr>>>,
    lkey: u32,
    rkey: u32,
    pd: Arc<Domain>,
}

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for KernelMr {}
// SAFETY: as above.
unsafe impl Sync for KernelMr {}

impl KernelMr {
    /// # Safety
    /// That of `Pd::register`.
    pub(super) unsafe fn register(
        pd: Arc<Domain>,
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
        // SAFETY: the caller promises that the memory stays mapped and that the device may use it.
        let raw = unsafe { (device.library.reg_mr)(pd.raw.as_ptr(), start, bytes, access) };
        let raw = made(step, "ibv_reg_mr", raw).map_err(|error| match error.cause {
            Cause::Os { errno: EFAULT, .. } => {
                let cause = Cause::BadMemory { addr, len: length };
                device.explain(Error::new(step, cause))
            }
            _ => device.explain(error),
        })?;
        // SAFETY: the region exists and no other thread knows it yet.
        let (lkey, rkey) = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        device.regions.lock().insert(lkey, raw);
        Ok(Self {
            raw: Mutex::new(Some(raw)),
            lkey,
            rkey,
            pd,
        })
    }

    /// Deregisters, once.
    fn end(&self, with_windows: WithWindows) -> Result<()> {
        let device = &self.pd.device;
        device.check(Step::RegisterMemory)?;
        let mut raw = self.raw.lock();
        let Some(region) = *raw else {
            return Ok(());
        };
        // Hold both locks during the call: another region may get the key right after, and no window may be bound
        // meanwhile.
        let mut windows = device.windows.lock();
        let mut regions = device.regions.lock();
        let deregister = || {
            // SAFETY: the region exists, and it was removed from the table, so no other thread finds it.
            let code = unsafe { (device.library.dereg_mr)(region.as_ptr()) };
            // This fails for a removed device, which may still write to the memory; so the memory must stay.
            check(Step::RegisterMemory, "ibv_dereg_mr", code).map_err(|error| device.explain(error))
        };
        let bound = windows.count_on(self.lkey);
        match deregister() {
            Ok(()) => {}
            Err(error) if bound == 0 || !is_refusal(&error) => return Err(error),
            Err(_) => match with_windows {
                WithWindows::Close => {
                    // SAFETY: `close_on` removes it from the locked table before it is deallocated.
                    let dealloc = |window: &_| unsafe { dealloc(device, window) };
                    windows.close_on(self.lkey, dealloc, deregister)?;
                }
                WithWindows::Refuse => return Err(device.explain(in_use(bound as u64))),
            },
        }
        windows.forget_region(self.lkey);
        regions.remove(&self.lkey);
        *raw = None;
        Ok(())
    }
}

/// How to treat windows that are bound to a region being deregistered.
#[derive(Clone, Copy, Debug)]
enum WithWindows {
    /// Refuse to deregister.
    Refuse,
    /// Deallocate the windows, too.
    Close,
}

/// Whether the kernel may have refused because windows are bound to the region. The errno is ambiguous.
fn is_refusal(error: &Error) -> bool {
    [EINVAL, EBUSY].contains(&error.errno())
}

fn in_use(count: u64) -> Error {
    let (what, by) = ("memory region", "memory windows");
    Error::new(Step::RegisterMemory, Cause::InUse { what, by, count })
}

impl portolan_provider::sealed::Sealed for KernelMr {}

impl Mr for KernelMr {
    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn rkey(&self) -> u32 {
        self.rkey
    }

    fn deregister(&self) -> Result<()> {
        self.end(WithWindows::Refuse)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for KernelMr {
    fn drop(&mut self) {
        if self.pd.device.is_own()
            && let Err(error) = self.end(WithWindows::Close)
        {
            tracing::warn!(%error, "memory region stays registered");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::os::fd::IntoRawFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use portolan_abi_layout::Verbs;
    use portolan_provider::error::errno::EIO;
    use portolan_provider::traits::Pd;

    use super::*;
    use crate::sys::fork::ForkGuard;
    use crate::sys::verbs::open::OpenDevice;
    use crate::sys::verbs::pd::KernelPd;

    /// This test's only device is removed: like uverbs, it refuses every verb.
    static REMOVED: AtomicBool = AtomicBool::new(false);

    fn outcome() -> c_int {
        if REMOVED.load(Ordering::Relaxed) {
            EIO
        } else {
            0
        }
    }

    unsafe extern "C" fn query_device(_: *mut abi::Context, _: *mut abi::DeviceAttr) -> c_int {
        outcome()
    }

    unsafe extern "C" fn query_gid_table(
        _: *mut abi::Context,
        _: *mut abi::GidEntry,
        _: usize,
        _: u32,
        _: usize,
    ) -> isize {
        0
    }

    unsafe extern "C" fn close_device(_: *mut abi::Context) -> c_int {
        0
    }

    unsafe extern "C" fn alloc_pd(_: *mut abi::Context) -> *mut abi::Pd {
        NonNull::dangling().as_ptr()
    }

    unsafe extern "C" fn dealloc_pd(_: *mut abi::Pd) -> c_int {
        outcome()
    }

    unsafe extern "C" fn reg_mr(
        _: *mut abi::Pd,
        _: *mut c_void,
        _: usize,
        _: c_int,
    ) -> *mut abi::Mr {
        Box::leak(Box::new(abi::Mr::zeroed()))
    }

    unsafe extern "C" fn dereg_mr(_: *mut abi::Mr) -> c_int {
        outcome()
    }

    fn device() -> Arc<OpenDevice> {
        let library = Verbs {
            query_device,
            query_gid_table,
            close_device,
            alloc_pd,
            dealloc_pd,
            reg_mr,
            dereg_mr,
            ..Verbs::aborting()
        };
        let (asynchronous, _) = std::io::pipe().unwrap();
        let context = Box::leak(Box::new(abi::Context::zeroed()));
        context.async_fd = asynchronous.into_raw_fd();
        let fork = ForkGuard::new();
        OpenDevice::of_context(&Arc::new(library), fork, context, "gone0".into(), 0).unwrap()
    }

    #[test]
    fn a_removed_devices_region_is_kept_while_its_other_objects_are_destroyed() {
        let device = device();
        let pd = KernelPd::new(device.clone()).unwrap();
        let memory = [0u8; 64];
        let addr = memory.as_ptr().expose_provenance() as u64;
        // SAFETY: no device can access the memory.
        let region = unsafe { pd.register(addr, 64, Access::LOCAL_WRITE) }.unwrap();
        let destroyed = || device.ended(Step::CreateQp, "ibv_destroy_qp", EIO);
        destroyed().unwrap_err();
        REMOVED.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            let error = region.deregister().unwrap_err();
            assert_eq!(error.cause, Cause::DeviceRemoved);
            assert_eq!(error.context.device.as_deref(), Some("gone0"));
        }
        destroyed().unwrap();
        REMOVED.store(false, Ordering::Relaxed);
        region.deregister().unwrap();
    }
}

//! Open devices.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::os::fd::AsRawFd;
use std::sync::Arc;

use portolan_provider::traits::Device as ProviderDevice;
use portolan_roce::io::{AsyncListener, SoftDevice};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::guard::{Result, errno_of};
use crate::layout::{ABI_IS_EXTENDED, Context, Device, VerbsContext};
use crate::object::{Kind, end, make, own};
use crate::raisers::Raisers;
use crate::tables;

/// An open device.
pub(crate) struct OwnContext {
    pub(crate) device: Arc<dyn ProviderDevice>,
    pub(crate) listener: Arc<AsyncListener>,
    pub(crate) raisers: Arc<Raisers>,
}

impl Kind for Context {
    type Whole = VerbsContext;
    type Own = OwnContext;
    const OFFSET: usize = std::mem::offset_of!(VerbsContext, context);
}

/// Opens a device.
///
/// # Errors
/// `ENODEV` if it is gone; those of the provider's start.
///
/// # Safety
/// The device is of a list of ours.
pub(crate) unsafe fn open(device: *mut Device) -> Result<*mut Context> {
    // SAFETY: the caller keeps `device` until this is done.
    let opened = unsafe { own(device) }?.open()?;
    let soft = opened.as_any().downcast_ref::<SoftDevice>();
    let soft = soft.ok_or(Errno::NODEV)?;
    let raisers = Arc::new(Raisers::default());
    let of = Arc::clone(&raisers);
    let listener = soft.listen_async(move |event| of.raises(event));
    let listener = listener.map_err(|error| errno_of(&error))?;
    let fd = listener.fd().map_err(|error| errno_of(&error))?;
    // Its flag says from here on whether the program wants to wait.
    fcntl_setfl(fd, fcntl_getfl(fd)? - OFlags::NONBLOCK)?;
    let async_fd = fd.as_raw_fd();
    let context = Context {
        device,
        ops: tables::context_ops(),
        // There is no file of the kernel's.
        cmd_fd: -1,
        async_fd,
        num_comp_vectors: 1,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        abi_compat: std::ptr::without_provenance_mut(ABI_IS_EXTENDED),
    };
    let own = OwnContext {
        device: opened,
        listener,
        raisers,
    };
    make(tables::verbs_context(context), own)
}

/// Closes a device. What was made of it should be gone; what is not works on until its own end.
///
/// # Errors
/// `EINVAL` if it was closed before.
///
/// # Safety
/// Nobody uses the context itself any more.
pub(crate) unsafe fn close(context: *mut Context) -> Result<()> {
    let ending = end(context)?;
    // SAFETY: nobody uses it but the caller, who closes it.
    unsafe { ending.free() };
    Ok(())
}

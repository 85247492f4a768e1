//! Open devices.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use portolan_provider::traits::Device as ProviderDevice;
use portolan_roce::io::{AsyncListener, SoftDevice};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::file::File;
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
    pub(crate) file: Arc<File>,
    /// `cmd_fd` of the structure.
    _cmd_fd: OwnedFd,
}

impl Kind for Context {
    type Whole = VerbsContext;
    type Own = OwnContext;
    const OFFSET: usize = std::mem::offset_of!(VerbsContext, context);
}

/// Opens a device.
///
/// # Errors
/// `ENODEV` if it was removed; errors of starting the provider.
///
/// # Safety
/// The device is from one of our lists.
pub(crate) unsafe fn open(device: *mut Device) -> Result<*mut Context> {
    // SAFETY: the caller keeps `device` alive during this call.
    let opened = unsafe { own(device) }?.open()?;
    let events = Events::of(&opened)?;
    let (file, cmd_fd) = File::create(device)?;
    Ok(make_context(device, opened, events, file, cmd_fd))
}

/// Opens the device of another context again, sharing that context's domains and regions.
///
/// # Errors
/// Errors of [`File::of`] and [`open`].
///
/// # Safety
/// The descriptor is the program's, and belongs to the context after success.
pub(crate) unsafe fn import(descriptor: c_int) -> Result<*mut Context> {
    // SAFETY: the program passes ownership.
    let file = unsafe { File::of(descriptor) }?;
    let device = file.device();
    // SAFETY: a device that was opened is never freed.
    let opened = unsafe { own(device) }?.open()?;
    let events = Events::of(&opened)?;
    // SAFETY: as the caller promises. Nothing fails after this.
    let cmd_fd = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Ok(make_context(device, opened, events, file, cmd_fd))
}

/// Where a context gets its asynchronous events.
struct Events {
    listener: Arc<AsyncListener>,
    raisers: Arc<Raisers>,
    /// The listener's descriptor.
    fd: c_int,
}

impl Events {
    fn of(opened: &Arc<dyn ProviderDevice>) -> Result<Self> {
        let soft = opened.as_any().downcast_ref::<SoftDevice>();
        let soft = soft.ok_or(Errno::NODEV)?;
        let raisers = Arc::new(Raisers::default());
        let of = Arc::clone(&raisers);
        let listener = soft.listen_async(move |event| of.raises(event));
        let listener = listener.map_err(|error| errno_of(&error))?;
        let fd = listener.fd().map_err(|error| errno_of(&error))?;
        // From here on the flag says whether the program wants to block.
        fcntl_setfl(fd, fcntl_getfl(fd)? - OFlags::NONBLOCK)?;
        let fd = fd.as_raw_fd();
        Ok(Self {
            listener,
            raisers,
            fd,
        })
    }
}

fn make_context(
    device: *mut Device,
    opened: Arc<dyn ProviderDevice>,
    events: Events,
    file: Arc<File>,
    cmd_fd: OwnedFd,
) -> *mut Context {
    let context = Context {
        device,
        ops: tables::context_ops(),
        cmd_fd: cmd_fd.as_raw_fd(),
        async_fd: events.fd,
        num_comp_vectors: 1,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        abi_compat: std::ptr::without_provenance_mut(ABI_IS_EXTENDED),
    };
    let own = OwnContext {
        device: opened,
        listener: events.listener,
        raisers: events.raisers,
        file,
        _cmd_fd: cmd_fd,
    };
    make(tables::verbs_context(context), own)
}

/// Closes a device. Objects that still exist remain usable until they are destroyed.
///
/// # Errors
/// `EINVAL` if it is already closed.
///
/// # Safety
/// The context itself is not used afterwards.
pub(crate) unsafe fn close(context: *mut Context) -> Result<()> {
    let ending = end(context)?;
    // SAFETY: only the caller uses it, and it is closed here.
    unsafe { ending.free() };
    Ok(())
}

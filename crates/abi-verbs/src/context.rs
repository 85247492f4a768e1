//! Open devices.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use portolan_provider::traits::Device as ProviderDevice;
use portolan_provider::verbs::AsyncEvent;
use portolan_roce::io::{AsyncListener, SoftDevice};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::guard::{Result, errno_of};
use crate::layout::{ABI_IS_EXTENDED, Context, Cq, Device, Qp, Srq, VerbsContext};
use crate::object::{Kind, free, make, own};
use crate::tables;

/// An open device.
pub(crate) struct OwnContext {
    pub(crate) device: Arc<dyn ProviderDevice>,
    pub(crate) listener: Arc<AsyncListener>,
    pub(crate) raisers: Arc<Raisers>,
}

/// Whose asynchronous events come here.
#[derive(Default)]
pub(crate) struct Raisers {
    /// By number.
    pub(crate) cqs: Mutex<HashMap<u32, Raiser<Cq>>>,
    /// By number.
    pub(crate) qps: Mutex<HashMap<u32, Raiser<Qp>>>,
    /// By number.
    pub(crate) srqs: Mutex<HashMap<u32, Raiser<Srq>>>,
}

/// The address of an object that lives for as long as it is known here.
pub(crate) struct Raiser<C>(pub(crate) *mut C);

// SAFETY: an address; whoever follows it holds the lock that its end takes.
unsafe impl<C> Send for Raiser<C> {}

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
    // SAFETY: as the caller promises.
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
    Ok(make(tables::verbs_context(context), own))
}

/// Closes a device. What was made of it should be gone; what is not works on until its own end.
///
/// # Safety
/// One of [`open`], for the last time.
pub(crate) unsafe fn close(context: *mut Context) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        own(context)?;
        free(context);
    }
    Ok(())
}

impl Raisers {
    /// Whether an event is of an object of this context, or of the port or device, which concerns all.
    fn raises(&self, event: &AsyncEvent) -> bool {
        use AsyncEvent::*;
        match event {
            QpFatal(qpn)
            | QpReqErr(qpn)
            | QpAccessErr(qpn)
            | CommEst(qpn)
            | SqDrained(qpn)
            | QpLastWqeReached(qpn) => crate::lock(&self.qps).contains_key(&qpn.value()),
            SrqLimitReached(number) => crate::lock(&self.srqs).contains_key(&number.0),
            CqErr(number) => crate::lock(&self.cqs).contains_key(&number.0),
            PortActive(_) | PortErr(_) | GidChange(_) | DeviceFatal => true,
            _ => false,
        }
    }
}

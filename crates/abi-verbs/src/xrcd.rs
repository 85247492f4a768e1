//! XRC domains, and their receiving queue pairs.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use portolan_provider::traits::{Qp as ProviderQp, Xrcd as ProviderXrcd};
use portolan_threads::ProcessCell;
use portolan_threads::lock::Mutex;
use rustix::fs::fstat;
use rustix::io::Errno;

use crate::guard::{Result, errno_of, number, pointer};
use crate::layout::{Context, XRCD_INIT_ATTR_FD, XRCD_INIT_ATTR_OFLAGS, Xrcd, XrcdInitAttr};
use crate::object::{Kind, Users, end, make, own};
use crate::raisers::Raisers;

/// A context's XRC domain.
pub(crate) struct OwnXrcd {
    pub(crate) domain: Arc<XrcDomain>,
    /// Objects created through this structure of the domain.
    pub(crate) users: Users,
    /// The context's; the context may be closed first.
    pub(crate) raisers: Arc<Raisers>,
}

impl Kind for Xrcd {
    type Whole = Self;
    type Own = OwnXrcd;
}

/// A domain, shared by all that open it by the same file.
pub(crate) struct XrcDomain {
    pub(crate) xrcd: Arc<dyn ProviderXrcd>,
    /// The receiving queue pairs, by number.
    qps: Mutex<BTreeMap<u32, SharedQp>>,
}

/// A queue pair, and the number of its structures.
struct SharedQp {
    qp: Arc<dyn ProviderQp>,
    opened: u32,
}

impl XrcDomain {
    fn open(context: *mut Context) -> Result<Arc<Self>> {
        // SAFETY: the program's context.
        let opened = unsafe { own(context) }?.device.open_xrcd();
        Ok(Arc::new(Self {
            xrcd: opened.map_err(|error| errno_of(&error))?,
            qps: Mutex::default(),
        }))
    }

    /// Creates a receiving queue pair.
    pub(crate) fn create_qp(&self) -> Result<Arc<dyn ProviderQp>> {
        let qp = self.xrcd.create_qp().map_err(|error| errno_of(&error))?;
        let shared = SharedQp {
            qp: Arc::clone(&qp),
            opened: 1,
        };
        self.qps.lock().insert(qp.qpn().value(), shared);
        Ok(qp)
    }

    /// Adds a structure for a queue pair of the domain.
    ///
    /// # Errors
    /// `EINVAL` if no queue pair has the number.
    pub(crate) fn open_qp(&self, qp_num: u32) -> Result<Arc<dyn ProviderQp>> {
        let mut qps = self.qps.lock();
        let shared = qps.get_mut(&qp_num).ok_or(Errno::INVAL)?;
        shared.opened += 1;
        Ok(Arc::clone(&shared.qp))
    }

    /// Removes a structure of a queue pair; the last one destroys the queue pair.
    pub(crate) fn close_qp(&self, qp_num: u32) -> Result<()> {
        let mut qps = self.qps.lock();
        let shared = qps.get_mut(&qp_num).ok_or(Errno::INVAL)?;
        if shared.opened == 1 {
            shared.qp.destroy().map_err(|error| errno_of(&error))?;
            qps.remove(&qp_num);
        } else {
            shared.opened -= 1;
        }
        Ok(())
    }
}

/// The key of a domain: the number of its device, and the file that it is opened by.
type Name = (u32, u64, u64);

/// The domains that have names.
static NAMED: ProcessCell<Mutex<BTreeMap<Name, Weak<XrcDomain>>>> = ProcessCell::new();

/// `open_xrcd` of the table.
pub(crate) unsafe extern "C" fn open(context: *mut Context, attr: *mut XrcdInitAttr) -> *mut Xrcd {
    pointer(|| {
        // SAFETY: the program's structure.
        let attr = unsafe { attr.as_ref() }.ok_or(Errno::INVAL)?;
        if attr.comp_mask != XRCD_INIT_ATTR_FD | XRCD_INIT_ATTR_OFLAGS {
            return Err(Errno::INVAL);
        }
        let domain = match attr.fd {
            -1 => XrcDomain::open(context)?,
            // SAFETY: the program's context.
            fd => unsafe { open_named(context, fd, attr.oflags) }?,
        };
        // SAFETY: the program's context.
        let raisers = Arc::clone(unsafe { &own(context)?.raisers });
        let users = Users::default();
        let own_xrcd = OwnXrcd {
            domain,
            users,
            raisers,
        };
        Ok(make(Xrcd { context }, own_xrcd))
    })
}

/// The domain of a file.
///
/// # Errors
/// `EBADF`; as in the kernel, `EAGAIN` if it does not exist and `O_CREAT` is not given, `EINVAL` if it exists and
/// `O_EXCL` is given.
///
/// # Safety
/// The context is open, and the descriptor stays open during the call.
unsafe fn open_named(context: *mut Context, fd: c_int, oflags: c_int) -> Result<Arc<XrcDomain>> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: it is not a reserved number; a closed descriptor is an error of the call.
    let stat = fstat(unsafe { BorrowedFd::borrow_raw(fd) })?;
    // SAFETY: the caller keeps `context` alive during this call.
    let index = unsafe { own(context) }?.device.index();
    let name = (index, stat.st_dev, stat.st_ino);
    let mut named = NAMED.get_or_make(Mutex::default).lock();
    named.retain(|_, domain| domain.strong_count() > 0);
    match named.get(&name).and_then(Weak::upgrade) {
        Some(_) if oflags & libc::O_EXCL != 0 => Err(Errno::INVAL),
        Some(domain) => Ok(domain),
        None if oflags & libc::O_CREAT == 0 => Err(Errno::AGAIN),
        None => {
            let domain = XrcDomain::open(context)?;
            named.insert(name, Arc::downgrade(&domain));
            Ok(domain)
        }
    }
}

/// `close_xrcd` of the table.
pub(crate) unsafe extern "C" fn close(xrcd: *mut Xrcd) -> c_int {
    number(|| {
        let ending = end(xrcd)?;
        ending.own().users.check_none()?;
        // SAFETY: only the program uses it, and it is destroyed here.
        unsafe { ending.free() };
        Ok(())
    })
}

//! Protection domains.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ops::Deref;
use std::sync::Arc;

use crate::file::{Domain, File};
use crate::guard::{Result, errno_of};
use crate::layout::{Context, Pd};
use crate::object::{Kind, Users, end, make, next_handle, own};
use crate::raisers::Raisers;

/// A context's protection domain.
pub(crate) struct OwnPd {
    domain: Arc<Domain>,
    /// The context's, like the next field; the context may be closed before the domain's objects are destroyed.
    pub(crate) file: Arc<File>,
    pub(crate) raisers: Arc<Raisers>,
}

impl Deref for OwnPd {
    type Target = Domain;

    fn deref(&self) -> &Domain {
        &self.domain
    }
}

impl Kind for Pd {
    type Whole = Self;
    type Own = OwnPd;
}

/// # Safety
/// The context is open.
pub(crate) unsafe fn alloc(context: *mut Context) -> Result<*mut Pd> {
    // SAFETY: the caller keeps `context` alive during this call.
    let own_context = unsafe { own(context) }?;
    let pd = own_context.device.alloc_pd();
    let pd = pd.map_err(|error| errno_of(&error))?;
    let handle = next_handle();
    let users = Users::default();
    let domain = Arc::new(Domain { pd, users });
    own_context.file.pds.insert(handle, &domain);
    // SAFETY: as above.
    unsafe { make_pd(context, handle, domain) }
}

/// Creates another structure for a domain of the context's file.
///
/// # Errors
/// `ENOENT` if no object has that handle.
///
/// # Safety
/// The context is open.
pub(crate) unsafe fn import(context: *mut Context, handle: u32) -> Result<*mut Pd> {
    // SAFETY: the caller keeps `context` alive during this call.
    let domain = unsafe { own(context) }?.file.pds.find(handle)?;
    // SAFETY: as above.
    unsafe { make_pd(context, handle, domain) }
}

/// # Safety
/// The context is open.
unsafe fn make_pd(context: *mut Context, handle: u32, domain: Arc<Domain>) -> Result<*mut Pd> {
    // SAFETY: the caller keeps `context` alive during this call.
    let own_context = unsafe { own(context) }?;
    let own_pd = OwnPd {
        domain,
        file: Arc::clone(&own_context.file),
        raisers: Arc::clone(&own_context.raisers),
    };
    Ok(make(Pd { context, handle }, own_pd))
}

/// # Errors
/// `EBUSY` while it contains objects; `EINVAL` if it is already destroyed, `ENOENT` if it was destroyed through another
/// of its structures.
///
/// # Safety
/// After success it is not used.
pub(crate) unsafe fn dealloc(pd: *mut Pd) -> Result<()> {
    let ending = end(pd)?;
    // SAFETY: it is our structure and not freed yet.
    let handle = unsafe { (*pd).handle };
    let check = |domain: &Domain| domain.users.check_none();
    ending.own().file.pds.end(handle, check)?;
    // SAFETY: only the caller uses it, and it is destroyed here.
    unsafe { ending.free() };
    Ok(())
}

/// Destroys the structure, but not the domain.
///
/// # Errors
/// `EINVAL` if it is already destroyed.
///
/// # Safety
/// The structure is not used afterwards.
pub(crate) unsafe fn unimport(pd: *mut Pd) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe { end(pd)?.free() };
    Ok(())
}

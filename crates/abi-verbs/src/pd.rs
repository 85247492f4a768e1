//! Protection domains.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::sync::Arc;

use portolan_provider::traits::Pd as ProviderPd;

use crate::guard::{Result, errno_of};
use crate::layout::{Context, Pd};
use crate::object::{Kind, Users, end, make, next_handle, own};
use crate::raisers::Raisers;

/// A protection domain.
pub(crate) struct OwnPd {
    pub(crate) pd: Arc<dyn ProviderPd>,
    pub(crate) users: Users,
    /// The context's, which may be closed before the domain's objects end.
    pub(crate) raisers: Arc<Raisers>,
}

impl Kind for Pd {
    type Whole = Self;
    type Own = OwnPd;
}

/// # Safety
/// The context is open.
pub(crate) unsafe fn alloc(context: *mut Context) -> Result<*mut Pd> {
    // SAFETY: the caller keeps `context` until this is done.
    let own_context = unsafe { own(context) }?;
    let pd = own_context.device.alloc_pd();
    let pd = pd.map_err(|error| errno_of(&error))?;
    let raisers = Arc::clone(&own_context.raisers);
    let handle = next_handle();
    let users = Users::default();
    let own_pd = OwnPd { pd, users, raisers };
    make(Pd { context, handle }, own_pd)
}

/// # Errors
/// `EBUSY` while something is in it; `EINVAL` if it ended before.
///
/// # Safety
/// Nobody uses it any more, if it succeeds.
pub(crate) unsafe fn dealloc(pd: *mut Pd) -> Result<()> {
    let ending = end(pd)?;
    ending.own().users.check_none()?;
    // SAFETY: nobody uses it but the caller, who ends it.
    unsafe { ending.free() };
    Ok(())
}

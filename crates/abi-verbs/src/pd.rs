//! Protection domains.

use std::sync::Arc;

use portolan_provider::traits::Pd as ProviderPd;

use crate::context::Raisers;
use crate::guard::{Result, errno_of};
use crate::layout::{Context, Pd};
use crate::object::{Kind, Users, free, make, next_handle, own};

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
    // SAFETY: as the caller promises.
    let own_context = unsafe { own(context) }?;
    let pd = own_context.device.alloc_pd();
    let pd = pd.map_err(|error| errno_of(&error))?;
    let raisers = Arc::clone(&own_context.raisers);
    let handle = next_handle();
    let users = Users::default();
    let own_pd = OwnPd { pd, users, raisers };
    Ok(make(Pd { context, handle }, own_pd))
}

/// # Errors
/// `EBUSY` while something is in it.
///
/// # Safety
/// One of [`alloc`], for the last time if it succeeds.
pub(crate) unsafe fn dealloc(pd: *mut Pd) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        own(pd)?.users.check_none()?;
        free(pd);
    }
    Ok(())
}

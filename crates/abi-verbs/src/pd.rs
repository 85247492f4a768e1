//! Protection domains.

use std::sync::Arc;

use portolan_provider::traits::Pd as ProviderPd;

use crate::guard::{Result, errno_of};
use crate::layout::{Context, Pd};
use crate::object::{Kind, Users, free, make, next_handle, own};

/// A protection domain.
pub(crate) struct OwnPd {
    pub(crate) pd: Arc<dyn ProviderPd>,
    pub(crate) users: Users,
}

impl Kind for Pd {
    type Whole = Self;
    type Own = OwnPd;
}

/// # Safety
/// The context is open.
pub(crate) unsafe fn alloc(context: *mut Context) -> Result<*mut Pd> {
    // SAFETY: as the caller promises.
    let pd = unsafe { own(context) }?.device.alloc_pd();
    let pd = pd.map_err(|error| errno_of(&error))?;
    let handle = next_handle();
    let users = Users::default();
    Ok(make(Pd { context, handle }, OwnPd { pd, users }))
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

//! The process's software provider, shared by the devices and the connection manager. A forked child starts its own, because
//! it has none of its parent's threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use portolan_provider::traits::Provider;
use portolan_threads::fork::generation;

use crate::guard::{Result, errno_of};

/// The generation of the process that has started it; 0 is none.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// The software provider; starts it if necessary.
///
/// # Errors
/// Errors of [`portolan::provider::software_provider`]. The reason is printed, because an errno alone says little.
pub(crate) fn provider() -> Result<Arc<dyn Provider>> {
    let provider = portolan::provider::software_provider().map_err(|error| {
        eprintln!("libibverbs (portolan): {error}");
        errno_of(&error)
    })?;
    STARTED.store(generation(), Ordering::Release);
    Ok(provider)
}

/// The software provider, if this process has started it. Listing devices does not start it.
pub(crate) fn started() -> Option<Arc<dyn Provider>> {
    let is_started = STARTED.load(Ordering::Acquire) == generation();
    is_started.then(|| provider().ok()).flatten()
}

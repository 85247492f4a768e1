//! The process's software provider: one, which the devices and the connection manager share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use portolan_provider::traits::Provider;
use rustix::io::Errno;

use crate::guard::{Result, errno_of};

/// The process that has started it; 0 is none.
static STARTED: AtomicU32 = AtomicU32::new(0);

/// The software provider, started if it is not.
///
/// # Errors
/// Those of [`portolan::provider::software_provider`]; the reason is printed, for a number says little of it.
pub(crate) fn provider() -> Result<Arc<dyn Provider>> {
    let provider = portolan::provider::software_provider().map_err(|error| {
        eprintln!("libibverbs (portolan): {error}");
        errno_of(&error)
    })?;
    STARTED.store(std::process::id(), Ordering::Release);
    Ok(provider)
}

/// Before anything is touched that was made of the provider.
///
/// # Errors
/// `EOPNOTSUPP` in a process that was forked off since its parent started the provider.
pub(crate) fn check_process() -> Result<()> {
    match STARTED.load(Ordering::Acquire) {
        0 => Ok(()),
        process if process == std::process::id() => Ok(()),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// The software provider, if this process has started it: who only looks does not.
pub(crate) fn started() -> Option<Arc<dyn Provider>> {
    let is_ours = STARTED.load(Ordering::Acquire) == std::process::id();
    is_ours.then(|| provider().ok()).flatten()
}

//! The process's software provider: one, which the devices and the connection manager share.

use std::sync::Arc;

use portolan_provider::traits::Provider;

use crate::guard::{Result, errno_of};
use crate::process;

/// The software provider, started if it is not.
///
/// # Errors
/// Those of [`portolan::provider::software_provider`]; the reason is printed, for a number says little of it.
pub(crate) fn provider() -> Result<Arc<dyn Provider>> {
    let provider = portolan::provider::software_provider().map_err(|error| {
        eprintln!("libibverbs (portolan): {error}");
        errno_of(&error)
    })?;
    process::own_provider();
    Ok(provider)
}

/// The software provider, if this process has started it. Looking for devices does not start it.
pub(crate) fn started() -> Option<Arc<dyn Provider>> {
    process::has_provider().then(|| provider().ok()).flatten()
}

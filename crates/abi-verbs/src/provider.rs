//! The process's software provider, shared by the devices and the connection manager.

use std::sync::Arc;

use portolan_provider::traits::Provider;

use crate::guard::{Result, errno_of};
use crate::process;

/// The software provider; starts it if necessary.
///
/// # Errors
/// Errors of [`portolan::provider::software_provider`]. The reason is printed, because an errno alone says little.
pub(crate) fn provider() -> Result<Arc<dyn Provider>> {
    let provider = portolan::provider::software_provider().map_err(|error| {
        eprintln!("libibverbs (portolan): {error}");
        errno_of(&error)
    })?;
    process::own_provider();
    Ok(provider)
}

/// The software provider, if this process has started it. Listing devices does not start it.
pub(crate) fn started() -> Option<Arc<dyn Provider>> {
    process::has_provider().then(|| provider().ok()).flatten()
}

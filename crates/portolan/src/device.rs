//! Devices of the process's provider.

use std::sync::{Arc, Mutex, Weak};

use portolan_provider::Result;
use portolan_provider::number_map::NumberMap;
use portolan_provider::traits::{Device, Pd};

use crate::lock;

/// The devices of the process's provider, by index.
///
/// # Errors
/// The provider cannot start.
pub fn devices() -> Result<Vec<Arc<dyn Device>>> {
    crate::provider::default_provider()?.devices()
}

/// The protection domain that the high layer's connections on a device share, so that a buffer
/// serves all of them. It lives as long as something uses it.
pub(crate) fn shared_pd(device: &Arc<dyn Device>) -> Result<Arc<dyn Pd>> {
    /// Keyed by the device's address: a device that comes again is another one. The weak device keeps
    /// the address from being used for it.
    static DOMAINS: Mutex<Option<NumberMap<usize, Entry>>> = Mutex::new(None);
    type Entry = (Weak<dyn Device>, Weak<dyn Pd>);
    let mut domains = lock(&DOMAINS);
    let domains = domains.get_or_insert_default();
    let key = Arc::as_ptr(device).cast::<()>() as usize;
    if let Some(pd) = domains.get(&key).and_then(|(_, pd)| pd.upgrade()) {
        return Ok(pd);
    }
    domains.retain(|_, (_, pd)| pd.strong_count() > 0);
    let pd = device.alloc_pd()?;
    domains.insert(key, (Arc::downgrade(device), Arc::downgrade(&pd)));
    Ok(pd)
}

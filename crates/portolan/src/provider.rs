//! Which provider serves this process.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use portolan_provider::traits::Provider;
use portolan_provider::{Cause, Error, Result, Step};

use crate::lock;
use crate::software::{SoftwareConfig, SoftwareProvider, Tap};

/// The environment variable that pins the provider: `software` or `kernel`.
pub const PROVIDER_ENV: &str = "PORTOLAN_PROVIDER";

/// The process's provider, opened at first use: the software device.
///
/// # Errors
/// `PORTOLAN_PROVIDER` names a provider that this build does not have, or the software device
/// cannot start (UDP port 4791 held by something else, no group membership). A failed start is
/// tried again at the next call.
pub fn default_provider() -> Result<Arc<dyn Provider>> {
    match std::env::var(PROVIDER_ENV).as_deref() {
        Err(_) | Ok("" | "software") => software_provider(),
        Ok(other) => Err(Error::invalid(
            Step::OpenDevice,
            PROVIDER_ENV,
            "software",
            other,
        )),
    }
}

/// The software provider of this process; every call gives the same one.
///
/// # Errors
/// See [`default_provider`].
pub fn software_provider() -> Result<Arc<dyn Provider>> {
    software().map(|provider| provider as Arc<dyn Provider>)
}

/// Shows every packet that the software devices of this process send and take to `tap`, or to
/// nobody.
///
/// # Errors
/// See [`default_provider`].
pub fn set_tap(tap: Option<Arc<dyn Tap>>) -> Result<()> {
    software().map(|provider| provider.set_tap(tap))
}

static SOFTWARE: Mutex<Option<Arc<SoftwareProvider>>> = Mutex::new(None);
/// The process that has or makes the provider; 0 is none.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The process's provider, if it was opened; never opens it.
pub(crate) fn opened_provider() -> Option<Arc<dyn Provider>> {
    // In a forked child the lock may be its parent's for ever.
    if OWNER.load(Ordering::Acquire) != std::process::id() {
        return None;
    }
    lock(&SOFTWARE)
        .clone()
        .map(|provider| provider as Arc<dyn Provider>)
}

fn software() -> Result<Arc<SoftwareProvider>> {
    let pid = std::process::id();
    let owner = OWNER.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire);
    if owner.is_err_and(|owner| owner != pid) {
        // The parent's threads are not here, its queue pairs are not ours, and its lock may have been
        // held when this process was forked off.
        let after_fork = "use in a process forked after the software device was opened";
        return Err(Error::new(Step::OpenDevice, Cause::Unsupported(after_fork)));
    }
    let mut software = lock(&SOFTWARE);
    if let Some(provider) = &*software {
        return Ok(provider.clone());
    }
    let started = SoftwareProvider::start(SoftwareConfig::default());
    let started = started.inspect_err(|_| OWNER.store(0, Ordering::Release))?;
    *software = Some(started.clone());
    OWNER.store(pid, Ordering::Release);
    Ok(started)
}

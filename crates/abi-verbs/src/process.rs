//! The process that started the software provider. Objects created from it belong to that process: forked children have
//! none of its threads, and any lock may have been held at the fork.

use std::sync::atomic::{AtomicU32, Ordering};

use portolan_abi_layout::guard::Result;
use rustix::io::Errno;

/// Its process id; 0 if none.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// This process has started the provider.
pub(crate) fn own_provider() {
    OWNER.store(std::process::id(), Ordering::Release);
}

/// Whether this process has started the provider.
pub(crate) fn has_provider() -> bool {
    OWNER.load(Ordering::Acquire) == std::process::id()
}

/// Must be called before anything that was created from the provider is touched.
///
/// # Errors
/// `EOPNOTSUPP` in a child that was forked after its parent started the provider.
pub(crate) fn check_process() -> Result<()> {
    match OWNER.load(Ordering::Acquire) {
        0 => Ok(()),
        process if process == std::process::id() => Ok(()),
        _ => Err(Errno::OPNOTSUPP),
    }
}

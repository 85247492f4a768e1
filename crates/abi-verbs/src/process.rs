//! The process that has started the software provider. What was made of it is that process's: its children have none of
//! its threads, and any lock may have been held at the fork.

use std::sync::atomic::{AtomicU32, Ordering};

use portolan_abi_layout::guard::Result;
use rustix::io::Errno;

/// Its number; 0 is none.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// This process has started the provider.
pub(crate) fn own_provider() {
    OWNER.store(std::process::id(), Ordering::Release);
}

/// Whether this process has started the provider.
pub(crate) fn has_provider() -> bool {
    OWNER.load(Ordering::Acquire) == std::process::id()
}

/// Before anything is touched that was made of the provider.
///
/// # Errors
/// `EOPNOTSUPP` in a process that was forked off since its parent started the provider.
pub(crate) fn check_process() -> Result<()> {
    match OWNER.load(Ordering::Acquire) {
        0 => Ok(()),
        process if process == std::process::id() => Ok(()),
        _ => Err(Errno::OPNOTSUPP),
    }
}

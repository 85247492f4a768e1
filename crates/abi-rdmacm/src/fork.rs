//! A process that was forked off since the library has software devices: they are its parent's, whose threads are not
//! there, and any lock may have been held at the fork. Over the kernel's devices a child has what it inherited, as with
//! librdmacm.

use std::sync::atomic::{AtomicU32, Ordering};

use portolan_abi_layout::guard::Result;
use rustix::io::Errno;

/// The process that has software devices; 0 is none.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// This process is about to have them. A child of one that has is refused by [`check`].
pub(crate) fn own_devices() {
    let own = std::process::id();
    let _ = OWNER.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire);
}

/// Before anything of the library's is touched.
///
/// # Errors
/// `EOPNOTSUPP` in a process that was forked off since its parent had software devices.
pub(crate) fn check() -> Result<()> {
    match OWNER.load(Ordering::Acquire) {
        0 => Ok(()),
        owner if owner == std::process::id() => Ok(()),
        _ => Err(Errno::OPNOTSUPP),
    }
}

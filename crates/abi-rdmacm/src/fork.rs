//! What a forked child can use of its parent's objects.
//!
//! Over software devices, nothing: the parent's threads do not exist, and any lock may have been held at the fork. A
//! child creates its own channels and ids. Over the kernel's devices, a child can use what it inherited, as with
//! librdmacm.

use once_cell::race::OnceBox;
use portolan_threads::{ProcessCell, fork};
use rustix::io::Errno;

use crate::verbs::rdma_cm;

/// Objects of the process that the library keeps.
pub(crate) struct Known<T: 'static> {
    /// Used over software devices.
    of_process: ProcessCell<T>,
    /// Used over the kernel's devices.
    inherited: OnceBox<T>,
}

impl<T: Default + Send + Sync> Known<T> {
    pub(crate) const fn new() -> Self {
        Self {
            of_process: ProcessCell::new(),
            inherited: OnceBox::new(),
        }
    }

    pub(crate) fn get(&'static self) -> &'static T {
        match has_what_it_inherited() {
            true => self.inherited.get_or_init(Box::default),
            false => self.of_process.get_or_make(T::default),
        }
    }
}

/// Whether a child may use its parent's objects.
pub(crate) fn has_what_it_inherited() -> bool {
    // Until it is known there is nothing to inherit: whatever makes an object needs to know it first.
    matches!(rdma_cm(), Ok(None))
}

/// The error for an unknown object: `errno`, or `EOPNOTSUPP` if it may belong to the parent process.
pub(crate) fn absent(errno: Errno) -> Errno {
    match !has_what_it_inherited() && fork::is_child() {
        true => Errno::OPNOTSUPP,
        false => errno,
    }
}

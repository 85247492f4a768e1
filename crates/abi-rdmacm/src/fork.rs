//! What a forked child has of its parent's.
//!
//! Over software devices a child has nothing of it: the parent's threads are not there, and any lock may have been held at the
//! fork. It makes channels and ids of its own. Over the kernel's devices a child has what it inherited, as with librdmacm.

use once_cell::race::OnceBox;
use portolan_threads::{ProcessCell, fork};
use rustix::io::Errno;

use crate::verbs::rdma_cm;

/// What the library knows of a process's objects.
pub(crate) struct Known<T: 'static> {
    /// Over software devices.
    of_process: ProcessCell<T>,
    /// Over the kernel's devices.
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

/// Whether a child may use what its parent made.
pub(crate) fn has_what_it_inherited() -> bool {
    rdma_cm().is_none()
}

/// The error of a call on what is not known: `errno`, or `EOPNOTSUPP` if it may be what the parent of this process has.
pub(crate) fn absent(errno: Errno) -> Errno {
    match !has_what_it_inherited() && fork::is_child() {
        true => Errno::OPNOTSUPP,
        false => errno,
    }
}

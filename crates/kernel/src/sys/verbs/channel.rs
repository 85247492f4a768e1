//! Completion channels.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use portolan_abi_layout as abi;
use portolan_provider::traits::CompChannel;
use portolan_provider::{Result, Step};
use rustix::io::Errno;

use super::open::{OpenDevice, set_nonblocking};
use super::outcome::{last_errno, made};
use crate::error::refused;

/// A completion channel of the kernel's.
#[derive(Debug)]
pub(super) struct KernelCompChannel {
    pub(super) raw: NonNull<abi::CompChannel>,
    pub(super) device: Arc<OpenDevice>,
}

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for KernelCompChannel {}
// SAFETY: as above.
unsafe impl Sync for KernelCompChannel {}

impl KernelCompChannel {
    pub(super) fn new(device: Arc<OpenDevice>) -> Result<Self> {
        // SAFETY: an open device.
        let raw = unsafe { (device.library.create_comp_channel)(device.context.as_ptr()) };
        let raw = made(Step::CreateCq, "ibv_create_comp_channel", raw)
            .map_err(|error| device.explain(error))?;
        let channel = Self { raw, device };
        set_nonblocking(channel.as_fd())?;
        Ok(channel)
    }
}

impl portolan_provider::sealed::Sealed for KernelCompChannel {}

impl CompChannel for KernelCompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }

    fn take_event(&self) -> Result<Option<u64>> {
        // A forked child shares the descriptor with its parent and would take its events.
        self.device.check(Step::PollCq)?;
        let (mut cq, mut cookie) = (null_mut(), null_mut());
        let library = &self.device.library;
        // SAFETY: room for both pointers.
        if unsafe { (library.get_cq_event)(self.raw.as_ptr(), &mut cq, &mut cookie) } != 0 {
            return match last_errno() {
                Errno::AGAIN => Ok(None),
                errno => Err(refused(Step::PollCq, "ibv_get_cq_event", errno)),
            };
        }
        // SAFETY: the queue is not destroyed before its event is acknowledged.
        unsafe { (library.ack_cq_events)(cq, 1) };
        Ok(Some(cookie.addr() as u64))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for KernelCompChannel {
    fn drop(&mut self) {
        if !self.device.is_own() {
            return;
        }
        // SAFETY: its queues are destroyed, because they keep it alive.
        let code = unsafe { (self.device.library.destroy_comp_channel)(self.raw.as_ptr()) };
        if code != 0 {
            tracing::warn!(code, "completion channel not destroyed");
        }
    }
}

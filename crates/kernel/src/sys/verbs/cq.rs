//! Completion queues.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use portolan_abi_layout as abi;
use portolan_provider::error::errno::{EIO, EOPNOTSUPP};
use portolan_provider::traits::{CompChannel, Cq};
use portolan_provider::verbs::{Cqn, WorkCompletion};
use portolan_provider::{Cause, Error, Result, Step};

use super::channel::KernelCompChannel;
use super::complete::completion;
use super::open::OpenDevice;
use super::outcome::{check, foreign, int, made};

/// Number of completions fetched from the library at a time.
const BATCH: usize = 32;

/// A completion queue of the kernel's.
#[derive(Debug)]
pub(super) struct KernelCq {
    pub(super) raw: NonNull<abi::Cq>,
    pub(super) device: Arc<OpenDevice>,
    capacity: AtomicU32,
    // Destroyed after the queue.
    _channel: Option<Arc<dyn CompChannel>>,
}

// SAFETY: libibverbs may be called by any thread.
unsafe impl Send for KernelCq {}
// SAFETY: as above.
unsafe impl Sync for KernelCq {}

impl KernelCq {
    pub(super) fn new(
        device: Arc<OpenDevice>,
        cqe: u32,
        channel: Option<&Arc<dyn CompChannel>>,
        cookie: u64,
    ) -> Result<Self> {
        let step = Step::CreateCq;
        let raw_channel = match channel {
            None => null_mut(),
            Some(channel) => channel
                .as_any()
                .downcast_ref::<KernelCompChannel>()
                .filter(|channel| Arc::ptr_eq(&channel.device, &device))
                .ok_or_else(|| foreign(step, "completion channel of this device"))?
                .raw
                .as_ptr(),
        };
        let context = device.context.as_ptr();
        let cookie: *mut c_void = without_provenance_mut(cookie as usize);
        // SAFETY: the device is open and the channel belongs to it; the cookie is only returned.
        let raw = unsafe { (device.library.create_cq)(context, int(cqe), cookie, raw_channel, 0) };
        let raw = made(step, "ibv_create_cq", raw).map_err(|error| device.explain(error))?;
        let cq = Self {
            raw,
            device,
            capacity: AtomicU32::new(0),
            _channel: channel.cloned(),
        };
        cq.note_capacity();
        Ok(cq)
    }

    /// The queue of a trait object, if it belongs to this device.
    pub(super) fn of<'a>(cq: &'a Arc<dyn Cq>, device: &Arc<OpenDevice>) -> Result<&'a Self> {
        cq.as_any()
            .downcast_ref::<Self>()
            .filter(|cq| Arc::ptr_eq(&cq.device, device))
            .ok_or_else(|| foreign(Step::CreateQp, "completion queue of this device"))
    }

    fn note_capacity(&self) {
        // SAFETY: the queue exists; the library changes the field only within `resize`, and its caller comes here
        // afterwards.
        let cqe = unsafe { (*self.raw.as_ptr()).cqe };
        let capacity = u32::try_from(cqe).unwrap_or(0);
        self.capacity.store(capacity, Ordering::Relaxed);
    }
}

impl portolan_provider::sealed::Sealed for KernelCq {}

impl Cq for KernelCq {
    fn number(&self) -> Cqn {
        // SAFETY: the queue exists; its handle does not change.
        Cqn(unsafe { (*self.raw.as_ptr()).handle })
    }

    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        self.device.check(Step::PollCq)?;
        let Some(poll_cq) = self.device.ops().poll_cq else {
            return Err(self.device.explain(poll_failed()));
        };
        let mut raw = [abi::Wc::zeroed(); BATCH];
        let mut taken = 0;
        for chunk in out.chunks_mut(BATCH) {
            // SAFETY: `raw` has room for the requested completions.
            let count = unsafe { poll_cq(self.raw.as_ptr(), chunk.len() as i32, raw.as_mut_ptr()) };
            let count = match usize::try_from(count) {
                Ok(count) => count,
                // Return the completions already taken; the next call reports the error.
                Err(_) if taken > 0 => break,
                Err(_) => return Err(self.device.explain(poll_failed())),
            };
            for (wc, raw) in chunk.iter_mut().zip(&raw[..count]) {
                *wc = completion(raw);
            }
            taken += count;
            if count < chunk.len() {
                break;
            }
        }
        Ok(taken)
    }

    fn arm(&self, solicited_only: bool) -> Result<()> {
        self.device.check(Step::PollCq)?;
        let notify = self.device.ops().req_notify_cq;
        let code = notify.map_or(EOPNOTSUPP, |notify| {
            // SAFETY: the queue exists for as long as `self` lives.
            unsafe { notify(self.raw.as_ptr(), i32::from(solicited_only)) }
        });
        check(Step::PollCq, "ibv_req_notify_cq", code)
    }

    fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    fn resize(&self, cqe: u32) -> Result<()> {
        self.device.check(Step::ResizeCq)?;
        // SAFETY: the queue exists.
        let code = unsafe { (self.device.library.resize_cq)(self.raw.as_ptr(), int(cqe)) };
        check(Step::ResizeCq, "ibv_resize_cq", code).map_err(|error| self.device.explain(error))?;
        self.note_capacity();
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A driver that cannot poll returns a negative number, which is not an errno (ibv_poll_cq(3)).
fn poll_failed() -> Error {
    let (call, errno) = ("ibv_poll_cq", EIO);
    Error::new(Step::PollCq, Cause::Os { call, errno })
}

impl Drop for KernelCq {
    fn drop(&mut self) {
        if !self.device.is_own() {
            return;
        }
        // SAFETY: its queue pairs are destroyed, because they keep it alive.
        let code = unsafe { (self.device.library.destroy_cq)(self.raw.as_ptr()) };
        if code != 0 {
            tracing::warn!(code, "completion queue not destroyed");
        }
    }
}

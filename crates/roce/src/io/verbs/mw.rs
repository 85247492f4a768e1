//! Memory windows.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use portolan_provider::traits::Mw;
use portolan_provider::verbs::MwType;
use portolan_provider::{Error, Result, Step};

use crate::engine::PdId;
use crate::io::host::Host;
use crate::io::host::errors::foreign;
use crate::io::host::gauge::Permit;
use crate::io::net::rand::random_u32;

/// Attempts to draw a free key. Windows and regions are limited far below the number of keys, so an attempt fails
/// less than once in eight times.
const DRAWS_MAX: u32 = 64;

/// A memory window. Its key is random except for the lowest byte, which changes with each binding.
#[derive(Debug)]
pub struct SoftMw {
    mw_type: MwType,
    /// The current key. For type 1: the key after all posted bindings are executed.
    rkey: AtomicU32,
    allocated: AtomicBool,
    host: Arc<Host>,
    _permit: Permit,
}

impl SoftMw {
    pub(crate) fn alloc(host: &Arc<Host>, pd: PdId, mw_type: MwType) -> Result<Self> {
        let permit = host.gauges.mws.take(Step::AllocMw)?;
        let limit = host.config.limits.max_mw as usize;
        let mut memory = host.memory.write();
        let mut draws = 0;
        let rkey = loop {
            let rkey = random_u32(Step::AllocMw)?;
            match memory.alloc_window(rkey, pd, mw_type, limit) {
                Ok(()) => break rkey,
                Err(error) if draws == DRAWS_MAX => return Err(error),
                Err(_) => draws += 1,
            }
        };
        drop(memory);
        Ok(Self {
            mw_type,
            rkey: AtomicU32::new(rkey),
            allocated: AtomicBool::new(true),
            host: Arc::clone(host),
            _permit: permit,
        })
    }

    /// The window behind a trait object, if it belongs to the same stack and is of type 1.
    pub(crate) fn of_type_1<'a>(mw: &'a Arc<dyn Mw>, host: &Arc<Host>) -> Result<&'a Self> {
        let step = Step::BindMw;
        let mw = mw.as_any().downcast_ref::<Self>();
        let mw = mw
            .filter(|mw| Arc::ptr_eq(&mw.host, host))
            .ok_or_else(|| foreign(step, "memory window of this device"))?;
        match mw.mw_type {
            MwType::Type1 => Ok(mw),
            MwType::Type2 => {
                let (what, expected) = ("memory window", "one of type 1");
                Err(Error::invalid(step, what, expected, "type 2"))
            }
        }
    }

    /// Posts the next binding: calls `post` with the current key and the next one, which it returns.
    pub(crate) fn rebind(&self, post: impl FnOnce(u32, u32) -> Result<()>) -> Result<u32> {
        let rkey = self.rkey.load(Ordering::Relaxed);
        let [high @ .., low] = rkey.to_be_bytes();
        let [a, b, c] = high;
        let new_rkey = u32::from_be_bytes([a, b, c, low.wrapping_add(1)]);
        post(rkey, new_rkey)?;
        self.rkey.store(new_rkey, Ordering::Relaxed);
        Ok(new_rkey)
    }
}

impl portolan_provider::sealed::Sealed for SoftMw {}

impl Mw for SoftMw {
    fn rkey(&self) -> u32 {
        self.rkey.load(Ordering::Relaxed)
    }

    fn mw_type(&self) -> MwType {
        self.mw_type
    }

    fn deallocate(&self) -> Result<()> {
        // In a forked child the table is a copy, whose lock may have been held at the fork.
        self.host.entry.check(Step::AllocMw)?;
        let mut memory = self.host.memory.write();
        if self.allocated.swap(false, Ordering::Relaxed) {
            memory.dealloc_window(self.rkey());
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftMw {
    fn drop(&mut self) {
        // Fails only in a forked child, where there is nothing to do.
        let _ = self.deallocate();
    }
}

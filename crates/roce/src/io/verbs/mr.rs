//! Memory regions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use portolan_provider::traits::Mr;
use portolan_provider::verbs::Access;
use portolan_provider::{Error, Result, Step};

use crate::engine::{PdId, Region};
use crate::io::host::Host;
use crate::io::host::gauge::Permit;
use crate::io::host::mapping;
use crate::io::net::rand::random_u32;

/// A memory region. Local and remote key are one random number.
#[derive(Debug)]
pub struct SoftMr {
    key: u32,
    registered: AtomicBool,
    host: Arc<Host>,
    _permit: Permit,
}

impl SoftMr {
    pub(crate) fn register(
        host: &Arc<Host>,
        pd: PdId,
        [addr, iova]: [u64; 2],
        length: u64,
        access: Access,
    ) -> Result<Self> {
        let max = host.config.limits.max_mr_size;
        if length > max {
            let expected = format_args!("at most {max} bytes");
            return Err(Error::invalid(
                Step::RegisterMemory,
                "length",
                expected,
                length,
            ));
        }
        mapping::verify(addr, length, access)?;
        let permit = host.gauges.mrs.take(Step::RegisterMemory)?;
        let region = Region {
            pd,
            iova,
            addr,
            length,
            access,
        };
        let mut memory = host.memory.write();
        // The table is bounded far below 2^32 keys, so a free one is found at once.
        let key = loop {
            let key = random_u32(Step::RegisterMemory)?;
            if key != 0 && !memory.contains(key) {
                break key;
            }
        };
        memory.insert(key, region)?;
        drop(memory);
        let host = Arc::clone(host);
        Ok(Self {
            key,
            registered: AtomicBool::new(true),
            host,
            _permit: permit,
        })
    }
}

impl Mr for SoftMr {
    fn lkey(&self) -> u32 {
        self.key
    }

    fn rkey(&self) -> u32 {
        self.key
    }

    fn deregister(&self) -> Result<()> {
        // In a forked child the table is a copy, whose lock may have been held at the fork.
        self.host.entry.check(Step::RegisterMemory)?;
        let mut memory = self.host.memory.write();
        // Under the lock, so that a second caller, too, returns only when nothing is under way.
        if self.registered.load(Ordering::Relaxed) {
            memory.deregister(self.key)?;
            self.registered.store(false, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for SoftMr {
    fn drop(&mut self) {
        // In a forked child there is nothing to do, and the lock may have been held at the fork.
        if *self.registered.get_mut() && self.host.entry.is_owner() {
            let mut memory = self.host.memory.write();
            // The memory may go away now: windows on it are closed.
            memory.remove(self.key);
        }
    }
}

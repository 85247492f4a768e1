//! Memory regions.

use std::any::Any;
use std::sync::Arc;

use portolan_provider::traits::Mr;
use portolan_provider::verbs::{Access, MrRange};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::lock::Mutex;

use crate::engine::{PdId, Region};
use crate::io::host::Host;
use crate::io::host::errors::foreign;
use crate::io::host::gauge::Permit;
use crate::io::host::mapping;
use crate::io::net::rand::random_u32;
use crate::io::net::shm::memory_files::SharedPages;
use crate::io::net::shm::rights::StillCopying;
use crate::io::net::shm::rights_layout::Slot;

/// A memory region. Its local and remote key are one random number.
#[derive(Debug)]
pub struct SoftMr {
    key: u32,
    /// `None` once deregistered. Locked before the memory table, so that a call that changes the region returns only
    /// after the calls of other threads.
    region: Mutex<Option<Region>>,
    /// Its slot in the table of rights, and its pages if they are in a memory file, while peers may access it directly.
    given: Mutex<Option<(Slot, Option<Arc<SharedPages>>)>>,
    host: Arc<Host>,
    _permit: Permit,
}

/// Verifies that the region's memory is mapped.
fn verify(host: &Host, region: &Region) -> Result<()> {
    let max = host.config.limits.max_mr_size;
    if region.length > max {
        let expected = format_args!("at most {max} bytes");
        let length = region.length;
        return Err(Error::invalid(
            Step::RegisterMemory,
            "length",
            expected,
            length,
        ));
    }
    mapping::verify(region.addr, region.length, region.access)
}

impl SoftMr {
    /// Registers memory. `pages` is set if the memory is in a file.
    pub(crate) fn register(
        host: &Arc<Host>,
        region: Region,
        pages: Option<Arc<SharedPages>>,
    ) -> Result<Self> {
        verify(host, &region)?;
        let permit = host.gauges.mrs.take(Step::RegisterMemory)?;
        let mut memory = host.memory.write();
        // The table is limited far below 2^32 keys, so a free one is found at once.
        let key = loop {
            let key = random_u32(Step::RegisterMemory)?;
            if key != 0 && !memory.contains(key) {
                break key;
            }
        };
        memory.insert(key, region)?;
        drop(memory);
        let host = Arc::clone(host);
        let slot = host.give_key(key, &region, pages.as_deref());
        let given = slot.map(|slot| (slot, pages));
        Ok(Self {
            key,
            region: Mutex::new(Some(region)),
            given: Mutex::new(given),
            host,
            _permit: permit,
        })
    }

    /// Changes the region, and moves it to another protection domain.
    pub(crate) fn reregister(
        &self,
        pd: PdId,
        range: Option<MrRange>,
        access: Option<Access>,
    ) -> Result<()> {
        let mut region = self.region.lock();
        let gone = || Error::new(Step::RegisterMemory, Cause::NoSuchObject("memory region"));
        let mut changed = region.ok_or_else(gone)?;
        changed.pd = pd;
        if let Some(range) = range {
            (changed.addr, changed.length, changed.iova) = (range.addr, range.length, range.iova);
        }
        if let Some(access) = access {
            changed.access = access;
        }
        verify(&self.host, &changed)?;
        // Peers use packets for the changed region.
        self.withdraw()?;
        self.host.memory.write().replace(self.key, changed)?;
        *region = Some(changed);
        // One may have begun since.
        self.host.end_pulls_of(self.key).map_err(in_use)
    }

    /// Withdraws peers' direct access, and what peers are asked to copy out of the region. After this returns, no peer accesses the region, except memory that is kept
    /// for a stopped process.
    ///
    /// # Errors
    /// `InUse` if the memory is the program's and another process may still be in a copy, which began before the call
    /// and has taken seconds. No new copy begins. Call it again.
    fn withdraw(&self) -> Result<()> {
        let mut given = self.given.lock();
        if let (Some((slot, pages)), Some(links)) = (&*given, &self.host.links) {
            match pages {
                Some(pages) => links.rights().take_key(*slot, pages),
                None => links.rights().take_program_key(*slot).map_err(in_use)?,
            }
        }
        *given = None;
        drop(given);
        self.host.end_pulls_of(self.key).map_err(in_use)
    }

    /// The region behind a trait object, if it belongs to the same stack.
    pub(crate) fn behind<'a>(mr: &'a Arc<dyn Mr>, host: &Arc<Host>) -> Result<&'a Self> {
        mr.as_any()
            .downcast_ref::<Self>()
            .filter(|mr| Arc::ptr_eq(&mr.host, host))
            .ok_or_else(|| foreign(Step::RegisterMemory, "memory region of this device"))
    }
}

fn in_use(still: StillCopying) -> Error {
    let (what, by) = ("memory region", "copies of other processes");
    let count = still.count as u64;
    Error::new(Step::RegisterMemory, Cause::InUse { what, by, count })
}

impl portolan_provider::sealed::Sealed for SoftMr {}

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
        let mut region = self.region.lock();
        if region.is_some() {
            self.host.memory.write().deregister(self.key)?;
            self.withdraw()?;
            *region = None;
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SoftMr {
    fn drop(&mut self) {
        // A forked child has nothing to do, and the lock may have been held at the fork.
        if self.region.get_mut().is_some() && self.host.entry.is_owner() {
            let mut memory = self.host.memory.write();
            // The memory may be freed after this, so its windows are closed, too.
            memory.remove(self.key);
            drop(memory);
            if let Err(error) = self.withdraw() {
                tracing::error!(%error, "memory was released while another process may write to it");
            }
        }
    }
}

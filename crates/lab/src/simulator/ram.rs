//! The memory of a simulated machine: allocations at addresses that mean nothing to this process.

use std::collections::BTreeMap;

use super::failure::{Violation, violation};
use super::rng::Rng;

/// Address of the first allocation.
const FIRST_ADDR: u64 = 0x7000_0000_0000;

/// Smallest gap between two allocations. Touching it is a violation.
const GAP_BYTES: u64 = 4096;

/// A machine's memory. Touching anything that is not allocated is a violation.
#[derive(Debug)]
pub(super) struct Ram {
    allocations: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

impl Ram {
    pub(super) fn new() -> Self {
        Self {
            allocations: BTreeMap::new(),
            next: FIRST_ADDR,
        }
    }

    /// Allocates memory at a random address.
    pub(super) fn allocate(&mut self, bytes: Vec<u8>, rng: &mut Rng) -> u64 {
        let addr = self.next + GAP_BYTES + rng.below(1 << 16);
        self.next = addr + bytes.len() as u64;
        self.allocations.insert(addr, bytes);
        addr
    }

    pub(super) fn free(&mut self, addr: u64) {
        self.allocations.remove(&addr);
    }

    pub(super) fn allocations(&self) -> usize {
        self.allocations.len()
    }

    pub(super) fn read(&self, addr: u64, len: usize) -> Result<&[u8], Violation> {
        if len == 0 {
            return Ok(&[]);
        }
        let found = self.allocations.range(..=addr).next_back();
        let bytes = found.and_then(|(base, bytes)| bytes.get((addr - base) as usize..)?.get(..len));
        bytes
            .ok_or_else(|| violation!("memory read outside of what is registered: {addr:#x}+{len}"))
    }

    pub(super) fn write(&mut self, addr: u64, from: &[u8]) -> Result<(), Violation> {
        let found = self.allocations.range_mut(..=addr).next_back();
        let bytes = found.and_then(|(base, bytes)| {
            bytes
                .get_mut((addr - base) as usize..)?
                .get_mut(..from.len())
        });
        let bytes = bytes.ok_or_else(|| {
            violation!(
                "memory written outside of what is registered: {addr:#x}+{}",
                from.len()
            )
        })?;
        bytes.copy_from_slice(from);
        Ok(())
    }
}

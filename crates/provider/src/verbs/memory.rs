//! Memory access rights and memory windows.

use bitflags::bitflags;

bitflags! {
    /// Rights of a memory region or queue pair (`enum ibv_access_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The device may write, for local receives and reads.
        const LOCAL_WRITE = 1;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may use atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound.
        const MW_BIND = 1 << 4;
    }
}

/// The names of the rights, or "none".
impl core::fmt::Display for Access {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.is_empty() {
            true => f.write_str("none"),
            false => bitflags::parser::to_writer(self, f),
        }
    }
}

/// The memory of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrRange {
    /// Address of the first byte in this process.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Address that work requests and peers use for the first byte.
    pub iova: u64,
}

/// Types of memory windows (`enum ibv_mw_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum MwType {
    /// Bound by its own verb; any queue pair of the protection domain may use it.
    Type1 = 1,
    /// Bound by a work request to the queue pair that executes it (type 2B).
    Type2 = 2,
}

/// The memory and rights of a memory window (`struct ibv_mw_bind_info`). A length of 0 invalidates
/// the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBind {
    /// Local key of the underlying region, which must allow `MW_BIND`.
    pub lkey: u32,
    /// First byte, as a virtual address of this process.
    pub addr: u64,
    /// Length, in bytes.
    pub length: u64,
    /// Rights of peers through the window. Local rights have no effect here.
    pub access: Access,
}

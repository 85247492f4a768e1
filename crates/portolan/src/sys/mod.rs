//! The library's unsafe code: memory that a device may access.
#![allow(
    unsafe_code,
    reason = "raw memory shared with a device; each block has its reason"
)]

mod backing;
mod buffer;
mod memory;
mod program;
mod revoke;
mod shared;
mod wide;

pub use buffer::Buffer;
pub use memory::{MESSAGE_MAX_BYTES, RemoteMemory};
pub use program::Memory;
pub use revoke::NotRevoked;
pub(crate) use shared::KeptRegistered;
pub use shared::SharedMemory;

//! The library's unsafe code: memory that a device may touch.
#![allow(
    unsafe_code,
    reason = "raw memory shared with a device; each block has its reason"
)]

mod backing;
mod buffer;
mod memory;
mod shared_memory;

pub use memory::{BUFFER_MAX_BYTES, Buffer, RemoteMemory};
pub use shared_memory::SharedMemory;

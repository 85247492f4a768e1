//! The library's unsafe code: memory that a device may touch, and the end of the process.
#![allow(
    unsafe_code,
    reason = "raw memory shared with a device, libc; each block has its reason"
)]

mod at_exit;
mod memory;

pub(crate) use at_exit::at_exit;
pub use memory::{BUFFER_MAX_BYTES, Buffer, RemoteMemory, SharedMemory};

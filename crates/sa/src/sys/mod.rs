//! The unsafe system calls of this crate.
//!
//! Files are opened, read and listed by libc's `open`, `read` and `opendir`. The standard library
//! calls `open64` and its kin, which InfiniBand fabric simulators do not intercept: they emulate
//! user MAD devices and their sysfs files by overriding the plain functions only.

pub(crate) mod file;
pub(crate) mod umad;

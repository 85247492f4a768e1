//! The system underneath. Files are opened, read and listed by libc's own functions of these names, and not by
//! those of the standard library (`open64` and its kin), for a simulator of fabrics stands for the
//! user MAD devices, and for their files in sysfs, by functions of those names alone.

pub(crate) mod file;
pub(crate) mod umad;

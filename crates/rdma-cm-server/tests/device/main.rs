//! Raw commands of the kernel's ABI, executed by the software provider on loopback.

mod connections;
mod groups;
mod ids;
mod support;

//! Raw commands of the kernel's ABI, carried out by the software provider on loopback.

mod connections;
mod groups;
mod ids;
mod support;

//! The kernel's rdma_cm device in user space: it accepts the bytes that programs write to `/dev/infiniband/rdma_cm`,
//! and a provider executes the commands. It is the inverse of `portolan-kernel`. So a library written for the kernel's
//! device can also use the software device.
//!
//! * [`RdmaCm`]: the device; [`Channel`]: an open descriptor of it; `ids`: the owner of each id.
//! * [`Memory`]: the memory that the addresses in commands refer to.
//! * `commands`, `query`, `event`, `option`: the commands; `address`, `errno`: conversions.
//!
//! Errors are those of Linux's `drivers/infiniband/core/ucma.c`: `EINVAL` for an incomplete command or an id of another
//! channel, `ENOENT` for an unknown id, `ENOSPC` for too little space for the answer, `ENOSYS` for an unsupported
//! command; otherwise the provider's.
//!
//! The tags that owners give their ids (`uid`) must be unique within a device, because a request identifies its
//! listener by the tag.
//!
//! Commands of Linux before 3.11 that have newer replacements (BIND_IP, RESOLVE_IP, QUERY_ROUTE, JOIN_IP_MCAST) are not
//! supported.

#![forbid(unsafe_code)]

mod address;
mod channel;
mod commands;
mod errno;
mod event;
mod ids;
mod memory;
mod option;
mod query;

pub use channel::{Channel, RdmaCm};
pub use memory::Memory;

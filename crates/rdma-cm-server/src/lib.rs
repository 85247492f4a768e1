//! The kernel's rdma_cm device in user space: commands come as the bytes that are written to
//! `/dev/infiniband/rdma_cm`, and a provider carries them out. What `portolan-kernel` makes of the provider's
//! commands this takes apart again; so a library that speaks to the kernel's device can speak to the software
//! device, too.
//!
//! * [`RdmaCm`]: the device; [`Channel`]: an open descriptor of it; `ids`: whose each id is.
//! * [`Memory`]: where commands name the places of their answers.
//! * `commands`, `query`, `event`, `option`: what each command does; `address`, `errno`: words of the two sides.
//!
//! Errors are those of Linux's `drivers/infiniband/core/ucma.c`: `EINVAL` for a command that is not whole or names
//! an id of another channel, `ENOENT` for an id that there is not, `ENOSPC` for too little room for the answer,
//! `ENOSYS` for a command that is not served; beyond that the provider's.
//!
//! The names that owners give their ids (`uid`) must differ within one device: a request finds its listener by it.
//!
//! Commands of Linux before 3.11, which have newer ones beside them (BIND_IP, RESOLVE_IP, QUERY_ROUTE,
//! JOIN_IP_MCAST), are not served.

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

//! Verbs through the machine's libibverbs, which has the drivers of the devices.
//!
//! The library's structures and functions are those of `portolan-abi-layout`; it is loaded at run time, and
//! nothing of it is needed to build. A file uses only files that stand above it here:
//!
//! * `outcome`: what verbs return, as results.
//! * `post`, `complete`: work requests and completions in both forms.
//! * `windows`: the memory windows and regions of a device, by their keys.
//! * `open`: an open device, which every object keeps alive.
//! * `channel`, `cq`; `domain` and the objects of a protection domain: `ah`, `srq`, `mr`, `mw`, `qp`, `pd`.
//!   Each keeps alive what it was made from, and returns to the library when dropped.
//! * `device`, `list`: the provider's devices.
//!
//! The library may be called by any number of threads. An object that can be destroyed while others
//! use it lies behind a lock of its own, which posting and polling only read.
//!
//! `ibv_fork_init` is not called: memory of a program that forks is safe since Linux 5.12, and before
//! that `RDMAV_FORK_SAFE=1` in the environment makes it so.

#![allow(unsafe_code, reason = "a foreign library, and the pointers it returns")]

mod ah;
mod channel;
mod complete;
mod cq;
mod device;
mod domain;
mod list;
mod mr;
mod mw;
mod open;
mod outcome;
mod pd;
mod post;
mod qp;
mod srq;
mod windows;

pub(crate) use self::device::KernelDevice;
pub(crate) use self::list::Devices;
pub(crate) use self::open::OpenDevice;

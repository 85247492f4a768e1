//! Verbs through the machine's libibverbs, which has the drivers of the devices.
//!
//! `portolan-abi-layout` defines the library's structures and functions. The library is loaded at run time and not
//! needed to build. A file uses only files listed before it:
//!
//! * `outcome`: return values of verbs as results.
//! * `post`, `complete`: work requests and completions in both forms.
//! * `windows`: the memory windows and regions of a device, by their keys.
//! * `open`: an open device, which every object of it keeps alive.
//! * `channel`, `cq`; `domain` and the objects of a protection domain: `ah`, `srq`, `mr`, `mw`, `qp`, `pd`.
//!   Each keeps alive what it was created from, and is destroyed when dropped.
//! * `device`, `list`: the provider's devices.
//!
//! Any number of threads may call the library. An object that can be destroyed while others use it has its own lock,
//! which posting and polling only read-lock.
//!
//! `ibv_fork_init` is not called: since Linux 5.12 a program may fork safely; before that, set `RDMAV_FORK_SAFE=1` in
//! the environment.

#![allow(unsafe_code, reason = "a foreign library, and the pointers it returns")]

mod ah;
mod async_events;
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

//! `libibverbs.so.1`: any RDMA program runs on Portolan's software devices, unmodified.
//!
//! The library keeps what a C program sees (devices, contexts, queues, their memory) and hands verbs to the software
//! provider of [`portolan`]. Devices are as Linux's rdma_rxe would report them.
//!
//! * `layout`: the structures that programs reach into.
//! * `export`: the functions, by the names and versions of `libibverbs.map`; `tables`: those that programs call by
//!   an open device.
//! * `guard`: errors and panics at the edge; `object`, `acks`: objects handed out by pointer, and how they end.
//! * `provider`: the software provider, one for the process; `process`: what a forked child is refused.
//! * `file`: what contexts that were imported share.
//! * `raisers`: the objects that can raise asynchronous events.
//! * `device`, `context`, `query`, `pd` and so on: the verbs; `post`, `cq`: the way of data, on which no lock is
//!   shared by two queues.
//! * `rdma_cm`: the connection manager, for our librdmacm.so.1.

mod acks;
mod ah;
mod async_event;
mod channel;
mod context;
mod cq;
mod cq_ex;
mod device;
mod export;
mod file;
mod guard;
mod kern;
mod link;
mod mr;
mod mw;
mod object;
mod pd;
mod post;
mod process;
mod provider;
mod qp;
mod qp_ex;
mod query;
mod raisers;
mod rdma_cm;
mod srq;
mod strings;
mod sysfs;
mod tables;
mod wait;
mod wc;
mod xrcd;

use portolan_abi_layout as layout;

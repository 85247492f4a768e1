//! `libibverbs.so.1`: any RDMA program runs on Portolan's software devices, unmodified.
//!
//! The library manages the objects that a C program sees (devices, contexts, queues, their memory) and passes verbs to
//! the software provider of [`portolan`]. Devices look like Linux's rdma_rxe devices.
//!
//! * `layout`: the structures that programs access.
//! * `export`: the functions, under the names and versions of `libibverbs.map`; `tables`: those that programs call
//!   through an open device.
//! * `guard`: errors and panics at the boundary; `object`, `acks`: objects passed by pointer, and their destruction.
//! * `provider`: the process's software provider.
//! * `file`: state shared by imported contexts.
//! * `raisers`: the objects that can raise asynchronous events.
//! * `device`, `context`, `query`, `pd` and so on: the verbs; `post`, `cq`: the data path, where two queues share no
//!   lock.
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
mod provider;
mod qp;
mod qp_ex;
mod query;
mod raisers;
mod rdma_cm;
mod srq;
mod sysfs;
mod tables;
mod wait;
mod wc;
mod xrcd;

use portolan_abi_layout as layout;

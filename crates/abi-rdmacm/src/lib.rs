//! `librdmacm.so.1`: C programs written for librdmacm run on Portolan unmodified.
//!
//! The library keeps what a C program sees (ids, events, their memory) and hands commands to the kernel's rdma_cm
//! device and verbs to the libibverbs that the process has.
//!
//! A file uses only files that stand above it here:
//!
//! * `layout`: the structures that programs reach into; `guard`: errors and panics at the edge.
//! * `verbs`: the libibverbs of the process; `fork`: what a child has of its parent's; `hold`: requests held back from programs
//!   that have room for one, if the environment asks for that.
//! * `device`, `channel`, `address`, `convert`: what there is besides ids.
//! * `lookup`, `membership`, then `id`: ids and their parts; `kernel`: what the kernel knows of an id.
//! * `event`: an event, and who owns it; `sync`: calls that an event answers.
//! * `qp`, `connect`, `resolve`, `multicast`, `life`: the calls that act on an id.
//! * `interpret`: what the kernel says, as the program's event.
//! * `get_event`, `get_request`, `endpoint`: the calls that wait.
//! * `reach`, `names`, `resolve_addrinfo`: the calls that look up.
//! * `rsocket`: the socket calls, over streams; `arguments`: what they take and return.
//! * `export`: the functions, by the names and versions of `librdmacm.map`.

mod address;
mod arguments;
mod channel;
mod connect;
mod convert;
mod device;
mod endpoint;
mod event;
mod export;
mod fork;
mod get_event;
mod get_request;
mod guard;
mod hold;
mod id;
mod interpret;
mod kernel;
mod life;
mod lookup;
mod membership;
mod multicast;
mod names;
mod qp;
mod reach;
mod resolve;
mod resolve_addrinfo;
mod rsocket;
mod sync;
mod verbs;

use portolan_abi_layout as layout;

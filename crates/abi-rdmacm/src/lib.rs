//! `librdmacm.so.1`: C programs written for librdmacm run on Portolan unmodified.
//!
//! The library manages the structures that a C program sees: ids, events and their memory. It passes commands to the
//! rdma_cm device and verbs to the libibverbs of the process.
//!
//! A file uses only files listed above it:
//!
//! * `layout`: the structures that programs access. `guard`: errors and panics at the boundary.
//! * `verbs`: the libibverbs of the process. `fork`: what a child can use of its parent's objects. `hold`: requests
//!   held back from programs that have room for one, if the environment asks for it.
//! * `device`, `channel`, `address`, `convert`: objects other than ids.
//! * `lookup`, `membership`, then `id`: ids and their parts. `kernel`: the kernel's commands for an id.
//! * `event`: an event and its owner. `sync`: calls that an event answers.
//! * `qp`, `connect`, `resolve`, `multicast`, `life`: the calls on one id.
//! * `interpret`: converts the kernel's event to the program's.
//! * `get_event`, `get_request`, `endpoint`: the calls that wait.
//! * `reach`, `names`, `resolve_addrinfo`: the calls that look up.
//! * `rsocket`: the socket calls, over streams. `arguments`: their arguments and results.
//! * `export`: the functions, with the names and versions of `librdmacm.map`.

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

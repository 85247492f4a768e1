//! The exported C functions, with the names and versions of `libibverbs.map`.
//!
//! A function needs its definition in a file of this folder, its name and version in `libibverbs.map`, and its
//! declaration in `include/infiniband/verbs`. Tests compare the three. A function that C calls through the open device
//! has its place in [`tables`](crate::tables) instead.
//!
//! * `devices`: devices, ports, protection domains.
//! * `queues`: memory, channels, queues, queue pairs, address handles.
//! * `kern`, `strings`, `system`: conversions of the kernel's structures; numbers as text, rates; sysfs files, forks.
//! * `connections`, `private`: functions that our librdmacm.so.1 and rdma-core's drivers call.

mod connections;
mod devices;
mod kern;
mod private;
mod queues;
mod strings;
mod system;

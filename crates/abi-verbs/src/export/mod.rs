//! The C functions, under their names and the versions of `libibverbs.map`.
//!
//! * `devices`: devices, ports, protection domains.
//! * `queues`: memory, channels, queues, queue pairs, address handles.
//! * `kern`, `words`: conversions of the kernel's structures; numbers as text, rates.
//! * `connections`, `private`: functions that our librdmacm.so.1 and rdma-core's drivers call.

mod connections;
mod devices;
mod kern;
mod private;
mod queues;
mod words;

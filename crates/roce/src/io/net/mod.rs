//! Sockets, rings and packets, and the kernel's network interfaces. Queue pairs appear only as the numbers of those
//! that wait for room in a socket.

pub(crate) mod arrived;
pub(crate) mod counters;
pub(crate) mod interface_monitor;
pub(crate) mod interfaces;
pub(crate) mod path;
pub(crate) mod rand;
pub(crate) mod read_ring;
pub(crate) mod readiness;
pub(crate) mod receive;
pub(crate) mod receive_batch;
pub(crate) mod send_batch;
pub(crate) mod shm;
pub(crate) mod sockopt;
pub(crate) mod tap;
pub(crate) mod transmit;

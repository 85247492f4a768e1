//! The system underneath: the rdma_cm device, the installed libibverbs, and what a fork means to both.

pub(crate) mod fork;
pub(crate) mod rdma_cm;
pub(crate) mod verbs;
pub(crate) mod wait;

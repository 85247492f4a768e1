//! The system's interfaces: the rdma_cm device, the installed libibverbs, and detection of forks.

pub(crate) mod fork;
pub(crate) mod rdma_cm;
pub(crate) mod verbs;
pub(crate) mod wait;

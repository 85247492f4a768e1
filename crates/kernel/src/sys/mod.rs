//! The system underneath: the rdma_cm device, and the installed libibverbs.

pub(crate) mod ucma;
pub(crate) mod verbs;

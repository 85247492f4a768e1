//! The rdma_cm device below the provider's interface: commands and answers in the kernel's format, for code that
//! manages its own ids (the C library).

pub use crate::rdma_cm::abi::*;
pub use crate::rdma_cm::attr::qp_attr;
pub use crate::rdma_cm::fields::Fields;
pub use crate::rdma_cm::open;
pub use crate::rdma_cm::param::padded;
pub use crate::sys::rdma_cm::{Channel, Command, Question, RdmaCmChannel, RdmaCmTable};
pub use crate::sys::wait::{
    has_datagram, may_be_cancelled, readable, readable_or_closed, wait_event,
};

//! The rdma_cm device below the seam: commands and their answers as the kernel has them, for whoever keeps
//! ids of its own (the C library).

pub use crate::sys::ucma::{Channel, Command, Question, RdmaCmChannel, RdmaCmTable};
pub use crate::sys::wait::{readable, wait_event};
pub use crate::ucma::abi::*;
pub use crate::ucma::fields::Fields;
pub use crate::ucma::open;

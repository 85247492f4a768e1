//! Verbs: the types of devices, queue pairs, work requests and completions, with the numbers of
//! `infiniband/verbs.h` where that header fixes them.

mod device;
mod memory;
mod qp;
mod work;

pub use device::*;
pub use memory::*;
pub use qp::*;
pub use work::*;

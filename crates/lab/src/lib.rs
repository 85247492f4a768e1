//! The laboratory: test tools that are not part of Portolan.
//!
//! - [`fabric`]: a simulated InfiniBand fabric with a real subnet manager.
//! - [`machine`]: real Debian kernels under an emulator, with rdma_rxe and the programs that use it.
//! - [`judge`]: Linux's own RoCE as our peer, and tshark to check the traffic.
//! - [`simulator`]: whole engines on a virtual clock and a network determined by a seed.

pub mod fabric;
pub mod judge;
pub mod machine;
pub mod own_network;
pub mod simulator;

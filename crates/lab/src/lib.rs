//! The laboratory: what tests Portolan and is no part of it.
//!
//! - [`fabric`]: a simulated InfiniBand fabric with a real subnet manager.
//! - [`machine`]: real Debian kernels under an emulator, with rdma_rxe and the programs that use it.
//! - [`judge`]: Linux's own RoCE as the peer of ours, and tshark as the reader of what passed.
//! - [`simulator`]: whole engines on a virtual clock and a network that follows from a seed.

pub mod fabric;
pub mod judge;
pub mod machine;
pub mod own_network;
pub mod simulator;

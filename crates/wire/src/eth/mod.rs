//! The extended transport headers (IBTA 9.3), which follow the BTH depending on the opcode, and the
//! GRH.
//!
//! Each `Repr` has `LEN`, `parse` (reads the front of a buffer) and `emit` (writes all `LEN` bytes).

mod ack;
mod atomic;
mod datagram;
mod grh;
mod memory;

pub use crate::timer::rnr_timer_us;
pub use ack::{AethRepr, CREDITS_UNLIMITED, NakCode, Syndrome};
pub use atomic::{AtomicAckEthRepr, AtomicEthRepr};
pub use datagram::{DethRepr, ImmDtRepr, XrcEthRepr};
pub use grh::GrhRepr;
pub use memory::{FethRepr, IethRepr, RethRepr};

#[cfg(test)]
mod tests;

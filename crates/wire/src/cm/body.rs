//! Types shared by all messages.

use crate::Result;
use crate::bytes::{Builder, Fields};
use crate::mad;

/// Length of a message after the MAD header, in bytes.
pub const BODY_LEN: usize = mad::DATA_LEN;

/// Reads a message's body.
pub(super) type Body<'a> = Fields<'a, BODY_LEN>;

/// Builds a message's body.
pub(super) type BodyBuilder = Builder<BODY_LEN>;

/// Conversion of one message from and to its body. `ece_options` travels in the MAD header's
/// attribute modifier.
pub(super) trait Format: Sized {
    /// Reads the message.
    fn read(body: Body<'_>, ece_options: u32) -> Self;

    /// Writes the message.
    fn write(&self, body: &mut BodyBuilder) -> Result<()>;
}

/// Enhanced connection establishment (ECE, IBTA 12.6): a vendor's negotiation of device capabilities,
/// in bits that IBTA reserves. All zero if unused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor that defines the options, 24 bits.
    pub vendor_id: u32,
    /// The vendor's options: `options` of `struct ibv_ece`, `attr_mod` of `struct rdma_ucm_ece`. They
    /// travel as the attribute modifier of the management datagram.
    pub options: u32,
}

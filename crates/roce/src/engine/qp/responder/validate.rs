//! Checks whether a request packet may follow the previous ones.

use portolan_wire::bth::Opcode;
use portolan_wire::rocev2::Packet;

use super::{Fault, Inbound, Responder};
use crate::engine::qp::send_queue::MESSAGE_BYTES_MAX;

impl Responder {
    /// Checks that the opcode may follow the previous one (IBTA 9.7.4.1; Linux `check_op_seq`).
    pub(super) fn check_sequence(&self, opcode: Opcode) -> Result<(), Fault> {
        let fits = match self.inbound {
            Inbound::Idle => opcode.starts_message(),
            Inbound::Send { .. } => opcode.is_send() && !opcode.starts_message(),
            Inbound::Write(_) => opcode.is_write() && !opcode.starts_message(),
        };
        if fits {
            Ok(())
        } else {
            Err(Fault::INVALID_REQUEST)
        }
    }
}

/// Checks the payload length against the path MTU (IBTA C9-92): all packets except the last are full, and the last of
/// several is not empty.
pub(in crate::engine::qp) fn check_payload_length(
    packet: &Packet<'_>,
    mtu: u32,
) -> Result<(), Fault> {
    let (opcode, len, mtu) = (packet.bth().opcode, packet.payload().len(), mtu as usize);
    let fits = if opcode.is_only() {
        len <= mtu
    } else if opcode.is_last() {
        (1..=mtu).contains(&len)
    } else {
        len == mtu
    };
    if fits {
        Ok(())
    } else {
        Err(Fault::INVALID_REQUEST)
    }
}

/// Checks the length in a RETH (IBTA C9-94).
pub(in crate::engine::qp) fn check_dma_length(dma_len: u32) -> Result<(), Fault> {
    if u64::from(dma_len) <= MESSAGE_BYTES_MAX {
        Ok(())
    } else {
        Err(Fault::INVALID_REQUEST)
    }
}

//! Checks whether a packet is valid for this queue pair.

use portolan_provider::verbs::{QpState, QpType};
use portolan_wire::PKey;
use portolan_wire::bth::Transport;
use portolan_wire::rocev2::Packet;

use crate::engine::DropReason;

/// Checks that apply to every packet, before its PSN is considered (IBTA 9.6.1).
pub(super) fn check_packet(
    packet: &Packet<'_>,
    qp_type: QpType,
    state: QpState,
) -> core::result::Result<(), DropReason> {
    let bth = packet.bth();
    let is_expected = match state {
        QpState::Rts | QpState::Sqd | QpState::Sqe => true,
        // Requests are only sent from RTS on, so responses cannot arrive before.
        QpState::Rtr => bth.opcode.is_request(),
        _ => false,
    };
    if !is_expected {
        return Err(DropReason::State);
    }
    let transport = match qp_type {
        QpType::Rc => Transport::Rc,
        QpType::Uc => Transport::Uc,
        QpType::Ud => Transport::Ud,
        QpType::XrcSend | QpType::XrcRecv => Transport::Xrc,
    };
    let is_request = bth.opcode.is_request();
    let is_halfs = match qp_type {
        QpType::XrcSend => !is_request,
        QpType::XrcRecv => is_request,
        _ => true,
    };
    if bth.opcode.transport() != transport || !is_halfs {
        return Err(DropReason::Transport);
    }
    if bth.tver != 0 {
        return Err(DropReason::Version);
    }
    if !bth.pkey.matches(PKey::DEFAULT) {
        return Err(DropReason::PKey);
    }
    Ok(())
}

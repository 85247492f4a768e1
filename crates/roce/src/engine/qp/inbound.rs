//! Incoming messages, packet by packet: the common part of reliable and unreliable connections. Each handles refusals
//! itself.

use portolan_provider::verbs::{Access, WcOpcode, WcStatus, WorkCompletion};
use portolan_wire::eth::RethRepr;
use portolan_wire::rocev2::Packet;

use super::context::Context;
use super::outbox::Outbox;
use super::receive_queue::ReceiveQueue;
use super::receive_queue::receive_completion;
use super::segment::SgeCursor;
use crate::engine::{Placement, PlacementSource, RemoteAccessError};

/// A write in progress: at `va`, with `remaining` of `total` bytes missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct InboundWrite {
    rkey: u32,
    va: u64,
    remaining: u32,
    total: u32,
}

impl InboundWrite {
    pub(super) fn begin(reth: &RethRepr) -> Self {
        Self {
            rkey: reth.rkey,
            va: reth.va,
            remaining: reth.dma_len,
            total: reth.dma_len,
        }
    }

    /// Total length in bytes.
    pub(super) fn total(&self) -> u32 {
        self.total
    }

    /// Bytes missing after the packet; `None` if its payload length does not fit its opcode and the missing bytes.
    pub(super) fn left_after(&self, packet: &Packet<'_>) -> Option<u32> {
        let ends = packet.bth().opcode.ends_message();
        match self.remaining.checked_sub(payload_len(packet)) {
            Some(0) if ends => Some(0),
            Some(left) if left > 0 && !ends => Some(left),
            _ => None,
        }
    }

    /// Places the payload. Returns the write with `left` bytes missing.
    pub(super) fn place(
        self,
        left: u32,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<Self, RemoteAccessError> {
        let len = payload_len(packet);
        if let Some(addr) = remote_range(cx, self.rkey, self.va, len, Access::REMOTE_WRITE)? {
            let source_range = 0..packet.payload().len();
            out.placements.push_back(Placement {
                addr,
                source: PlacementSource::Payload,
                source_range,
            });
        }
        Ok(Self {
            va: self.va.wrapping_add(len.into()),
            remaining: left,
            ..self
        })
    }
}

/// Why a packet of a send is not placed.
pub(super) enum SendRefusal {
    /// No receive is posted.
    NoReceive,
    /// The message is longer than its receive.
    TooLong,
    /// The memory of the receive is not writable.
    Forbidden,
}

/// Places the payload of a send in the oldest receive, after the bytes placed before. Returns the number of bytes
/// placed in total.
pub(super) fn place_send(
    queue: &mut ReceiveQueue,
    cursor: &mut SgeCursor,
    placed: u64,
    cx: &Context<'_>,
    packet: &Packet<'_>,
    out: &mut Outbox,
) -> Result<u64, SendRefusal> {
    // A shared receive's memory belongs to its queue's protection domain.
    let pd = queue.pd().unwrap_or(cx.pd);
    let receive = queue.front().ok_or(SendRefusal::NoReceive)?;
    let cx = &Context { pd, ..*cx };
    let payload = packet.payload().len();
    let total = placed + payload as u64;
    if total > receive.capacity {
        return Err(SendRefusal::TooLong);
    }
    let source = PlacementSource::Payload;
    cursor
        .scatter(&receive.sges, placed, source, payload, cx, out)
        .map_err(|_| SendRefusal::Forbidden)?;
    Ok(total)
}

/// Completes the oldest receive, if any, with the data of its last packet.
pub(super) fn complete_receive(
    queue: &mut ReceiveQueue,
    cx: &Context<'_>,
    packet: &Packet<'_>,
    opcode: WcOpcode,
    byte_len: u32,
    out: &mut Outbox,
) {
    let Some(wr_id) = queue.pop_front() else {
        return;
    };
    let wc = WorkCompletion {
        opcode,
        byte_len,
        invalidated_rkey: packet.ieth().map(|ieth| ieth.rkey),
        imm_data: packet.immdt().map(|immdt| u32::from_ne_bytes(immdt.0)),
        ..receive_completion(wr_id, WcStatus::Success, cx.qpn)
    };
    out.complete_receive(wc, packet.bth().solicited);
}

/// The address of the peer's access. Empty ranges are not checked (IBTA C9-88) and have no address.
pub(super) fn remote_range(
    cx: &Context<'_>,
    rkey: u32,
    va: u64,
    len: u32,
    access: Access,
) -> Result<Option<u64>, RemoteAccessError> {
    if len == 0 {
        return Ok(None);
    }
    let checked = cx.memory.check_remote(cx.pd, cx.qpn, rkey, va, len, access);
    checked.map(Some)
}

/// A payload is at most one MTU long.
fn payload_len(packet: &Packet<'_>) -> u32 {
    packet.payload().len() as u32
}

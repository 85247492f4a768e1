//! Arguments of a call on a queue pair.

use core::time::Duration;

use portolan_provider::verbs::{NetworkHeader, QpAttr};
use portolan_wire::Qpn;
use portolan_wire::bth::{BthRepr, Opcode};
use portolan_wire::rocev2::{Headers, ICRC_LEN, pad_len};
use portolan_wire::{PKey, Psn};

use crate::engine::mutant::{Mutant, is_planted};
use crate::engine::{MemoryTable, PdId, QpConfig};

/// The queue pair as its requester and responder see it, the time, and the memory table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) now: Duration,
    pub(super) qpn: Qpn,
    pub(super) pd: PdId,
    pub(super) is_xrc: bool,
    pub(super) attr: &'a QpAttr,
    pub(super) memory: &'a MemoryTable,
    /// The network header of the handled packet, if it is a datagram.
    pub(super) network: Option<NetworkHeader>,
}

impl<'a> Context<'a> {
    #[inline]
    pub(super) fn new(
        config: &QpConfig,
        attr: &'a QpAttr,
        now: Duration,
        memory: &'a MemoryTable,
    ) -> Self {
        Self {
            now,
            qpn: config.qpn,
            pd: config.pd,
            is_xrc: config.init.qp_type.is_xrc(),
            attr,
            memory,
            network: None,
        }
    }

    /// Payload bytes of a full packet.
    #[inline]
    pub(super) fn mtu(&self) -> u32 {
        // At most 4096.
        self.attr.path_mtu.bytes() as u32
    }

    /// Builds the headers for the peer. `opcode` is an RC opcode, which becomes the XRC opcode if necessary.
    pub(super) fn headers(&self, opcode: Opcode, psn: Psn, payload_len: u32) -> Headers {
        self.bth(opcode, psn, payload_len).into()
    }

    /// As [`headers`](Self::headers), only the base header.
    #[inline]
    pub(super) fn bth(&self, opcode: Opcode, psn: Psn, payload_len: u32) -> BthRepr {
        let opcode = match self.is_xrc {
            true => opcode.as_xrc(),
            false => opcode,
        };
        base_header(self.attr, opcode, psn, payload_len)
    }
}

/// The base header of a packet for the peer.
#[inline]
pub(super) fn base_header(attr: &QpAttr, opcode: Opcode, psn: Psn, payload_len: u32) -> BthRepr {
    let mut bth = BthRepr::new(opcode, attr.dest_qpn, psn);
    bth.pkey = PKey::DEFAULT;
    bth.pad_count = pad_len(payload_len as usize) as u8;
    bth
}

/// Whether a packet fits into the host's current budget.
pub(super) fn fits(headers: &Headers, payload_len: u32, budget_bytes: usize) -> bool {
    let pad = usize::from(headers.bth.pad_count);
    headers.len() + payload_len as usize + pad + ICRC_LEN <= budget_bytes
}

/// The distance from `from` to `psn`; negative if `psn` is behind.
pub(super) fn distance(psn: Psn, from: Psn) -> i32 {
    if is_planted(Mutant::PsnsComparedAsIntegers) {
        return psn.value() as i32 - from.value() as i32;
    }
    psn.diff(from)
}

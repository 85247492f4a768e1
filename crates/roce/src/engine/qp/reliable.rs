//! The reliable connection: a requester and a responder, which alternate in sending.

use alloc::vec::Vec;

use portolan_provider::verbs::{QpInit, QpState};
use portolan_wire::rocev2::Packet;

use super::context::Context;
use super::outbox::Outbox;
use super::requester::{Broken, Built, Requester, Source};
use super::responder::{Refused, Responder};
use crate::engine::{FlowConfig, MemoryOperation, Segment};

/// The queue pair must enter ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed;

/// Both halves of an RC queue pair.
#[derive(Debug)]
pub(super) struct Reliable {
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    /// Read data were sent last: a request, if any, is next.
    requester_turn: bool,
}

impl Reliable {
    pub(super) fn new(init: &QpInit, flow: &FlowConfig) -> Self {
        Self {
            requester: Requester::new(init, flow),
            responder: Responder::new(init, flow),
            requester_turn: false,
        }
    }

    #[inline]
    pub(super) fn handle_packet(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> Result<(), Failed> {
        if packet.bth().opcode.is_response() {
            let handled = self.requester.handle_response(cx, packet, out);
            handled.map_err(|broken| self.broken(broken))
        } else {
            let handled = self.responder.handle_request(cx, packet, out);
            handled.map_err(|Refused| Failed)
        }
    }

    /// The next packet of either half. Acknowledgements have priority; read data and requests alternate, so that
    /// neither direction waits for a long transfer of the other.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        cx: &Context<'_>,
        budget_bytes: usize,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> Result<Option<Built>, Failed> {
        if self.requester_turn && self.responder.is_streaming() {
            self.requester_turn = false;
            let request = self.request(cx, budget_bytes, segments, out)?;
            if request.is_some() {
                return Ok(request);
            }
        }
        self.requester_turn = self.responder.is_streaming();
        let response = self.responder.transmit(cx, budget_bytes, segments, out);
        let response = response.map_err(|Refused| Failed)?;
        if let Some(headers) = response {
            let source = Source::Segments;
            return Ok(Some(Built { headers, source }));
        }
        self.request(cx, budget_bytes, segments, out)
    }

    #[inline]
    fn request(
        &mut self,
        cx: &Context<'_>,
        budget_bytes: usize,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> Result<Option<Built>, Failed> {
        // In SQD only packets of started work.
        if !matches!(cx.attr.state, QpState::Rts | QpState::Sqd) {
            return Ok(None);
        }
        let built = self.requester.transmit(cx, budget_bytes, segments, out);
        built.map_err(|broken| self.broken(broken))
    }

    /// The send queue cannot continue, so answers stop as well.
    pub(super) fn broken(&mut self, _: Broken) -> Failed {
        self.responder.silence();
        Failed
    }

    /// The requested change of the memory table.
    #[inline]
    pub(super) fn pending_memory_operation(&self) -> Option<MemoryOperation> {
        let received = self.responder.pending_invalidate();
        received.or_else(|| self.requester.pending_local())
    }
}

//! The differences between the service types.

use alloc::sync::Arc;
use alloc::vec::Vec;

use portolan_provider::verbs::{QpAttr, QpState, QpType, RecvWr, SendWr};
use portolan_provider::{Error, Result, Step};
use portolan_wire::Qpn;
use portolan_wire::rocev2::Packet;

use super::context::Context;
use super::outbox::Outbox;
use super::reliable::{Failed, Reliable};
use super::requester::Built;
use super::unacknowledged::{ReceiveFailed, SendFailed, Unacknowledged};
use crate::engine::{Destination, Path, QpConfig, ReceiveDomain, ReceiveSource, Segment};

/// Why there is no next packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransmitFailed {
    /// The queue pair must enter ERR and be polled again, because a refusal may be queued.
    QueuePair,
    /// The send queue must enter SQE.
    SendQueue,
}

/// A queue pair's halves, by its service type.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most are RC, and all queue pairs are on the heap"
)]
pub(super) enum Service {
    Rc(Reliable),
    Uc(Unacknowledged),
    Ud(Unacknowledged),
}

use Service::{Rc, Uc, Ud};

impl Service {
    pub(super) fn new(config: &QpConfig) -> Self {
        match config.init.qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                Rc(Reliable::new(&config.init, &config.flow))
            }
            QpType::Uc => Uc(Unacknowledged::new(config)),
            QpType::Ud => Ud(Unacknowledged::new(config)),
        }
    }

    /// The halves of an RC or XRC queue pair.
    #[inline]
    pub(super) fn reliable(&self) -> Option<&Reliable> {
        match self {
            Rc(halves) => Some(halves),
            Uc(_) | Ud(_) => None,
        }
    }

    /// As [`reliable`](Self::reliable).
    #[inline]
    pub(super) fn reliable_mut(&mut self) -> Option<&mut Reliable> {
        match self {
            Rc(halves) => Some(halves),
            Uc(_) | Ud(_) => None,
        }
    }

    /// Uses the shared receive queues of an XRC domain.
    pub(super) fn join_domain(&mut self, domain: Arc<dyn ReceiveDomain>) {
        if let Rc(halves) = self {
            halves.responder.join_domain(domain);
        }
    }

    /// Uses a shared receive queue.
    pub(super) fn share_receives(&mut self, source: Arc<dyn ReceiveSource>) {
        match self {
            Rc(halves) => halves.responder.share_receives(source),
            Uc(halves) | Ud(halves) => halves.share_receives(source),
        }
    }

    /// The queue pair is ready to receive.
    pub(super) fn start_receiving(&mut self, attr: &QpAttr) {
        match self {
            Rc(halves) => halves.responder.start(attr),
            Uc(halves) | Ud(halves) => halves.start_receiving(attr),
        }
    }

    /// The queue pair is ready to send.
    pub(super) fn start_sending(&mut self, attr: &QpAttr) {
        match self {
            Rc(halves) => halves.requester.start(attr),
            Uc(halves) | Ud(halves) => halves.sender().start(attr),
        }
    }

    /// The attributes of a queue pair that sends have changed.
    pub(super) fn configure_sending(&mut self, attr: &QpAttr) {
        match self {
            Rc(halves) => halves.requester.configure(attr),
            // None of them concerns a service without acknowledgements.
            Uc(_) | Ud(_) => {}
        }
    }

    /// Posts to the send queue of a connection.
    #[inline]
    pub(super) fn post_message(&mut self, wr: &SendWr<'_>, attr: &QpAttr) -> Result<()> {
        match self {
            Rc(halves) => halves.requester.post(wr, attr),
            Uc(halves) => halves.sender().post_message(wr, attr),
            Ud(_) => {
                let (what, expected) = ("destination", "an address handle, because the type is UD");
                Err(Error::invalid(Step::PostSend, what, expected, "none"))
            }
        }
    }

    /// Posts to the send queue of a UD queue pair.
    pub(super) fn post_datagram(&mut self, wr: &SendWr<'_>, to: Destination) -> Result<()> {
        match self {
            Ud(halves) => halves.sender().post_datagram(wr, to),
            Rc(_) | Uc(_) => {
                let (what, expected) = ("destination", "none, because the queue pair is connected");
                Err(Error::invalid(Step::PostSend, what, expected, to.qpn))
            }
        }
    }

    /// Whether a UC or UD queue pair has begun to send, or flushed a request.
    pub(super) fn has_begun(&self) -> bool {
        match self {
            Rc(_) => false,
            Uc(halves) | Ud(halves) => halves.has_begun(),
        }
    }

    /// Whether a UC or UD queue pair has a request and has not begun.
    pub(super) fn is_about_to_start(&self) -> bool {
        match self {
            Rc(_) => false,
            Uc(halves) | Ud(halves) => halves.is_about_to_start(),
        }
    }

    /// The destination of a UD queue pair's next datagram.
    pub(super) fn next_destination(&self) -> Option<&Destination> {
        match self {
            Rc(_) | Uc(_) => None,
            Ud(halves) => halves.next_destination(),
        }
    }

    /// Number of requests in the send queue.
    pub(super) fn posted(&mut self) -> usize {
        match self {
            Rc(halves) => halves.requester.posted(),
            Uc(halves) | Ud(halves) => halves.sender().posted(),
        }
    }

    /// Discards the requests after the first `posted`. None of them was started.
    pub(super) fn truncate(&mut self, posted: usize) {
        match self {
            Rc(halves) => halves.requester.truncate(posted),
            Uc(halves) | Ud(halves) => halves.sender().truncate(posted),
        }
    }

    #[inline]
    pub(super) fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        match self {
            Rc(halves) => halves.responder.post(wr),
            Uc(halves) | Ud(halves) => halves.post_recv(wr),
        }
    }

    /// Whether a packet is the peer's next one. Always false without a peer.
    #[inline]
    pub(super) fn expects(&self, packet: &Packet<'_>) -> bool {
        let bth = packet.bth();
        match self {
            Rc(halves) => bth.opcode.is_request() && halves.responder.expects(bth.psn),
            Uc(halves) => halves.expects(bth.psn),
            Ud(_) => false,
        }
    }

    /// Handles a packet of the queue pair's transport.
    #[inline]
    pub(super) fn handle_packet(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> core::result::Result<(), Failed> {
        let handled = match self {
            Rc(halves) => return halves.handle_packet(cx, packet, out),
            Uc(halves) => halves.take_part(cx, packet, out),
            Ud(halves) => halves.take_datagram(cx, packet, out),
        };
        handled.map_err(|ReceiveFailed| Failed)
    }

    /// The next packet, and its path if it is a datagram.
    #[inline]
    pub(super) fn transmit(
        &mut self,
        cx: &Context<'_>,
        budget_bytes: usize,
        segments: &mut Vec<Segment>,
        out: &mut Outbox,
    ) -> core::result::Result<Option<(Built, Option<Path>)>, TransmitFailed> {
        match self {
            Rc(halves) => match halves.transmit(cx, budget_bytes, segments, out) {
                Ok(built) => Ok(built.map(|built| (built, None))),
                Err(Failed) => Err(TransmitFailed::QueuePair),
            },
            Uc(halves) | Ud(halves) => {
                // In SQD only started requests.
                if !matches!(cx.attr.state, QpState::Rts | QpState::Sqd) {
                    return Ok(None);
                }
                let sender = halves.sender();
                let built = sender.transmit(cx, budget_bytes, segments, out);
                built.map_err(|SendFailed| TransmitFailed::SendQueue)
            }
        }
    }

    /// The inline bytes of the entry at `index`, counted from the oldest.
    #[inline]
    pub(super) fn inline_bytes(&mut self, index: usize) -> &[u8] {
        match self {
            Rc(halves) => halves.requester.inline_bytes(index),
            Uc(halves) | Ud(halves) => halves.sender().inline_bytes(),
        }
    }

    /// Whether all started requests are complete.
    pub(super) fn is_drained(&mut self) -> bool {
        match self {
            Rc(halves) => halves.requester.is_drained(),
            Uc(halves) | Ud(halves) => halves.sender().is_drained(),
        }
    }

    /// Completes all remaining sends with a flush error, in order.
    pub(super) fn flush_sends(&mut self, qpn: Qpn, out: &mut Outbox) {
        match self {
            Rc(halves) => halves.requester.flush(qpn, out),
            Uc(halves) | Ud(halves) => halves.flush_sends(qpn, out),
        }
    }

    /// Completes all remaining receives with a flush error, in order.
    pub(super) fn flush_receives(&mut self, qpn: Qpn, out: &mut Outbox) {
        match self {
            Rc(halves) => halves.responder.flush(qpn, out),
            Uc(halves) | Ud(halves) => halves.flush_receives(qpn, out),
        }
    }

    /// Discards queued responses.
    pub(super) fn silence(&mut self) {
        if let Rc(halves) = self {
            halves.responder.silence();
        }
    }

    /// Discards pending memory operations.
    pub(super) fn abandon(&mut self) {
        if let Rc(halves) = self {
            halves.responder.abandon();
        }
    }
}

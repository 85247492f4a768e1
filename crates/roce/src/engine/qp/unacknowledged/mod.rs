//! Services without acknowledgements: unreliable connections (UC) and datagrams (UD; IBTA 9.8).
//!
//! What is sent is done with once it is sent; what is lost, or found wrong on arrival, is dropped
//! with its whole message, and nobody is told. So there are no timers, no window and no responses:
//! the only things that hold a sender back are its own socket and its own pace.

mod connected;
mod datagram;
mod send;

use alloc::sync::Arc;

use portolan_provider::verbs::{QpAttr, QpType, RecvWr, SendWr, WcStatus};
use portolan_provider::{Error, Result, Step};
use portolan_wire::rocev2::Packet;
use portolan_wire::{Psn, Qpn};

use super::context::Context;
use super::outbox::Outbox;
use super::receive_queue::ReceiveQueue;
use super::responder::receive_completion;
use crate::engine::path::Destination;
use crate::engine::{DropReason, QpConfig, ReceiveSource};
use connected::Inbound;
pub(super) use send::SendFailed;
use send::Sender;

/// The memory of a receive may not be written: the queue pair is to enter ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiveFailed;

/// Both halves of a UC or UD queue pair.
#[derive(Debug)]
pub(super) struct Unacknowledged {
    qp_type: QpType,
    sender: Sender,
    receiver: Receiver,
}

/// The receiving half.
#[derive(Debug)]
struct Receiver {
    queue: ReceiveQueue,
    /// The message under way (UC).
    inbound: Inbound,
}

impl Unacknowledged {
    /// The halves of a queue pair of these types; `None` for another type.
    pub(super) fn new(config: &QpConfig) -> Option<Self> {
        let qp_type = config.init.qp_type;
        matches!(qp_type, QpType::Uc | QpType::Ud).then(|| Self {
            qp_type,
            sender: Sender::new(&config.init, config.limits.max_path_mtu),
            receiver: Receiver {
                queue: ReceiveQueue::new(&config.init),
                inbound: Inbound::default(),
            },
        })
    }

    /// Starts to receive at the PSN of a connection; datagrams have no order.
    pub(super) fn start_receiving(&mut self, attr: &QpAttr) {
        self.receiver.inbound = Inbound::starting_at(attr.rq_psn);
    }

    /// Starts to send.
    pub(super) fn start_sending(&mut self, attr: &QpAttr) {
        self.sender.start(attr);
    }

    /// Posts to the send queue of a UC queue pair.
    pub(super) fn post_message(&mut self, wr: &SendWr<'_>, attr: &QpAttr) -> Result<()> {
        if self.qp_type == QpType::Ud {
            let (what, expected) = ("destination", "an address handle, as the type is UD");
            return Err(Error::invalid(Step::PostSend, what, expected, "none"));
        }
        self.sender.post_message(wr, attr)
    }

    /// Posts to the send queue of a UD queue pair.
    pub(super) fn post_datagram(&mut self, wr: &SendWr<'_>, to: Destination) -> Result<()> {
        self.sender.post_datagram(wr, to)
    }

    /// Draws on a shared receive queue from now on.
    pub(super) fn share_receives(&mut self, source: Arc<dyn ReceiveSource>) {
        self.receiver.queue.share(source);
    }

    pub(super) fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        self.receiver.queue.push(wr)
    }

    pub(super) fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// Whether a packet is the next of the peer's, if there is a peer.
    pub(super) fn expects(&self, psn: Psn) -> bool {
        self.qp_type == QpType::Uc && self.receiver.inbound.expects(psn)
    }

    /// Takes in a packet of the queue pair's transport.
    pub(super) fn handle_packet(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> core::result::Result<(), ReceiveFailed> {
        match self.qp_type {
            QpType::Ud => self.receiver.take_datagram(cx, packet, out),
            _ => self.receiver.take_part(cx, packet, out),
        }
    }

    /// Completes every send left with a flush error, in order.
    pub(super) fn flush_sends(&mut self, qpn: Qpn, out: &mut Outbox) {
        self.sender.flush(qpn, out);
    }

    /// Completes every receive left with a flush error, in order.
    pub(super) fn flush_receives(&mut self, qpn: Qpn, out: &mut Outbox) {
        self.receiver.inbound.abandon();
        while let Some(wr_id) = self.receiver.queue.pop_front() {
            out.complete_receive(receive_completion(wr_id, WcStatus::WrFlushErr, qpn), false);
        }
    }
}

impl Receiver {
    /// The oldest receive is too short for what came: it ends with an error, alone. The owner posted
    /// too little, or a peer sent too much, which must not stop the queue pair for all others
    /// (IBTA 9.9.3).
    fn end_short_receive(&mut self, cx: &Context<'_>, out: &mut Outbox) {
        out.counters.count_drop(DropReason::Length);
        if let Some(wr_id) = self.queue.pop_front() {
            out.complete_receive(
                receive_completion(wr_id, WcStatus::LocLenErr, cx.qpn),
                false,
            );
        }
    }

    /// The memory of the oldest receive may not be written.
    fn end_forbidden_receive(&mut self, cx: &Context<'_>, out: &mut Outbox) -> ReceiveFailed {
        if let Some(wr_id) = self.queue.pop_front() {
            out.complete_receive(
                receive_completion(wr_id, WcStatus::LocProtErr, cx.qpn),
                false,
            );
        }
        ReceiveFailed
    }
}

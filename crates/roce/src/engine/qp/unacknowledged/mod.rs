//! Services without acknowledgements: unreliable connections (UC) and datagrams (UD; IBTA 9.8).
//!
//! A request is complete once it is sent. A packet that is lost or invalid is dropped with its whole message, without a
//! report. So there are no window and no responses; only the sender's socket or ring and pacing limit it. The only timer is
//! that of a connection whose ring has no room.

mod connected;
mod datagram;
mod send;

use alloc::sync::Arc;
use core::time::Duration;

use portolan_provider::Result;
use portolan_provider::verbs::{QpAttr, QpState, RecvWr, WcStatus};
use portolan_wire::rocev2::Packet;
use portolan_wire::{Psn, Qpn};

use super::context::Context;
use super::outbox::Outbox;
use super::receive_queue::{ReceiveQueue, receive_completion};
use crate::engine::path::Destination;
use crate::engine::{DropReason, QpConfig, ReceiveSource};
use connected::Inbound;
pub(super) use send::SendFailed;
use send::Sender;

/// The memory of a receive is not writable: the queue pair must enter ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReceiveFailed;

/// Both halves of a UC or UD queue pair.
#[derive(Debug)]
pub(super) struct Unacknowledged {
    sender: Sender,
    receiver: Receiver,
}

/// The receiving half.
#[derive(Debug)]
struct Receiver {
    queue: ReceiveQueue,
    /// The message in progress (UC).
    inbound: Inbound,
}

impl Unacknowledged {
    pub(super) fn new(config: &QpConfig) -> Self {
        Self {
            sender: Sender::new(&config.init, config.limits.max_path_mtu),
            receiver: Receiver {
                queue: ReceiveQueue::new(&config.init),
                inbound: Inbound::default(),
            },
        }
    }

    /// Initializes the receive PSN of a connection; datagrams have no order.
    pub(super) fn start_receiving(&mut self, attr: &QpAttr) {
        self.receiver.inbound = Inbound::starting_at(attr.rq_psn);
    }

    /// Switches to a shared receive queue.
    pub(super) fn share_receives(&mut self, source: Arc<dyn ReceiveSource>) {
        self.receiver.queue.share(source);
    }

    pub(super) fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        self.receiver.queue.push(wr)
    }

    pub(super) fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// Whether it has begun to send, or flushed a request.
    pub(super) fn has_begun(&self) -> bool {
        self.sender.has_begun()
    }

    /// Whether it has a request and has not begun.
    pub(super) fn is_about_to_start(&self) -> bool {
        self.sender.posted() > 0 && !self.sender.has_begun()
    }

    /// The destination of the next datagram (UD).
    pub(super) fn next_destination(&self) -> Option<&Destination> {
        self.sender.next_destination()
    }

    /// When requests that wait for room are lost.
    pub(super) fn next_timeout(&self, state: QpState) -> Option<Duration> {
        self.sender.next_timeout(state)
    }

    /// Whether a packet with this PSN is the peer's next one (UC).
    pub(super) fn expects(&self, psn: Psn) -> bool {
        self.receiver.inbound.expects(psn)
    }

    /// Handles a packet of a connection (UC).
    pub(super) fn take_part(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> core::result::Result<(), ReceiveFailed> {
        self.receiver.take_part(cx, packet, out)
    }

    /// Handles a datagram (UD).
    pub(super) fn take_datagram(
        &mut self,
        cx: &Context<'_>,
        packet: &Packet<'_>,
        out: &mut Outbox,
    ) -> core::result::Result<(), ReceiveFailed> {
        self.receiver.take_datagram(cx, packet, out)
    }

    /// Completes all remaining sends with a flush error, in order.
    pub(super) fn flush_sends(&mut self, qpn: Qpn, out: &mut Outbox) {
        self.sender.flush(qpn, out);
    }

    /// Completes all remaining receives with a flush error, in order.
    pub(super) fn flush_receives(&mut self, qpn: Qpn, out: &mut Outbox) {
        self.receiver.inbound.abandon();
        while let Some(wr_id) = self.receiver.queue.pop_front() {
            out.complete_receive(receive_completion(wr_id, WcStatus::WrFlushErr, qpn), false);
        }
    }
}

impl Receiver {
    /// The oldest receive is too short for the message, and completes with an error. The queue pair continues: one
    /// short receive or one long message must not stop it for others (IBTA 9.9.3).
    fn end_short_receive(&mut self, cx: &Context<'_>, out: &mut Outbox) {
        out.counters.count_drop(DropReason::Length);
        if let Some(wr_id) = self.queue.pop_front() {
            out.complete_receive(
                receive_completion(wr_id, WcStatus::LocLenErr, cx.qpn),
                false,
            );
        }
    }

    /// The memory of the oldest receive is not writable.
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

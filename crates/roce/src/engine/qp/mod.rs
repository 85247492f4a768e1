//! Queue pairs.

mod arrival;
mod attr;
mod congestion_window;
mod context;
mod inbound;
mod outbox;
mod receive_queue;
mod reliable;
mod requester;
mod responder;
mod retransmit_timer;
mod segment;
mod send_queue;
mod service;
mod unacknowledged;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use portolan_provider::verbs::{
    AsyncEvent, NetworkHeader, QpAttr, QpAttrMask, QpInit, QpState, QpType, RecvWr, SendWr,
};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::Qpn;
use portolan_wire::rocev2::Packet;

use super::{
    AtomicOperation, Completion, Destination, MemoryOperation, MemoryTable, Path, Payload, PdId,
    Placement, QpConfig, QpCounters, Segment, Transmit, WindowError,
};
pub(super) use receive_queue::check_pieces;
pub use receive_queue::{ReceiveDomain, ReceiveEntry, ReceiveSource};
pub(super) use send_queue::full;

use arrival::check_packet;
use context::Context;
use outbox::Outbox;
use reliable::Reliable;
use requester::{Built, Source};
use service::{Service, TransmitFailed};

/// Packets under way from which on those behind them can wait for a moment: an owner that posts so many waits for
/// none of them.
const STREAM_UNDER_WAY_MIN: u64 = 8;
/// Packets that are too many to wait: of the path MTU of 4096 they make the longest datagram.
const STREAM_WAITING_MAX: u64 = 16;

/// A queue pair, with no I/O: see the [module](super) for what its host does.
#[derive(Debug)]
pub struct QueuePair {
    config: QpConfig,
    attr: QpAttr,
    service: Service,
    shared_receives: Option<Arc<dyn ReceiveSource>>,
    domain: Option<Arc<dyn ReceiveDomain>>,
    outbox: Outbox,
    /// Places of the payload of the packet handed out last.
    segments: Vec<Segment>,
    /// The peer was heard in RTR, and the owner was told.
    is_established: bool,
    /// The owner is to be told once the send queue is drained.
    tells_drained: bool,
}

impl QueuePair {
    /// A queue pair in RESET.
    ///
    /// # Errors
    /// `InvalidArgument` for a depth, number of pieces or inline size beyond the limits, or two
    /// queues of depth zero.
    pub fn new(config: QpConfig) -> Result<Self> {
        config.check()?;
        Ok(Self {
            config,
            attr: QpAttr::default(),
            service: Service::new(&config),
            shared_receives: None,
            domain: None,
            outbox: Outbox::default(),
            segments: Vec::new(),
            is_established: false,
            tells_drained: false,
        })
    }

    /// A queue pair in RESET that draws its receives from a shared receive queue. What it was told
    /// of a receive queue of its own does not count.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_shared_receives(config: QpConfig, source: Arc<dyn ReceiveSource>) -> Result<Self> {
        let mut qp = Self::new(config)?;
        qp.shared_receives = Some(source);
        qp.share_receives();
        Ok(qp)
    }

    /// The receiving end of an extended reliable connection, in RESET. Its receives are those of its domain's
    /// shared receive queues, and memory is looked for in the protection domain of the queue that a request
    /// names.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn in_domain(config: QpConfig, domain: Arc<dyn ReceiveDomain>) -> Result<Self> {
        let mut qp = Self::new(config)?;
        qp.domain = Some(domain);
        qp.share_receives();
        Ok(qp)
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.config.qpn
    }

    /// Its protection domain.
    pub fn pd(&self) -> PdId {
        self.config.pd
    }

    /// Its type.
    pub fn qp_type(&self) -> QpType {
        self.config.init.qp_type
    }

    /// Its state.
    pub fn state(&self) -> QpState {
        self.attr.state
    }

    /// Attributes as they are now, and what it was created with (`ibv_query_qp(3)`).
    pub fn query(&self) -> (QpAttr, QpInit) {
        (self.attr, self.config.init)
    }

    /// Changes attributes and state (`ibv_modify_qp(3)`). To ERR: all work is flushed. To RESET:
    /// all work is forgotten, without completions. To SQD: requests that were begun are finished, nothing else
    /// is begun until RTS; `SqDrained` is raised then, if the mask has `EN_SQD_ASYNC_NOTIFY`.
    ///
    /// # Errors
    /// `InvalidState`, `InvalidArgument` or `Unsupported`; nothing has changed then.
    pub fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let previous = self.attr.state;
        let next = attr::check_modify(self.qp_type(), previous, attr, mask, &self.config.limits)?;
        match next {
            QpState::Reset => self.reset(),
            QpState::Err => {
                self.enter_error();
                self.service.silence();
            }
            _ => {
                attr::apply(&mut self.attr, attr, mask);
                self.attr.state = next;
                if next == QpState::Rtr {
                    self.service.start_receiving(&self.attr);
                }
                let is_start = next == QpState::Rts && previous == QpState::Rtr;
                // What was changed while the send queue was drained holds from now on.
                if is_start || previous == QpState::Sqd {
                    self.service.start_sending(&self.attr);
                }
                self.tells_drained = next == QpState::Sqd
                    && (self.tells_drained || mask.contains(QpAttrMask::EN_SQD_ASYNC_NOTIFY));
                self.note_drained();
            }
        }
        Ok(())
    }

    /// Moves to ERR for a cause outside of the queue pair (an overflowed completion queue, a device
    /// gone): all work is flushed and `QpFatal` is raised.
    pub fn fail(&mut self) {
        self.enter_error();
        self.service.silence();
        self.outbox.raise(AsyncEvent::QpFatal(self.config.qpn));
    }

    /// As [`fail`](Self::fail), after a panic within a call of the engine or of its host. What a packet was to do to
    /// memory is forgotten, for the memory table may have changed since that was checked.
    pub fn abandon(&mut self) {
        self.outbox.placements.clear();
        self.outbox.grh_placements.clear();
        self.service.abandon();
        self.fail();
    }

    /// Posts to the send queue of a connected queue pair; its `ud` is not looked at. In ERR and SQE the
    /// request is flushed at once.
    ///
    /// # Errors
    /// `InvalidState` in RESET, INIT and RTR; `LimitReached` if the queue is full;
    /// `InvalidArgument` for too many pieces, too much inline data, more than 2^31 bytes, an operation
    /// that the type does not have, a read or atomic where `max_rd_atomic` is zero, or the type UD.
    /// Nothing is posted then.
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<()> {
        self.check_posting()?;
        self.service.post_message(wr, &self.attr)?;
        self.flush_if_in_error();
        Ok(())
    }

    /// Whether packets wait, but few, behind others that are under way: they lose little time if they are sent a moment
    /// later, and more may be posted until then, with which they make one datagram. Never on a queue pair that
    /// nobody acknowledges.
    pub fn tail_can_wait(&self) -> bool {
        let is_stream = |halves: &Reliable| {
            (1..STREAM_WAITING_MAX).contains(&halves.requester.waiting())
                && halves.requester.under_way() >= STREAM_UNDER_WAY_MIN
        };
        self.attr.state == QpState::Rts && self.service.reliable().is_some_and(is_stream)
    }

    /// Whether packets that are sent from now on may overtake those sent before: nothing that a peer would miss is in
    /// flight.
    pub fn can_change_way(&self) -> bool {
        match self.service.reliable() {
            Some(halves) => halves.requester.under_way() == 0,
            // Nothing was sent yet.
            None => self.attr.state == QpState::Rtr,
        }
    }

    /// Posts a datagram to the send queue of a UD queue pair; the destination stands for its `ud`. In
    /// ERR and SQE it is flushed at once.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send); `InvalidArgument` for another type than UD and for more
    /// bytes than the port's MTU.
    pub fn post_datagram(&mut self, wr: &SendWr<'_>, to: Destination) -> Result<()> {
        self.check_posting()?;
        self.service.post_datagram(wr, to)?;
        self.flush_if_in_error();
        Ok(())
    }

    /// Posts requests to the send queue together, each with its destination if the type is UD: all of them or,
    /// if one is refused or is an error itself, none.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send) and [`post_datagram`](Self::post_datagram), of the first that is refused.
    pub fn post_sends<'a>(
        &mut self,
        wrs: impl IntoIterator<Item = Result<(SendWr<'a>, Option<Destination>)>>,
    ) -> Result<()> {
        self.check_posting()?;
        let posted = self.service.posted();
        for wr in wrs {
            let appended = wr.and_then(|(wr, to)| match to {
                None => self.service.post_message(&wr, &self.attr),
                Some(to) => self.service.post_datagram(&wr, to),
            });
            if let Err(error) = appended {
                self.service.truncate(posted);
                return Err(error);
            }
        }
        self.flush_if_in_error();
        Ok(())
    }

    fn check_posting(&self) -> Result<()> {
        match self.attr.state {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => Ok(()),
            other => Err(wrong_state(Step::PostSend, "RTS or SQD", other)),
        }
    }

    /// What is posted to a send queue in error ends there.
    fn flush_if_in_error(&mut self) {
        if matches!(self.attr.state, QpState::Sqe | QpState::Err) {
            self.flush_sends();
        }
    }

    /// Posts to the receive queue. In ERR the request is flushed at once.
    ///
    /// # Errors
    /// `InvalidState` in RESET; `LimitReached` if the queue is full; `InvalidArgument` for too many
    /// pieces. Nothing is posted then.
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        match self.attr.state {
            QpState::Reset => Err(wrong_state(
                Step::PostReceive,
                "INIT, RTR or RTS",
                QpState::Reset,
            )),
            state => {
                self.service.post_recv(wr)?;
                if state == QpState::Err {
                    self.flush_receives();
                }
                Ok(())
            }
        }
    }

    /// Takes in a packet that was addressed to this queue pair or to a group it is attached to, came
    /// from its peer's address if it is connected, and has a valid ICRC. Placements refer to its
    /// payload and its network header: carry them out before the next packet.
    pub fn handle_packet(&mut self, now: Duration, memory: &MemoryTable, packet: &Packet<'_>) {
        self.handle(now, memory, packet, None);
    }

    /// [`handle_packet`](Self::handle_packet) of a datagram, whose completion tells which header it came with.
    pub fn handle_datagram(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
        packet: &Packet<'_>,
        network: NetworkHeader,
    ) {
        self.handle(now, memory, packet, Some(network));
    }

    fn handle(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
        packet: &Packet<'_>,
        network: Option<NetworkHeader>,
    ) {
        debug_assert!(
            self.outbox.placements.is_empty(),
            "placements of the packet before were not carried out"
        );
        debug_assert!(
            self.poll_atomic().is_none(),
            "the atomic of the packet before was not carried out"
        );
        let (qp_type, state) = (self.qp_type(), self.attr.state);
        let counters = &mut self.outbox.counters;
        counters.packets_received += 1;
        counters.bytes_received += packet.payload().len() as u64;
        if let Err(reason) = check_packet(packet, qp_type, state) {
            counters.count_drop(reason);
            return;
        }
        self.note_established(packet);
        let cx = Context {
            network,
            ..Context::new(&self.config, &self.attr, now, memory)
        };
        let result = self.service.handle_packet(&cx, packet, &mut self.outbox);
        if result.is_err() {
            self.enter_error();
        }
        self.note_drained();
    }

    /// Tells the owner, if it asked, once the send queue is drained.
    fn note_drained(&mut self) {
        if !self.tells_drained || self.attr.state != QpState::Sqd {
            return;
        }
        if self.service.is_drained() {
            self.tells_drained = false;
            self.outbox.raise(AsyncEvent::SqDrained(self.config.qpn));
        }
    }

    /// Tells the owner once that the peer was heard in RTR.
    fn note_established(&mut self, packet: &Packet<'_>) {
        if self.attr.state != QpState::Rtr || self.is_established {
            return;
        }
        // Another number may be a stray's, from before this queue pair had its own.
        if self.service.expects(packet) {
            self.is_established = true;
            self.outbox.raise(AsyncEvent::CommEst(self.config.qpn));
        }
    }

    /// Does everything due at `now`. Calling it early is harmless.
    pub fn handle_timeout(&mut self, now: Duration) {
        let Some(halves) = self.service.reliable_mut() else {
            return;
        };
        let (qpn, out) = (self.config.qpn, &mut self.outbox);
        let result = halves.requester.on_timeout(now, qpn, out);
        if let Err(broken) = result {
            halves.broken(broken);
            self.enter_error();
        }
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next; `None` if nothing is awaited.
    /// May change with every other call.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.service.reliable()?.requester.next_timeout()
    }

    /// The next packet to send, if there is one now whose UDP payload fits `budget_bytes`.
    /// Ask until `None`, in every state: the refusal that put the queue pair into ERR is sent from
    /// there. Completions may have come up when it returns.
    pub fn poll_transmit(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
        budget_bytes: usize,
    ) -> Option<Transmit<'_>> {
        let (built, path) = self.build(now, memory, budget_bytes)?;
        let payload = match built.source {
            Source::Segments => Payload::Segments(&self.segments),
            Source::Inline { entry, range } => {
                let bytes = self.service.inline_bytes(entry);
                Payload::Inline(bytes.get(range).unwrap_or_default())
            }
        };
        let counters = &mut self.outbox.counters;
        counters.packets_sent += 1;
        counters.bytes_sent += payload.len() as u64;
        Some(Transmit {
            headers: built.headers,
            payload,
            path,
        })
    }

    /// The next packet, and its way if it is a datagram.
    fn build(
        &mut self,
        now: Duration,
        memory: &MemoryTable,
        budget_bytes: usize,
    ) -> Option<(Built, Option<Path>)> {
        loop {
            let cx = Context::new(&self.config, &self.attr, now, memory);
            let (segments, out) = (&mut self.segments, &mut self.outbox);
            match self.service.transmit(&cx, budget_bytes, segments, out) {
                Ok(Some(built)) => return Some(built),
                Ok(None) => {
                    // The last begun request may just have been completed.
                    self.note_drained();
                    return None;
                }
                Err(TransmitFailed::QueuePair) => self.enter_error(),
                Err(TransmitFailed::SendQueue) => {
                    // Receiving continues (IBTA 10.3.1.6).
                    self.attr.state = QpState::Sqe;
                    self.flush_sends();
                    return None;
                }
            }
        }
    }

    /// The next bytes of the packet just handled to copy to memory.
    pub fn poll_placement(&mut self) -> Option<Placement> {
        self.outbox.placements.pop_front()
    }

    /// The next bytes to copy to memory of the network header that the datagram just handled came
    /// with, in its 40 bytes as a receive buffer shows it (a GRH, or an IPv4 header behind 20 bytes
    /// of zeros: IBTA annex A17). Its range is of those 40 bytes.
    pub fn poll_grh_placement(&mut self) -> Option<Placement> {
        self.outbox.grh_placements.pop_front()
    }

    /// The atomic operation that the packet just handled asks for. The host carries it out after
    /// the placements, and returns the old value by [`complete_atomic`](Self::complete_atomic).
    pub fn poll_atomic(&self) -> Option<AtomicOperation> {
        self.service.reliable()?.responder.pending_atomic()
    }

    /// The operation of [`poll_atomic`](Self::poll_atomic) was carried out; `original` was there
    /// before. The answer to the peer waits to be sent.
    pub fn complete_atomic(&mut self, original: u64) {
        let mtu = self.attr.path_mtu.bytes() as u32;
        if let Some(halves) = self.service.reliable_mut() {
            halves.responder.complete_atomic(original, mtu);
        }
    }

    /// A change of the memory table that the packet just handled, or the work whose turn to be sent
    /// it is, asks for.
    pub fn poll_memory_operation(&self) -> Option<MemoryOperation> {
        self.service.reliable()?.pending_memory_operation()
    }

    /// The operation of [`poll_memory_operation`](Self::poll_memory_operation) was applied, with
    /// this outcome.
    pub fn complete_memory_operation(&mut self, outcome: core::result::Result<(), WindowError>) {
        let Some(halves) = self.service.reliable_mut() else {
            return;
        };
        if halves.responder.pending_invalidate().is_some() {
            halves.responder.complete_invalidate();
        } else {
            let (qpn, out) = (self.config.qpn, &mut self.outbox);
            halves.requester.complete_local(outcome, qpn, out);
        }
    }

    /// The next completion.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.outbox.completions.pop_front()
    }

    /// The next asynchronous event.
    pub fn poll_async_event(&mut self) -> Option<AsyncEvent> {
        self.outbox.events.pop_front()
    }

    /// What it has counted since it was created.
    pub fn counters(&self) -> &QpCounters {
        &self.outbox.counters
    }

    fn share_receives(&mut self) {
        if let Some(source) = &self.shared_receives {
            self.service.share_receives(Arc::clone(source));
        }
        if let Some(domain) = &self.domain {
            self.service.join_domain(Arc::clone(domain));
        }
    }

    fn enter_error(&mut self) {
        let previous = core::mem::replace(&mut self.attr.state, QpState::Err);
        if previous != QpState::Err && self.shared_receives.is_some() {
            // From now on it takes none (IBTA 11.6.3.2): its owner may take down what they need.
            self.outbox
                .raise(AsyncEvent::QpLastWqeReached(self.config.qpn));
        }
        self.flush_sends();
        self.flush_receives();
    }

    fn flush_sends(&mut self) {
        self.service.flush_sends(self.config.qpn, &mut self.outbox);
    }

    fn flush_receives(&mut self) {
        self.service
            .flush_receives(self.config.qpn, &mut self.outbox);
    }

    /// Back to the state after [`new`](Self::new), except counters and outputs that were not taken yet.
    fn reset(&mut self) {
        self.attr = QpAttr::default();
        self.service = Service::new(&self.config);
        self.is_established = false;
        self.tells_drained = false;
        self.share_receives();
    }
}

fn wrong_state(step: Step, expected: &'static str, found: QpState) -> Error {
    let found = found.name();
    Error::new(step, Cause::InvalidState { expected, found })
}

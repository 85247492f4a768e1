//! Queue pairs.

mod arrival;
mod atomic;
mod attr;
mod congestion_window;
mod context;
mod direct;
mod inbound;
mod outbox;
mod placed;
mod places;
mod pull;
mod receive_queue;
mod reliable;
mod requester;
mod responder;
mod retransmit_timer;
mod segment;
mod send_entry;
mod send_only;
mod send_queue;
mod service;
mod timeouts;
mod unacknowledged;
mod way;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use portolan_provider::verbs::{
    AsyncEvent, NetworkHeader, QpAttr, QpAttrMask, QpInit, QpState, QpType, RecvWr, Refusal, SendWr,
};
use portolan_provider::{Result, Step};
use portolan_wire::Qpn;
use portolan_wire::rocev2::Packet;

use super::{
    AtomicOperation, Completion, Destination, MemoryOperation, MemoryTable, Path, Payload, PdId,
    Placement, QpConfig, QpCounters, Segment, Transmit, WindowError,
};
pub use outbox::Completions;
pub use placed::Ahead;
pub(super) use receive_queue::check_pieces;
pub use receive_queue::{ReceiveDomain, ReceiveEntry, ReceiveSource};
pub(super) use send_queue::full;

use arrival::check_packet;
use attr::wrong_state;
use context::Context;
use outbox::Outbox;
use reliable::Reliable;
use requester::{Built, Source};
use service::{Service, TransmitFailed};

/// If this many packets are in flight, later ones can wait for a moment: their owner does not wait for a single one.
const STREAM_UNDER_WAY_MIN: u64 = 8;
/// Flush when this many packets are queued: with a path MTU of 4096 they fill the longest datagram.
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
    /// Payload segments of the packet returned last.
    segments: Vec<Segment>,
    /// The peer was heard in RTR, and the owner was notified.
    is_established: bool,
    /// The owner must be notified when the send queue is drained.
    tells_drained: bool,
}

impl QueuePair {
    /// Creates a queue pair in RESET.
    ///
    /// # Errors
    /// `InvalidArgument` for a depth, number of scatter/gather elements or inline size above the limits, or two queues
    /// of depth zero.
    pub fn new(config: QpConfig) -> Result<Self> {
        Self::checked(config, true)
    }

    fn checked(config: QpConfig, has_receives: bool) -> Result<Self> {
        config.check(has_receives)?;
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

    /// Creates a queue pair in RESET that uses a shared receive queue. The sizes of its own receive queue are ignored.
    ///
    /// # Errors
    /// As [`new`](Self::new), for the sizes of the send queue, which may have depth zero.
    pub fn with_shared_receives(config: QpConfig, source: Arc<dyn ReceiveSource>) -> Result<Self> {
        let mut qp = Self::checked(config, false)?;
        qp.shared_receives = Some(source);
        qp.share_receives();
        Ok(qp)
    }

    /// Creates the receiving end of an extended reliable connection, in RESET. It uses the receives of its domain's
    /// shared receive queues. Memory is checked in the protection domain of the queue that a request names.
    ///
    /// # Errors
    /// As [`with_shared_receives`](Self::with_shared_receives).
    pub fn in_domain(config: QpConfig, domain: Arc<dyn ReceiveDomain>) -> Result<Self> {
        let mut qp = Self::checked(config, false)?;
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
    #[inline]
    pub fn state(&self) -> QpState {
        self.attr.state
    }

    /// The current attributes, and those at creation (`ibv_query_qp(3)`).
    pub fn query(&self) -> (QpAttr, QpInit) {
        (self.attr, self.config.init)
    }

    /// Changes attributes and state (`ibv_modify_qp(3)`). A change to ERR flushes all work. A change to RESET discards
    /// all work without completions. A change to SQD finishes started requests and starts no others until RTS; then
    /// `SqDrained` is raised if the mask has `EN_SQD_ASYNC_NOTIFY`.
    ///
    /// # Errors
    /// `InvalidState`, `InvalidArgument` or `Unsupported`. An error changes nothing.
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
                match previous {
                    QpState::Rtr if next == QpState::Rts => self.service.start_sending(&self.attr),
                    // Attributes changed while the send queue was drained take effect now.
                    QpState::Sqd => self.service.configure_sending(&self.attr),
                    _ => {}
                }
                self.tells_drained = next == QpState::Sqd
                    && (self.tells_drained || mask.contains(QpAttrMask::EN_SQD_ASYNC_NOTIFY));
                self.note_drained();
            }
        }
        Ok(())
    }

    /// Moves to ERR for an external cause (an overflowed completion queue, a removed device): flushes all work and
    /// raises `QpFatal`.
    pub fn fail(&mut self) {
        self.enter_error();
        self.service.silence();
        self.outbox.raise(AsyncEvent::QpFatal(self.config.qpn));
    }

    /// Like [`fail`](Self::fail), after a panic during a call of the engine or its host. Discards pending memory
    /// operations, because the memory table may have changed since they were checked.
    pub fn abandon(&mut self) {
        self.outbox.placements.clear();
        self.outbox.grh_placements.clear();
        self.service.abandon();
        self.fail();
    }

    /// Posts to the send queue of a connected queue pair; `ud` of the request is ignored. In ERR and SQE the request is
    /// flushed at once.
    ///
    /// # Errors
    /// `InvalidState` in RESET, INIT and RTR; `LimitReached` if the queue is full;
    /// `InvalidArgument` for too many scatter/gather elements, too much inline data, more than 2^31 bytes, an operation
    /// that the type lacks, a read or atomic if `max_rd_atomic` is zero, or the type UD. An error posts nothing.
    #[inline]
    pub fn post_send(&mut self, wr: &SendWr<'_>) -> Result<()> {
        self.check_posting()?;
        self.service.post_message(wr, &self.attr)?;
        self.flush_if_in_error();
        Ok(())
    }

    /// Whether the send queue has requests: without any, posting has left nothing to be sent.
    #[inline]
    pub fn has_sends(&self) -> bool {
        match self.service.reliable() {
            Some(halves) => halves.requester.posted() > 0,
            None => true,
        }
    }

    /// Whether a few packets are queued behind others in flight. Sent a moment later, they lose little time and can
    /// share a datagram with later ones. Never on a queue pair without acknowledgements.
    #[inline]
    pub fn tail_can_wait(&self) -> bool {
        let is_stream = |halves: &Reliable| {
            (1..STREAM_WAITING_MAX).contains(&halves.requester.waiting())
                && halves.requester.under_way() >= STREAM_UNDER_WAY_MIN
                && halves.requester.has_packets_under_way()
        };
        self.attr.state == QpState::Rts && self.service.reliable().is_some_and(is_stream)
    }

    /// The destination of a UD queue pair's next datagram; `None` if it has none to send.
    pub fn next_destination(&self) -> Option<&Destination> {
        self.service.next_destination()
    }

    /// Posts a datagram to the send queue of a UD queue pair; `to` replaces the request's `ud`. In ERR and SQE it is
    /// flushed at once.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send); `InvalidArgument` for a type other than UD and for more bytes than the port's
    /// MTU.
    pub fn post_datagram(&mut self, wr: &SendWr<'_>, to: Destination) -> Result<()> {
        self.check_posting()?;
        self.service.post_datagram(wr, to)?;
        self.flush_if_in_error();
        Ok(())
    }

    /// Posts several requests to the send queue, each with its destination if the type is UD. If one of them is refused
    /// or is an error, none is posted.
    ///
    /// # Errors
    /// As [`post_send`](Self::post_send) and [`post_datagram`](Self::post_datagram), for the first refused request.
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

    #[inline]
    fn check_posting(&self) -> Result<()> {
        match self.attr.state {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => Ok(()),
            other => Err(wrong_state(Step::PostSend, "RTS or SQD", other)),
        }
    }

    /// Flushes requests that are posted in an error state.
    #[inline]
    fn flush_if_in_error(&mut self) {
        if matches!(self.attr.state, QpState::Sqe | QpState::Err) {
            self.flush_sends();
        }
    }

    /// Posts to the receive queue. In ERR the request is flushed at once.
    ///
    /// # Errors
    /// `InvalidState` in RESET; `LimitReached` if the queue is full; `InvalidArgument` for too many scatter/gather
    /// elements. An error posts nothing.
    #[inline]
    pub fn post_recv(&mut self, wr: &RecvWr<'_>) -> Result<()> {
        let state = self.attr.state;
        if state == QpState::Reset {
            let expected = "INIT, RTR or RTS";
            return Err(wrong_state(Step::PostReceive, expected, state));
        }
        self.service.post_recv(wr)?;
        if state == QpState::Err {
            self.flush_receives();
        }
        Ok(())
    }

    /// Handles a packet. It must have a valid ICRC, be addressed to this queue pair or to one of its groups and, if
    /// connected, come from the peer's address. Placements refer to its payload and network header: execute them before
    /// the next packet.
    pub fn handle_packet(&mut self, now: Duration, memory: &MemoryTable, packet: &Packet<'_>) {
        self.handle(now, memory, packet, None);
    }

    /// [`handle_packet`](Self::handle_packet) for a datagram, whose completion reports its network header.
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
            "placements of the previous packet were not executed"
        );
        debug_assert!(
            self.poll_atomic().is_none(),
            "the atomic operation of the previous packet was not executed"
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

    /// Notifies the owner, if requested, once the send queue is drained.
    #[inline]
    fn note_drained(&mut self) {
        if !self.tells_drained || self.attr.state != QpState::Sqd {
            return;
        }
        if self.service.is_drained() {
            self.tells_drained = false;
            self.outbox.raise(AsyncEvent::SqDrained(self.config.qpn));
        }
    }

    /// Notifies the owner once that the peer was heard in RTR.
    fn note_established(&mut self, packet: &Packet<'_>) {
        // A packet with another PSN may be a stray for an earlier queue pair of this number.
        if self.attr.state == QpState::Rtr && self.service.expects(packet) {
            self.hear_peer();
        }
    }

    /// As [`note_established`](Self::note_established): the peer was heard.
    fn hear_peer(&mut self) {
        if self.attr.state == QpState::Rtr && !core::mem::replace(&mut self.is_established, true) {
            self.outbox.raise(AsyncEvent::CommEst(self.config.qpn));
        }
    }

    /// The next packet that can be sent now and whose UDP payload fits into `budget_bytes`. Call until `None`, in every
    /// state, because a refusal is still sent after the queue pair enters ERR. May cause completions.
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

    /// The next packet, and its path if it is a datagram.
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
                    // The last started request may have completed now.
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

    /// The next bytes of the handled packet to copy to memory.
    pub fn poll_placement(&mut self) -> Option<Placement> {
        self.outbox.placements.pop_front()
    }

    /// The next bytes to copy of the network header of the handled datagram. The range refers to its 40 bytes in a
    /// receive buffer (a GRH, or 20 zero bytes and an IPv4 header: IBTA annex A17).
    pub fn poll_grh_placement(&mut self) -> Option<Placement> {
        self.outbox.grh_placements.pop_front()
    }

    /// The atomic operation that the handled packet requests. The host executes it after the placements, and returns
    /// the previous value by [`complete_atomic`](Self::complete_atomic).
    pub fn poll_atomic(&self) -> Option<AtomicOperation> {
        self.service.reliable()?.responder.pending_atomic()
    }

    /// The operation of [`poll_atomic`](Self::poll_atomic) was executed; `original` is the previous value. The answer
    /// to the peer is queued.
    pub fn complete_atomic(&mut self, original: u64) {
        let mtu = self.attr.path_mtu.bytes() as u32;
        if let Some(halves) = self.service.reliable_mut() {
            halves.responder.complete_atomic(original, mtu);
        }
    }

    /// A change of the memory table that the handled packet, or the next work request to send, requests.
    pub fn poll_memory_operation(&self) -> Option<MemoryOperation> {
        self.service.reliable()?.pending_memory_operation()
    }

    /// The operation of [`poll_memory_operation`](Self::poll_memory_operation) was applied, with this result.
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

    /// The completions to take, oldest first.
    #[inline]
    pub fn completions(&self) -> &[Completion] {
        self.outbox.completions.all()
    }

    /// Takes all [`completions`](Self::completions).
    #[inline]
    pub fn take_completions(&mut self) -> Completions {
        Completions(core::mem::take(&mut self.outbox.completions))
    }

    /// Uses the memory of completions that were taken for the next ones.
    #[inline]
    pub fn reuse(&mut self, mut taken: Completions) {
        if self.outbox.completions.is_empty() {
            taken.0.clear();
            self.outbox.completions = taken.0;
        }
    }

    /// Takes the next completion.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.outbox.completions.pop()
    }

    /// Whether there are events to take.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.outbox.events.is_empty()
    }

    /// The next asynchronous event.
    #[inline]
    pub fn poll_async_event(&mut self) -> Option<AsyncEvent> {
        self.outbox.events.pop_front()
    }

    /// The request of the peer that put the queue pair into ERR.
    pub fn refusal(&self) -> Option<Refusal> {
        self.outbox.refusal
    }

    /// Since when the peer has had no receive posted for the oldest unacknowledged message (RC).
    pub fn not_ready_since(&self) -> Option<Duration> {
        self.service.reliable()?.requester.not_ready_since()
    }

    /// The counters since creation.
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
            // It takes no more receives (IBTA 11.6.3.2), so the owner may release what they need.
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

    /// Returns to the state after [`new`](Self::new), except for counters and outputs that were not taken yet.
    fn reset(&mut self) {
        self.attr = QpAttr::default();
        self.service = Service::new(&self.config);
        self.is_established = false;
        self.tells_drained = false;
        self.outbox.refusal = None;
        self.share_receives();
    }
}

//! Executes what the engines of queue pairs request after each call: sends packets, binds memory windows, delivers
//! completions and events, and stores deadlines.

#![allow(
    unsafe_code,
    reason = "vouches for the memory that packets are built from"
)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_provider::verbs::{AsyncEvent, Cqn, QpState, QpType};
use portolan_wire::bth::Opcode;

use crate::engine::{Completion, MemoryOperation, MemoryTable, Queue};
use crate::io::host::Host;
use crate::io::host::completion_queue::{CqCore, Overflowed};
use crate::io::host::direct::CHUNK;
use crate::io::host::queue_pair::{Completes, LinkWait, LockedQp, QpCore};
use crate::io::host::stage::{stage, stage_headers, with_batch};
use crate::io::host::xrc_domain::XrcDomain;
use crate::io::net::path::Path;
use crate::io::net::send_batch::{PACKET_LEN_MAX, SendBatch};
use crate::io::net::sockopt::IpVersion;
use crate::io::net::transmit::{Room, SendSocket, Turn};
use crate::io::polling::clock::as_nanos;
use crate::io::polling::progress::LOOK_INTERVAL;

impl Host {
    /// Sends posted requests.
    ///
    /// If the owner polls, the last packets of a stream may wait until it polls or posts again. Packets that are sent
    /// together form one datagram, and cost one system call at both ends.
    #[inline]
    pub(crate) fn posted(&self, qp: &QpCore, state: &mut LockedQp) {
        if state.owes && state.engine.tail_can_wait() {
            // The queue pair will be settled soon, and that sends this request as well.
            return;
        }
        if self.post_at_once(qp, state) {
            return;
        }
        self.go_direct(qp, state);
        if state.owes || state.deferred || state.engine.has_sends() {
            self.packets_posted(qp, state, self.clock.recent());
        } else {
            self.report(qp, state);
        }
    }

    /// Sends posted whole sends through a ring, if nothing else is to be done.
    #[inline]
    fn post_at_once(&self, qp: &QpCore, state: &mut LockedQp) -> bool {
        if state.link.is_none() || state.engine.is_one_sided_next() || state.engine.tail_can_wait()
        {
            return false;
        }
        state.not_before(self.clock.recent());
        if !self.transmit_sends(state) {
            return false;
        }
        if std::mem::replace(&mut state.owes, false) {
            self.deferred_acks.cross_out(qp.qpn);
        }
        if state.engine.has_results() {
            self.report(qp, state);
        } else {
            self.keep_timer(qp, state);
        }
        true
    }

    fn packets_posted(&self, qp: &QpCore, state: &mut LockedQp, now: Duration) {
        if state.engine.tail_can_wait() && self.progress.is_polled(now) {
            self.settle_soon(qp, state, now);
        } else {
            self.settle(qp, state, now);
        }
    }

    /// Makes the owner's next poll settle the queue pair, or the progress thread after half of [`LOOK_INTERVAL`] to twice as
    /// long as that.
    pub(crate) fn settle_soon(&self, qp: &QpCore, state: &mut LockedQp, now: Duration) {
        if !std::mem::replace(&mut state.owes, true) {
            let now_ns = as_nanos(now);
            if !self.deferred_acks.any() {
                self.deferred_at_ns.store(now_ns, Ordering::Relaxed);
            }
            self.deferred_acks.note(qp.qpn);
            let until_ns = now_ns.saturating_add(as_nanos(LOOK_INTERVAL));
            self.progress.wake_before_ns(until_ns);
        }
    }

    /// As [`settle_deferred`](Self::settle_deferred), in the progress thread. While pollers are active, it leaves to them
    /// what the first of them deferred less than half of [`LOOK_INTERVAL`] ago: it would take the locks from them.
    pub(crate) fn settle_deferred_beside(&self, are_active: bool, now: Duration) {
        let age_ns = as_nanos(now).saturating_sub(self.deferred_at_ns.load(Ordering::Relaxed));
        if !are_active || age_ns >= as_nanos(LOOK_INTERVAL / 2) {
            self.settle_deferred();
        }
    }

    /// Settles all queue pairs that delay an acknowledgement. Returns whether there were any. The caller holds no lock.
    #[inline]
    pub(crate) fn settle_deferred(&self) -> bool {
        let any = self.deferred_acks.any();
        if any {
            self.settle_all_deferred();
        }
        any
    }

    fn settle_all_deferred(&self) {
        while let Some(qpn) = self.deferred_acks.take() {
            if let Some(qp) = self.qps.find(qpn) {
                let mut state = qp.lock();
                // It may have sent its acknowledgement with something else meanwhile.
                if state.owes && !state.closed {
                    self.settle(&qp, &mut state, self.clock.recent());
                }
            }
        }
    }

    /// Executes what the engine requests after a call other than `handle_packet`.
    pub(crate) fn settle(&self, qp: &QpCore, state: &mut LockedQp, now: Duration) {
        // The caller may hold the receive lock, so most of many responses wait for a turn.
        self.settle_within(qp, state, now, CHUNK);
    }

    /// As [`settle`](Self::settle), with about `left` bytes of responses to reads.
    pub(super) fn settle_within(
        &self,
        qp: &QpCore,
        state: &mut LockedQp,
        now: Duration,
        left: u32,
    ) {
        let now = state.not_before(now);
        loop {
            self.go_direct(qp, state);
            self.choose_way(state);
            if self.waits_for_link(state, now) {
                state.owes = false;
                break;
            }
            let is_idle = self.transmit_sends(state);
            if is_idle {
                state.owes = false;
                break;
            }
            self.hold_writes(state);
            let memory = self.memory.read();
            self.transmit(qp, state, (now, left), &memory);
            drop(memory);
            // Each round completes one posted work request.
            let Some(operation) = state.engine.poll_memory_operation() else {
                break;
            };
            self.change_memory(state, &operation);
        }
        self.report(qp, state);
    }

    /// Binds or invalidates a memory window. After this returns, no copy uses the withdrawn rights.
    pub(crate) fn change_memory(&self, state: &mut LockedQp, operation: &MemoryOperation) {
        let mut memory = self.memory.write();
        let outcome = memory.apply(operation);
        drop(memory);
        state.engine.complete_memory_operation(outcome);
    }

    /// After a panic of a thread. Settles all queue pairs, so that the owners of failed ones are notified. Any thread may have
    /// locked those meanwhile, so they cannot be told apart. Frees the room of what the thread read from a ring.
    pub(crate) fn mend_after_panic(&self) {
        for qp in self.qps.all() {
            self.resume(&qp);
        }
        if let Some(links) = &self.links {
            self.receiver.lock().release_rings(links.head_page());
            self.look_at_rings_again();
        }
    }

    /// Resumes a queue pair that waited for room in its socket.
    pub(crate) fn resume(&self, qp: &QpCore) {
        let mut state = qp.lock();
        state.deferred = false;
        if !state.closed {
            let now = self.clock.now();
            self.settle(qp, &mut state, now);
        }
    }

    /// Changes a queue pair's path, and the counts by IP version that select which sockets pollers read.
    pub(crate) fn replace_path(&self, state: &mut LockedQp, path: Option<Path>) {
        let count = |path: &Option<Path>| {
            path.and_then(|path| path.version())
                .map(|version| self.progress.connected(version))
        };
        if let Some(count) = count(&path) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(count) = count(&state.path) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        let by_sockets = self.progress.by_sockets();
        if path.is_some() {
            by_sockets.fetch_add(1, Ordering::Relaxed);
        }
        if state.path.is_some() && state.link.is_none() {
            by_sockets.fetch_sub(1, Ordering::Relaxed);
        }
        self.end_pull(state);
        self.end_copy(state);
        (state.link, state.links_seen) = (None, 0);
        state.engine.wait_to_change_way(false);
        state.link_wait = LinkWait::default();
        state.path = path;
        state.peer = None;
        // The room that it waited for is not that of the new path.
        state.deferred = false;
    }

    /// Builds and sends what the engine has queued, but not many more than `left` bytes of responses to reads: the peer
    /// may request gigabytes, and the socket need not fill.
    ///
    /// Acknowledgements are sent after requests, because a program may be waiting for a request. They are never sent
    /// after a response that the engine emitted later, because the peer relies on the order of responses.
    fn transmit(
        &self,
        qp: &QpCore,
        state: &mut LockedQp,
        (now, left): (Duration, u32),
        memory: &MemoryTable,
    ) {
        if qp.qp_type == QpType::Ud {
            return self.transmit_datagrams(qp, state, now, memory);
        }
        state.owes = false;
        if state.responds {
            return;
        }
        let Some(path) = state.path else { return };
        let version = IpVersion::of(path.local);
        let link = state.link.clone();
        let Some(socket) = link
            .as_deref()
            .or_else(|| self.transmitter.socket(version, qp.qpn))
        else {
            return;
        };
        if socket.is_full() && defers(qp, state, socket, Turn::Missed) {
            return;
        }
        let flow = match socket.is_ring() {
            true => None,
            false => match path.flow(socket.port()) {
                None => return,
                flow => flow,
            },
        };
        let flow = flow.as_ref();
        let coalesce = socket.coalesces();
        with_batch(|batch| {
            let mut held = None;
            let mut left = left as usize;
            while let Some(transmit) = state.engine.poll_transmit(now, memory, PACKET_LEN_MAX) {
                let opcode = transmit.headers.bth.opcode;
                if let Some(headers) = held.take_if(|_| opcode.is_response()) {
                    stage_headers(batch, headers, flow);
                }
                if opcode.as_rc() == Opcode::RcAck {
                    held = Some(transmit.headers);
                } else {
                    // SAFETY: the engine checked the segments against `memory` in the call above,
                    // and the table is locked while the reference to it exists.
                    unsafe { stage(batch, &transmit, flow, coalesce) };
                    if opcode.is_read_response() {
                        left = left.saturating_sub(transmit.payload.len());
                    }
                }
                if left == 0 {
                    self.respond_soon(state);
                    break;
                }
                if !batch.has_room(2) && !self.send(qp, state, socket, batch, &path) {
                    break;
                }
                if state.engine.is_transmit_idle() {
                    break;
                }
            }
            if let Some(headers) = held {
                stage_headers(batch, headers, flow);
            }
            if !batch.is_empty() {
                self.send(qp, state, socket, batch, &path);
            }
        });
    }

    /// Sends staged packets. Returns whether the queue pair may continue. If not, it is registered with its socket,
    /// which resumes it when there is room.
    fn send(
        &self,
        qp: &QpCore,
        state: &mut LockedQp,
        socket: &SendSocket,
        batch: &mut SendBatch,
        path: &Path,
    ) -> bool {
        let room = socket.send(batch, path, &self.monitor);
        if room == Room::JustFilled {
            self.progress.watch_for_room(&self.transmitter, socket);
        }
        room == Room::Left || !defers(qp, state, socket, Turn::Had)
    }

    /// Delivers completions and events, and stores the next timeout.
    #[inline(never)]
    pub(crate) fn report(&self, qp: &QpCore, state: &mut LockedQp) {
        let overflowed = self.deliver(qp, state);
        if overflowed.is_some() || state.engine.has_events() {
            self.raise_events(qp, state, overflowed);
        }
        if state.given.is_some() && state.engine.state() == QpState::Err {
            self.withdraw_qp(state);
        }
        self.keep_timer(qp, state);
    }

    /// As [`report`](Self::report), after a call that has changed no timeout and no state.
    #[inline(always)]
    pub(super) fn report_completions(&self, qp: &QpCore, state: &mut LockedQp) {
        let overflowed = self.deliver(qp, state);
        if overflowed.is_some() {
            self.raise_events(qp, state, overflowed);
            self.report(qp, state);
        }
    }

    /// Raises events. `overflowed` is a completion queue that has lost completions of the queue pair.
    #[cold]
    fn raise_events(&self, qp: &QpCore, state: &mut LockedQp, mut overflowed: Option<Cqn>) {
        let raise = |event| {
            if !qp.device.push_async_event(event) {
                self.monitor.counters.async_overflows.up();
            }
        };
        loop {
            while let Some(event) = state.engine.poll_async_event() {
                if let AsyncEvent::CommEst(qpn) = event {
                    self.comm_est.note(qpn);
                    self.progress.wake();
                }
                raise(event);
            }
            let Some(full) = overflowed else {
                break;
            };
            let has_failed = state.engine.state() == QpState::Err;
            if !std::mem::replace(&mut state.overflowed, true) || !has_failed {
                raise(AsyncEvent::CqErr(full));
            }
            if has_failed {
                break;
            }
            // A queue pair that lost completions cannot be trusted any more (IBTA 10.2.6.3). Failing it flushes the
            // rest, which is lost as well.
            state.engine.fail();
            overflowed = self.deliver(qp, state).or(overflowed);
        }
    }

    /// Delivers completions. Locks a completion queue once for several in a row. Returns a queue that has lost some.
    #[inline(always)]
    fn deliver(&self, qp: &QpCore, state: &mut LockedQp) -> Option<Cqn> {
        if state.engine.completions().is_empty() {
            return None;
        }
        if let Completes::Own { send, receive } = &qp.completes
            && Arc::ptr_eq(send, receive)
        {
            let lost = &self.monitor.counters.completion_overflows;
            let added = send.add(state.engine.completions(), lost);
            // Before the notification: if that panics, none is delivered twice.
            state.engine.clear_completions();
            return added.announce().err().map(|Overflowed| send.number());
        }
        self.deliver_to_several(qp, state)
    }

    /// As [`deliver`](Self::deliver), for other queue pairs than those with one completion queue.
    #[inline(never)]
    fn deliver_to_several(&self, qp: &QpCore, state: &mut LockedQp) -> Option<Cqn> {
        // Taken before, so that none is delivered twice if a notification panics.
        let taken = state.engine.take_completions();
        let completions = taken.all();
        let overflowed = match &qp.completes {
            Completes::Own { send, receive } => self.deliver_apart(send, receive, completions),
            Completes::Domain(domain) => self.deliver_in(domain, completions),
        };
        state.engine.reuse(taken);
        overflowed
    }

    /// Delivers completions, at least one, to a completion queue. Returns it if it has lost some.
    #[inline]
    fn deliver_to(&self, cq: &CqCore, completions: &[Completion]) -> Option<Cqn> {
        let lost = &self.monitor.counters.completion_overflows;
        match cq.deliver(completions, lost) {
            Ok(()) => None,
            Err(Overflowed) => Some(cq.number()),
        }
    }

    /// Delivers completions to two completion queues.
    fn deliver_apart(
        &self,
        send: &CqCore,
        receive: &CqCore,
        completions: &[Completion],
    ) -> Option<Cqn> {
        let is_send = |completion: &Completion| completion.queue == Queue::Send;
        let mut overflowed = None;
        for run in completions.chunk_by(|a, b| is_send(a) == is_send(b)) {
            let cq = match run.first().is_some_and(is_send) {
                true => send,
                false => receive,
            };
            overflowed = overflowed.or(self.deliver_to(cq, run));
        }
        overflowed
    }

    /// Delivers completions to the completion queues of a domain's shared receive queues. An XRC receiving queue pair has
    /// no work requests of its own.
    fn deliver_in(&self, domain: &XrcDomain, completions: &[Completion]) -> Option<Cqn> {
        let mut overflowed = None;
        for completion in completions {
            let cq = match completion.queue {
                Queue::Shared(srqn) => domain.cq_of(srqn),
                _ => None,
            };
            if let Some(cq) = cq {
                let one = std::slice::from_ref(completion);
                overflowed = overflowed.or(self.deliver_to(&cq, one));
            }
        }
        overflowed
    }

    /// As [`keep_timer`](Self::keep_timer), after a call that only changed the engine's timeout.
    #[inline(always)]
    pub(super) fn keep_timer_of_engine(&self, qp: &QpCore, state: &mut LockedQp) {
        let wanted = state.engine.poll_timeout();
        self.keep(qp, state, wanted);
    }

    /// Stores the next timeout, unless an earlier one is stored.
    #[inline(always)]
    pub(super) fn keep_timer(&self, qp: &QpCore, state: &mut LockedQp) {
        let mut wanted = state.engine.poll_timeout();
        // Mostly there are no others.
        if state.pulled.is_some()
            || state.link_wait.next_look.is_some()
            || state.datagram_wait.is_some()
        {
            let of_pull = state.pulled.as_ref().map(|pulled| pulled.deadline);
            let of_datagrams = state.datagram_wait.as_ref().map(|wait| wait.until);
            let timeouts = [wanted, of_pull, of_datagrams, state.link_wait.next_look];
            wanted = timeouts.into_iter().flatten().min();
        }
        self.keep(qp, state, wanted);
    }

    #[inline(always)]
    fn keep(&self, qp: &QpCore, state: &mut LockedQp, wanted: Option<Duration>) {
        if let Some(wanted) = wanted
            && state.timer.is_none_or(|timer| timer > wanted)
        {
            self.set_timer(qp, state, wanted);
        }
    }

    #[cold]
    fn set_timer(&self, qp: &QpCore, state: &mut LockedQp, wanted: Duration) {
        let is_next = self.deadlines.set(qp.qpn, &mut state.timer, Some(wanted));
        if is_next {
            self.progress.wake_before(wanted);
        }
    }
}

/// Registers a connected queue pair with a full socket or ring. False if there is room again: the queue pairs that waited
/// are resumed already, and this one would not be.
#[cold]
fn defers(qp: &QpCore, state: &mut LockedQp, socket: &SendSocket, turn: Turn) -> bool {
    let is_new = !state.deferred;
    state.deferred = state.deferred || socket.defers(qp.qpn, turn).is_some();
    // A socket always gets room again. A ring gets none while its reader is stopped.
    if state.deferred && socket.is_ring() {
        state.engine.wait_for_room(state.latest, is_new);
    }
    state.deferred
}

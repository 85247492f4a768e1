//! Driving queue pairs: what the engine asks for after every call is carried out here.

use std::cell::{Cell, RefCell};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_provider::verbs::{AsyncEvent, QpState, QpType};
use portolan_wire::bth::Opcode;
use portolan_wire::icrc::{self, Flow};
use portolan_wire::rocev2::{Headers, Packet};

use super::clock::as_nanos;
use super::memory_access;
use super::path::Path;
use super::progress::LOOK_INTERVAL;
use super::qp::{QpCore, State};
use super::receive::Arrived;
use super::send_batch::{PACKET_LEN_MAX, SendBatch};
use super::shared::Shared;
use super::sockopt::IpVersion;
use super::transmit::{Room, SendSocket};
use crate::engine::{MemoryOperation, MemoryTable, Payload, Queue, Transmit};

/// Deadlines served in one turn; more are due at once again.
const TIMERS_PER_TURN: usize = 1024;
/// Fruitless polls, a few tens of microseconds, before a poller lets others run.
const FRUITLESS_POLLS: u32 = 64;

/// When a queue pair sends its acknowledgements and other answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// At once.
    Now,
    /// When its owner, who is polling, posts or polls again, or after [`LOOK_INTERVAL`] at the
    /// latest: what arrived is the owner's at once, and what the owner has to say goes first.
    AfterTheOwner,
}

impl Shared {
    /// Drives the device from a thread that polls a completion queue: takes packets and then serves
    /// timers, unless another thread is at it.
    pub(super) fn drive(&self) {
        let now = self.clock.now();
        self.progress.poller_is_here(now);
        self.owed.settle(self);
        let taken = match self.receiver.try_lock() {
            Ok(mut receiver) => {
                let taken = receiver.turn(self, Answer::AfterTheOwner);
                drop(receiver);
                self.serve_timers(now);
                taken
            }
            // Whoever has the lock serves the timers, too, once it has read.
            Err(_) => 0,
        };
        make_way(taken > 0);
    }

    /// Calls the queue pairs whose time has come, after taking what waits in the sockets: it may be
    /// what they wait for. By the progress thread, which may not have been woken for it: pollers read
    /// the sockets, and all of them may have been stopped meanwhile.
    pub(super) fn read_and_serve_timers(&self) {
        let now = self.clock.now();
        if self.timers.next_ns() > as_nanos(now) {
            return;
        }
        let mut receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.turn(self, Answer::Now);
        drop(receiver);
        self.serve_timers(now);
    }

    /// Calls the queue pairs whose time had come at `now`. The caller has read the sockets since: an
    /// answer that waits there is none that is missing.
    fn serve_timers(&self, now: Duration) {
        if self.timers.next_ns() > as_nanos(now) {
            return;
        }
        for _ in 0..TIMERS_PER_TURN {
            let Some((due, qpn)) = self.timers.take_due(now) else {
                return;
            };
            let Some(qp) = self.qps.find(qpn) else {
                continue;
            };
            let mut state = qp.lock();
            if state.closed {
                continue;
            }
            if state.timer == Some(due) {
                state.timer = None;
            }
            // Its clock must not go back: packets may have been handled since `now`.
            let now = self.clock.now();
            state.engine.handle_timeout(now);
            self.settle(&qp, &mut state, now);
        }
    }

    /// Hands a queue pair packets that arrived for it, in order. `answer` says when it answers.
    pub(super) fn receive<'a>(
        &self,
        qp: &QpCore,
        packets: impl Iterator<Item = Arrived<'a>>,
        answer: Answer,
    ) {
        if qp.qp_type == QpType::Ud {
            return self.receive_datagrams(qp, packets);
        }
        let counters = &self.monitor.counters;
        let mut state = qp.lock();
        let Some(path) = state.path.filter(|_| !state.closed) else {
            counters.dropped_no_queue_pair.add(packets.count());
            return;
        };
        let now = self.clock.now();
        let mut memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        for arrived in packets {
            if !path.is_from_peer(arrived.source, arrived.destination) {
                counters.dropped_spoofed.up();
                continue;
            }
            let Ok(packet) = Packet::parse(arrived.payload) else {
                counters.dropped_malformed.up();
                continue;
            };
            state.engine.handle_packet(now, &memory, &packet);
            while let Some(placement) = state.engine.poll_placement() {
                if let Some(bytes) = placement.bytes(packet.payload()) {
                    // SAFETY: the engine checked the range against `memory` in the call above, and
                    // the table has been locked since.
                    unsafe { memory_access::place(placement.addr, bytes) };
                }
            }
            if let Some(operation) = state.engine.poll_atomic() {
                // SAFETY: the engine checked address, alignment and rights against `memory` in the
                // call above, and the table has been locked since.
                let original = unsafe { memory_access::execute_atomic(operation) };
                state.engine.complete_atomic(original);
            }
            if let Some(operation) = state.engine.poll_memory_operation() {
                drop(memory);
                self.change_memory(&mut state, &operation);
                memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
            }
        }
        drop(memory);
        // The owner is told first: it wakes up while the answer is sent.
        self.report(qp, &mut state);
        match answer {
            Answer::Now => self.settle(qp, &mut state, now),
            Answer::AfterTheOwner => self.settle_soon(qp, &mut state, now),
        }
    }

    /// Sends what was posted. A stream whose owner polls now and then may wait until it does so, or has posted more:
    /// what leaves together is one datagram, and one system call at both ends.
    pub(super) fn posted(&self, qp: &QpCore, state: &mut State, now: Duration) {
        if state.engine.tail_can_wait() && self.progress.is_polled(now) {
            self.settle_soon(qp, state, now);
        } else {
            self.settle(qp, state, now);
        }
    }

    /// Has a queue pair settled when its owner polls next, or after [`LOOK_INTERVAL`].
    fn settle_soon(&self, qp: &QpCore, state: &mut State, now: Duration) {
        self.owed.note(qp.qpn, state);
        self.progress.wake_before(now + LOOK_INTERVAL);
    }

    /// Carries out what the engine asks for after a call other than `handle_packet`.
    pub(super) fn settle(&self, qp: &QpCore, state: &mut State, now: Duration) {
        loop {
            let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
            self.transmit(qp, state, now, &memory);
            drop(memory);
            // Each time round one piece of posted work is done.
            let Some(operation) = state.engine.poll_memory_operation() else {
                break;
            };
            self.change_memory(state, &operation);
        }
        self.report(qp, state);
    }

    /// Binds or invalidates a memory window. Once this returns, nothing touches memory by the rights
    /// that it took.
    fn change_memory(&self, state: &mut State, operation: &MemoryOperation) {
        let mut memory = self.memory.write().unwrap_or_else(PoisonError::into_inner);
        let outcome = memory.apply(operation);
        drop(memory);
        state.engine.complete_memory_operation(outcome);
    }

    /// Gives a queue pair that waited for room in its socket another chance.
    pub(super) fn resume(&self, qp: &QpCore) {
        let mut state = qp.lock();
        state.deferred = false;
        if !state.closed {
            let now = self.clock.now();
            self.settle(qp, &mut state, now);
        }
    }

    /// Changes a queue pair's path and the count of queue pairs by IP version, which tells pollers
    /// the sockets to look at.
    pub(super) fn replace_path(&self, state: &mut State, path: Option<Path>) {
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
        state.path = path;
    }

    /// Builds and sends what the engine has. Acknowledgements go after requests, which a program may
    /// be waiting for, but never after a response that the engine gave later: the peer counts on the
    /// order of responses.
    fn transmit(&self, qp: &QpCore, state: &mut State, now: Duration, memory: &MemoryTable) {
        if qp.qp_type == QpType::Ud {
            return self.transmit_datagrams(qp, state, now, memory);
        }
        state.owes = false;
        let Some(path) = state.path else { return };
        let version = IpVersion::of(path.local);
        let Some(socket) = self.transmitter.socket(version, qp.qpn) else {
            return;
        };
        if socket.is_full() && (state.deferred || socket.defers(qp.qpn)) {
            state.deferred = true;
            return;
        }
        let Some(flow) = path.flow(socket.port()) else {
            return;
        };
        let coalesce = socket.coalesces();
        with_batch(|batch| {
            let mut held = None;
            while let Some(transmit) = state.engine.poll_transmit(now, memory, PACKET_LEN_MAX) {
                let opcode = transmit.headers.bth.opcode;
                if let Some(headers) = held.take_if(|_| opcode.is_response()) {
                    stage_headers(batch, headers, &flow);
                }
                if opcode == Opcode::RcAck {
                    held = Some(transmit.headers);
                } else {
                    // SAFETY: the engine checked the segments against `memory` in the call above,
                    // and the table is locked while the reference to it exists.
                    unsafe { stage(batch, &transmit, &flow, coalesce) };
                }
                if !batch.has_room(2) && !self.send(qp, state, socket, batch, &path) {
                    break;
                }
            }
            if let Some(headers) = held {
                stage_headers(batch, headers, &flow);
            }
            if !batch.is_empty() {
                self.send(qp, state, socket, batch, &path);
            }
        });
    }

    /// Sends what is staged; whether the queue pair may go on. If not, it is noted with its socket,
    /// which tells it when there is room.
    fn send(
        &self,
        qp: &QpCore,
        state: &mut State,
        socket: &SendSocket,
        batch: &mut SendBatch,
        path: &Path,
    ) -> bool {
        let room = socket.send(batch, path, &self.monitor);
        if room == Room::JustFilled {
            self.progress.watch_for_room(&self.transmitter, socket);
        }
        if room != Room::Left && !state.deferred {
            // A socket that has room again by now has told its queue pairs and tells nobody else.
            state.deferred = socket.defers(qp.qpn);
        }
        room == Room::Left || !state.deferred
    }

    /// Delivers completions and events, and keeps the timer.
    pub(super) fn report(&self, qp: &QpCore, state: &mut State) {
        let raise = |event| {
            if !qp.device.push_async_event(event) {
                self.monitor.counters.async_overflows.up();
            }
        };
        let mut overflowed = None;
        loop {
            while let Some(completion) = state.engine.poll_completion() {
                let cq = match completion.queue {
                    Queue::Send => &qp.send_cq,
                    Queue::Receive => &qp.recv_cq,
                };
                let lost = &self.monitor.counters.completion_overflows;
                if cq.deliver(&completion, lost).is_err() {
                    overflowed.get_or_insert(cq.number());
                }
            }
            while let Some(event) = state.engine.poll_async_event() {
                if let AsyncEvent::CommEst(qpn) = event {
                    self.heard.note(qpn);
                    self.progress.wake();
                }
                raise(event);
            }
            // A queue pair whose completions are lost cannot be trusted any more (IBTA 10.2.6.3);
            // failing it flushes what is left, which is lost as well.
            let Some(full) = overflowed.filter(|_| state.engine.state() != QpState::Err) else {
                break;
            };
            raise(AsyncEvent::CqErr(full));
            state.engine.fail();
        }
        self.keep_timer(qp, state);
    }

    fn keep_timer(&self, qp: &QpCore, state: &mut State) {
        let Some(wanted) = state.engine.poll_timeout() else {
            return;
        };
        if state.timer.is_some_and(|timer| timer <= wanted) {
            return;
        }
        let is_next = self.timers.set(qp.qpn, state.timer, Some(wanted));
        state.timer = Some(wanted);
        if is_next {
            self.progress.wake_before(wanted);
        }
    }
}

/// Builds a packet in the batch: headers, payload, padding, ICRC. The payload is copied first, so
/// that the ICRC is of what is sent, whatever the program does to its memory meanwhile.
///
/// # Safety
/// The payload's segments lie in registered regions, and the memory table is locked for reading
/// since that was checked.
pub(super) unsafe fn stage(
    batch: &mut SendBatch,
    transmit: &Transmit<'_>,
    flow: &Flow,
    coalesce: bool,
) {
    let len = transmit.udp_payload_len();
    let Some((place, identification)) = batch.stage(len, coalesce) else {
        return;
    };
    // SAFETY: the caller's promise.
    if unsafe { build(place, transmit, flow, identification) }.is_none() {
        debug_assert!(
            false,
            "the engine made headers that do not fit their opcode"
        );
        batch.unstage(len);
    }
}

/// # Safety
/// As for [`stage`].
unsafe fn build(
    place: &mut [u8],
    transmit: &Transmit<'_>,
    flow: &Flow,
    identification: u16,
) -> Option<()> {
    let headers_len = transmit.headers.emit(place).ok()?;
    let (payload, rest) = place
        .get_mut(headers_len..)?
        .split_at_mut_checked(transmit.payload.len())?;
    // SAFETY: the caller's promise.
    unsafe { memory_access::gather(&transmit.payload, payload) };
    rest.get_mut(..usize::from(transmit.headers.bth.pad_count))?
        .fill(0);
    icrc::append(flow, identification, place).ok()
}

/// Builds a packet that is nothing but headers.
fn stage_headers(batch: &mut SendBatch, headers: Headers, flow: &Flow) {
    let transmit = Transmit {
        headers,
        payload: Payload::Inline(&[]),
        path: None,
    };
    // SAFETY: there are no segments.
    unsafe { stage(batch, &transmit, flow, false) };
}

/// Lets other threads run once a poller has found nothing for a while: on a machine with fewer
/// processors than pollers, what it waits for may be waiting for its processor.
fn make_way(found_something: bool) {
    thread_local! {
        static FRUITLESS: Cell<u32> = const { Cell::new(0) };
    }
    // Missing while a thread's locals are destroyed.
    let _ = FRUITLESS.try_with(|fruitless| {
        let count = if found_something {
            0
        } else {
            fruitless.get().saturating_add(1)
        };
        fruitless.set(count);
        if count > FRUITLESS_POLLS {
            std::thread::yield_now();
        }
    });
}

/// Lends the thread's staging buffer: one per thread rather than one per queue pair, of which there
/// may be tens of thousands.
pub(super) fn with_batch<R>(work: impl FnOnce(&mut SendBatch) -> R) -> R {
    thread_local! {
        static BATCH: RefCell<Option<Box<SendBatch>>> = const { RefCell::new(None) };
    }
    // Missing while a thread's locals are destroyed, or if a tap posts: then a new one serves.
    let lent = BATCH
        .try_with(|batch| batch.try_borrow_mut().ok()?.take())
        .ok()
        .flatten();
    let mut batch = lent.unwrap_or_else(|| Box::new(SendBatch::new()));
    let result = work(&mut batch);
    batch.clear();
    let _ = BATCH.try_with(|slot| slot.try_borrow_mut().map(|mut slot| *slot = Some(batch)));
    result
}

//! Passes packets and timeouts to queue pairs.

#![allow(unsafe_code, reason = "places what arrived in registered memory")]

use std::ops::AddAssign;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_provider::verbs::QpType;
use portolan_wire::Qpn;

use crate::engine::CompactWords;
use crate::io::host::memory_access;
use crate::io::host::multicast::MulticastGroup;
use crate::io::host::queue_pair::QpCore;
use crate::io::host::{Host, Receiver};
use crate::io::net::arrived::Arrived;
use crate::io::net::read_ring::{Handled, RingSink};
use crate::io::net::shm::links::Links;
use crate::io::net::shm::pull::{Asker, Pull};
use crate::io::polling::clock::{Moment, as_nanos};
use crate::io::polling::make_way;
use crate::io::polling::progress::Sources;
use portolan_port_sharing::{Block, BlockSocket, Datagram};

/// Deadlines handled in one turn. The rest is due at once again.
const TIMERS_PER_TURN: usize = 1024;
/// The longest time that a closing queue pair waits for another thread's receive lock.
const ARRIVED_WAIT_MAX: Duration = Duration::from_millis(20);
/// Turns in which the sockets are read before a new ring.
const TURNS_BEFORE_RING: usize = 16;

/// When a queue pair sends its acknowledgements and other answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Now,
    /// When its owner, which is polling, posts or polls again, but within two
    /// [`LOOK_INTERVAL`](crate::io::polling::progress::LOOK_INTERVAL)s. The owner gets the data at once, and its own
    /// answer is sent before the acknowledgement. With the time of its poll.
    AfterTheOwner(Duration),
}

/// Passes what arrives in rings to its queue pairs.
struct FromRings<'a> {
    host: &'a Host,
    answer: Answer,
    one_sided: bool,
}

impl RingSink<QpCore> for FromRings<'_> {
    fn pull(&mut self, from: Block, pull: &Pull, asker: &Asker) {
        self.one_sided = true;
        self.host.take_pull(from, pull, asker);
    }

    fn packets(&mut self, arrived: &[Arrived<'_>]) {
        self.one_sided |= arrived.iter().any(Arrived::is_one_sided);
        self.host.bring(arrived, self.answer);
    }

    #[inline]
    fn compact(
        &mut self,
        from: Block,
        compact: &CompactWords,
        payload: u64,
        recent: &mut Option<Arc<QpCore>>,
    ) -> Handled {
        let host = self.host;
        self.one_sided |= compact.is_one_sided();
        if !matches!(recent, Some(qp) if qp.qpn == compact.dest_qp()) {
            *recent = host.qps.find(compact.dest_qp());
        }
        match recent {
            Some(qp) => host.take_compact(qp, from, compact, payload, self.answer),
            None => host.drop_compact(compact),
        }
    }
}

/// What was read from sockets and rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) datagrams: usize,
    /// Whether a one-sided request was among them.
    pub(crate) one_sided: bool,
    /// Whether a socket had some for a connection to another process of this host.
    pub(crate) from_host_by_socket: bool,
}

impl AddAssign for Taken {
    fn add_assign(&mut self, other: Self) {
        self.datagrams += other.datagrams;
        self.one_sided |= other.one_sided;
        self.from_host_by_socket |= other.from_host_by_socket;
    }
}

impl Host {
    /// Drives the device from a thread that polls a completion queue: handles packets and then timeouts, unless another
    /// thread is doing that. Yields the processor if polls have found nothing for a while. Returns false if nothing
    /// happened. `looks_longer`: an answer is under way, so it looks for a while, see [`Receiver::await_more`].
    #[inline]
    pub(crate) fn drive(&self, looks_longer: bool) -> bool {
        let now = Moment::from(self.clock.recent());
        let (found, is_done) = self.drive_at(now, looks_longer);
        make_way::after_poll(found, now.ns, || as_nanos(self.clock.now()));
        found || is_done
    }

    /// As [`Host::drive`], for a thread that polls for a short time and then sleeps. Yields the processor only for a
    /// [link](Self::make_way_for_link).
    pub(crate) fn drive_briefly(&self) {
        self.drive_at(self.clock.recent().into(), false);
    }

    /// Yields the processor after a poll, as [`Host::drive`] does.
    pub(crate) fn make_way(&self, has_found: bool) {
        let now = || as_nanos(self.clock.now());
        make_way::after_poll(has_found, now(), now);
    }

    /// Returns whether packets had arrived, and whether anything else happened.
    #[inline]
    fn drive_at(&self, now: Moment, looks_longer: bool) -> (bool, bool) {
        self.progress.poller_is_here(now);
        if let Some(links) = &self.links {
            links.head_page().asleep().end_waiter();
        }
        let _watch = self.watch_for_panics();
        let mut settled = self.settle_deferred() | self.continue_copies();
        if self.progress.take_ring_full(now.ns) {
            self.resume_rings();
            settled = true;
        }
        match self.receiver.try_lock() {
            Some(mut receiver) => {
                if looks_longer {
                    receiver.await_more();
                }
                let answer = Answer::AfterTheOwner(now.time);
                let taken = self.read_rings_and_due_sockets(&mut receiver, answer, now);
                drop(receiver);
                if taken.from_host_by_socket {
                    self.make_way_for_link(now.ns);
                }
                let served = self.serve_timers(now);
                (taken.datagrams > 0, settled || served)
            }
            // The thread that holds the lock handles the timeouts after it has read.
            None => (false, true),
        }
    }

    /// As [`Host::drive_briefly`], for a thread that waited for the sockets and the rings: reads all of them. Returns false
    /// if another thread reads them.
    pub(crate) fn drive_awake(&self, now: Duration, answer: Answer) -> bool {
        let now = Moment::from(now);
        self.progress.poller_is_here(now);
        let _watch = self.watch_for_panics();
        self.settle_deferred();
        self.continue_copies();
        let Some(mut receiver) = self.receiver.try_lock() else {
            return false;
        };
        if !self.progress.is_stopping() {
            if let Some(links) = &self.links {
                self.read_rings(&mut receiver, links, answer);
            }
            for socket in self.group.sockets() {
                self.read_socket(&mut receiver, socket, answer);
            }
        }
        drop(receiver);
        self.serve_timers(now);
        true
    }

    /// A polling thread is about to sleep. After this call, packets wake the progress thread.
    pub(crate) fn poller_leaves(&self) {
        if !self.is_left_to_waiter() {
            let now = self.clock.now();
            self.progress.poller_leaves(self.sources(), now);
        }
        if self.copying.any() {
            self.progress.wake();
        }
        self.look_at_rings_again();
    }

    /// The sockets and rings that packets arrive in.
    pub(crate) fn sources(&self) -> Sources<'_> {
        Sources {
            group: &self.group,
            links: self.links.as_ref(),
        }
    }

    /// Rings this process's own bell if a ring may have packets. Their senders saw an active poller and rang no bell.
    pub(crate) fn look_at_rings_again(&self) {
        if let Some(links) = self.with_packets() {
            links.bell().ring();
        }
    }

    /// The links, if a ring may have packets.
    pub(crate) fn with_packets(&self) -> Option<&Links> {
        let links = self.links.as_ref()?;
        let may_have = self
            .receiver
            .try_lock()
            .is_none_or(|receiver| receiver.has_more_before_sleep());
        may_have.then_some(links)
    }

    /// Resumes the queue pairs that waited for room in a ring.
    pub(crate) fn resume_rings(&self) {
        let Some(links) = &self.links else { return };
        for socket in links.full() {
            match socket.resume(&self.monitor) {
                Some(waited) => self.resume_all(waited),
                None => self.progress.ring_is_full(),
            }
        }
    }

    /// Resumes queue pairs that waited for room.
    pub(crate) fn resume_all(&self, waited: impl IntoIterator<Item = Qpn>) {
        for qp in waited.into_iter().filter_map(|qpn| self.qps.find(qpn)) {
            self.resume(&qp);
        }
    }

    /// Handles the packets that have arrived, so that a closing queue pair still acknowledges them. Management
    /// datagrams can overtake data packets: the owner may learn of the disconnect before it has received the last
    /// messages.
    pub(crate) fn take_arrived(&self) {
        // Not `lock`: this thread may already hold the lock, because a queue pair may be dropped under it.
        let until = self.clock.now() + ARRIVED_WAIT_MAX;
        loop {
            if let Some(mut receiver) = self.receiver.try_lock() {
                self.read_sockets(&mut receiver, Answer::Now);
                return;
            }
            if self.clock.now() > until {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Reads the rings, and the sockets of connected queue pairs, within bounds.
    #[inline]
    pub(crate) fn read_sockets(&self, receiver: &mut Receiver, answer: Answer) -> Taken {
        let mut taken = Taken::default();
        if self.progress.is_stopping() {
            // The sockets are closed, or about to be.
            return taken;
        }
        if let Some(links) = &self.links {
            taken += self.read_rings(receiver, links, answer);
        }
        taken += self.read_connected(receiver, answer);
        taken
    }

    /// As [`read_sockets`](Self::read_sockets), for a thread that polls: reads the sockets only if that is
    /// [due](crate::io::polling::socket_turns), or if a timeout is due, whose answer may be there.
    #[inline]
    pub(crate) fn read_rings_and_due_sockets(
        &self,
        receiver: &mut Receiver,
        answer: Answer,
        now: Moment,
    ) -> Taken {
        let mut taken = Taken::default();
        if self.progress.is_stopping() {
            return taken;
        }
        if let Some(links) = &self.links {
            taken += self.read_rings(receiver, links, answer);
            if self.deadlines.next_ns() > now.ns
                && !receiver
                    .sockets
                    .is_due(self.progress.needs_sockets(), now.time)
            {
                return taken;
            }
        }
        taken += self.read_connected(receiver, answer);
        taken
    }

    fn read_connected(&self, receiver: &mut Receiver, answer: Answer) -> Taken {
        let mut taken = Taken::default();
        for socket in self.group.sockets() {
            if self.progress.is_connected(socket.family().into()) {
                taken += self.read_socket(receiver, socket, answer);
            }
        }
        taken
    }

    /// Reads the rings of other processes of this host, within bounds.
    #[inline]
    pub(crate) fn read_rings(
        &self,
        receiver: &mut Receiver,
        links: &Links,
        answer: Answer,
    ) -> Taken {
        if self.recent_gone.load(Ordering::Acquire) {
            self.recent_gone.store(false, Ordering::Release);
            receiver.forget_recent();
        }
        let mut taken = Taken::default();
        if receiver.begins_ring() {
            taken = self.read_before_ring(receiver, answer);
        }
        let mut sink = FromRings {
            host: self,
            answer,
            one_sided: false,
        };
        let datagrams = receiver.drain_rings(links.head_page(), &self.monitor, &mut sink);
        taken += Taken {
            datagrams,
            one_sided: sink.one_sided,
            from_host_by_socket: false,
        };
        taken
    }

    /// Reads what the sockets have before the first packets of a new ring, which would overtake datagrams that their
    /// sender sent before the link was up.
    #[cold]
    fn read_before_ring(&self, receiver: &mut Receiver, answer: Answer) -> Taken {
        let mut taken = Taken::default();
        for _ in 0..TURNS_BEFORE_RING {
            let turn = self.read_connected(receiver, answer);
            if turn.datagrams == 0 {
                break;
            }
            taken += turn;
        }
        taken
    }

    /// Releases what the receiver keeps of a destroyed queue pair: now, or when it next reads if another thread reads.
    pub(crate) fn forget_recent(&self) {
        self.recent_gone.store(true, Ordering::Release);
        match self.receiver.try_lock() {
            Some(mut receiver) => receiver.forget_recent(),
            None => self.progress.wake(),
        }
    }

    /// Reads one socket, within bounds. Consecutive packets for one queue pair are passed together, so that it is
    /// locked once and answers once.
    pub(crate) fn read_socket(
        &self,
        receiver: &mut Receiver,
        socket: &BlockSocket,
        answer: Answer,
    ) -> Taken {
        let mut taken = Taken::default();
        taken.datagrams = receiver.drain(socket.as_fd(), &self.monitor, |arrived| {
            taken.from_host_by_socket |= self.bring(arrived, answer);
            taken.one_sided |= arrived.iter().any(Arrived::is_one_sided);
        });
        taken
    }

    /// Passes packets to their queue pairs. Returns whether one was for a connection to another process of this host.
    fn bring(&self, arrived: &[Arrived<'_>], answer: Answer) -> bool {
        let mut is_from_host = false;
        for run in arrived.chunk_by(|a, b| a.dest_qp() == b.dest_qp()) {
            let Some(qpn) = run.first().map(Arrived::dest_qp) else {
                continue;
            };
            match self.qps.find(qpn) {
                Some(qp) => is_from_host |= self.receive(&qp, run, answer),
                None => self.misdirected(qpn, run),
            }
        }
        is_from_host
    }

    /// Reads a multicast group's socket, within bounds. Each attached queue pair gets a copy.
    pub(crate) fn read_group(&self, receiver: &mut Receiver, group: &MulticastGroup) {
        let dropped = &self.monitor.counters.dropped_no_queue_pair;
        receiver.drain(group.socket(), &self.monitor, |arrived| {
            for run in arrived.chunk_by(|a, b| a.dest_qp() == b.dest_qp()) {
                let is_meant = run.first().map(Arrived::dest_qp) == Some(Qpn::MULTICAST);
                let deliver = |qp: &QpCore| self.receive_datagrams(qp, run);
                if !is_meant || group.for_each(deliver) == 0 {
                    dropped.add(run.len());
                }
            }
        });
    }

    /// The next queue pair that received a packet before the connection manager established it.
    pub(crate) fn next_established(&self) -> Option<Qpn> {
        self.comm_est.any().then(|| self.comm_est.take()).flatten()
    }

    /// Handles packets for a queue pair number that this process does not have. The kernel delivers coalesced packets
    /// to the process of the first one, so the others may belong to another process.
    #[cold]
    fn misdirected(&self, qpn: Qpn, packets: &[Arrived<'_>]) {
        let block = Block::of_qpn(qpn.value());
        // A packet from a ring is for this process only, and has no ICRC.
        let is_for_another = |block: &Block| {
            *block != self.group.block() && packets.iter().all(|arrived| arrived.writer.is_none())
        };
        let Some(block) = block.filter(is_for_another) else {
            let counters = &self.monitor.counters;
            return counters.dropped_no_queue_pair.add(packets.len());
        };
        for arrived in packets {
            self.monitor.counters.strays.up();
            let datagram = Datagram {
                source: arrived.source,
                destination: arrived.destination,
                interface: 0,
                traffic_class: arrived.ip.traffic_class,
                hop_limit: arrived.ip.hop_limit,
                payload: arrived.packet.as_bytes(),
            };
            self.group.forward(block, datagram);
        }
    }

    /// Reads the sockets, then handles the timeouts that are due: the answer that a queue pair waits for may have
    /// arrived.
    ///
    /// The progress thread calls this even if no socket woke it. Pollers normally read the sockets, but all of them
    /// may be stopped (SIGSTOP).
    pub(crate) fn read_and_serve_timers(&self) {
        let now = Moment::from(self.clock.now());
        if self.deadlines.next_ns() > now.ns {
            return;
        }
        let mut receiver = self.receiver.lock();
        self.read_sockets(&mut receiver, Answer::Now);
        drop(receiver);
        self.serve_timers(now);
    }

    /// Handles the timeouts that are due at `now`. The caller has read the sockets since then, so an answer that has
    /// already arrived does not count as missing. Returns whether any timeout was due.
    #[inline]
    fn serve_timers(&self, now: Moment) -> bool {
        let is_due = self.deadlines.next_ns() <= now.ns;
        if is_due {
            self.serve_due(now.time);
        }
        is_due
    }

    fn serve_due(&self, now: Duration) {
        for _ in 0..TIMERS_PER_TURN {
            let Some((due, qpn)) = self.deadlines.take_due(now) else {
                break;
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
            // The engine's clock must not go back: it may have handled packets since `now`.
            let now = state.not_before(self.clock.now());
            state.engine.handle_timeout(now);
            self.settle(&qp, &mut state, now);
        }
    }

    /// Passes packets to a queue pair, in order. `answer` selects when it acknowledges them. Returns whether it is connected
    /// to another process of this host.
    pub(crate) fn receive(&self, qp: &QpCore, packets: &[Arrived<'_>], answer: Answer) -> bool {
        if qp.qp_type == QpType::Ud {
            self.receive_datagrams(qp, packets);
            return false;
        }
        let counters = &self.monitor.counters;
        let mut state = qp.lock();
        let Some(path) = state.path.filter(|_| !state.closed) else {
            counters.dropped_no_queue_pair.add(packets.len());
            return false;
        };
        let now = state.not_before(self.clock.recent());
        let mut memory = self.memory.read();
        for arrived in packets {
            let is_other_process = arrived.writer.is_some() && arrived.writer != state.peer;
            if is_other_process || !path.is_from_peer(arrived.source, arrived.destination) {
                counters.dropped_spoofed.up();
                continue;
            }
            let packet = &arrived.packet;
            state.engine.handle_packet(now, &memory, packet);
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
                memory = self.memory.read();
            }
        }
        drop(memory);
        // Wake the owner first: it wakes up while the answer is sent.
        self.report(qp, &mut state);
        match answer {
            Answer::Now => self.settle(qp, &mut state, now),
            Answer::AfterTheOwner(_) => self.settle_soon(qp, &mut state, now),
        }
        state.peer.is_some()
    }
}

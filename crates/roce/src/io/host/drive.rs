//! Bringing packets to queue pairs, and time.

#![allow(unsafe_code, reason = "places what arrived in registered memory")]

use std::cell::Cell;
use std::ops::AddAssign;
use std::os::fd::AsFd;
use std::time::Duration;

use portolan_provider::verbs::QpType;
use portolan_wire::Qpn;

use crate::io::host::Host;
use crate::io::host::memory_access;
use crate::io::host::multicast::MulticastGroup;
use crate::io::host::queue_pair::QpCore;
use crate::io::net::receive::{Arrived, Receiver};
use crate::io::net::shm::links::Links;
use crate::io::polling::clock::as_nanos;
use crate::io::polling::progress::Sources;
use portolan_port_sharing::{Block, BlockSocket, Datagram};

/// Deadlines served in one turn; more are due at once again.
const TIMERS_PER_TURN: usize = 1024;
/// Fruitless polls, a few tens of microseconds, before a poller lets others run.
const FRUITLESS_POLLS: u32 = 64;

/// How long a queue pair that ends waits for another thread that reads, at most.
const ARRIVED_WAIT_MAX: Duration = Duration::from_millis(20);

/// When a queue pair sends its acknowledgements and other answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// At once.
    Now,
    /// When its owner, who is polling, posts or polls again, or after
    /// [`LOOK_INTERVAL`](crate::io::polling::progress::LOOK_INTERVAL) at the latest: the owner gets the data at
    /// once, and its own answer goes first.
    AfterTheOwner,
}

/// What was taken from sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) datagrams: usize,
    /// Among them was a one-sided request.
    pub(crate) one_sided: bool,
}

impl AddAssign for Taken {
    fn add_assign(&mut self, other: Self) {
        self.datagrams += other.datagrams;
        self.one_sided |= other.one_sided;
    }
}

impl Host {
    /// Drives the device from a thread that polls a completion queue: takes packets and then serves
    /// timers, unless another thread is at it.
    pub(crate) fn drive(&self) {
        let now = self.clock.now();
        self.progress.poller_is_here(now);
        self.settle_deferred();
        let _watch = self.watch_for_panics();
        let taken = match self.receiver.try_lock() {
            Some(mut receiver) => {
                let taken = self.read_sockets(&mut receiver, Answer::AfterTheOwner);
                drop(receiver);
                self.serve_timers(now);
                taken.datagrams
            }
            // The thread that has the lock serves the timers, too, after reading.
            None => 0,
        };
        make_way(taken > 0);
    }

    /// A thread that polled is about to sleep: when this returns the progress thread hears of packets.
    pub(crate) fn poller_leaves(&self) {
        self.progress.poller_leaves(self.sources());
        self.look_at_rings_again();
    }

    /// Where packets come from.
    pub(crate) fn sources(&self) -> Sources<'_> {
        Sources {
            group: &self.group,
            links: self.links.as_ref(),
        }
    }

    /// Rings this process's own bell for what came while those who write to it believed that it looks by itself.
    pub(crate) fn look_at_rings_again(&self) {
        if let Some(links) = &self.links {
            let receiver = self.receiver.try_lock();
            if receiver.is_none_or(|receiver| receiver.has_more()) {
                links.bell().ring();
            }
        }
    }

    /// Has queue pairs go on that waited for room in a ring.
    pub(crate) fn resume_rings(&self) {
        let Some(links) = &self.links else { return };
        for socket in links.full() {
            let waiting = socket.resume(&self.monitor).unwrap_or_default();
            for qp in waiting.into_iter().filter_map(|qpn| self.qps.find(qpn)) {
                self.resume(&qp);
            }
        }
    }

    /// Handles the packets that have arrived. A queue pair that is about to end still acknowledges them: management
    /// datagrams overtake packets here, so its owner may know of the end before it has seen the last messages.
    pub(crate) fn take_arrived(&self) {
        // Not `lock`: a queue pair may be dropped under this lock.
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

    /// Reads the sockets of connected queue pairs, within bounds.
    pub(crate) fn read_sockets(&self, receiver: &mut Receiver, answer: Answer) -> Taken {
        let mut taken = Taken::default();
        if self.progress.is_stopping() {
            // The sockets are closed, or about to be.
            return taken;
        }
        if let Some(links) = &self.links {
            taken += self.read_rings(receiver, links, answer);
            // The progress thread was woken by a socket, or looks at everything before it sleeps.
            if answer == Answer::AfterTheOwner
                && !self.progress.needs_sockets()
                && !receiver.is_time_for_sockets()
            {
                return taken;
            }
        }
        for socket in self.group.sockets() {
            if self.progress.is_connected(socket.family().into()) {
                taken += self.read_socket(receiver, socket, answer);
            }
        }
        taken
    }

    /// Reads the rings of other processes of this host, within bounds.
    pub(crate) fn read_rings(
        &self,
        receiver: &mut Receiver,
        links: &Links,
        answer: Answer,
    ) -> Taken {
        let mut one_sided = false;
        let datagrams = receiver.drain_rings(links.board(), &self.monitor, |arrived| {
            one_sided |= self.bring(arrived, answer);
        });
        Taken {
            datagrams,
            one_sided,
        }
    }

    /// Reads one socket, within bounds, and brings the packets to their queue pairs: consecutive ones of the same
    /// queue pair together, so that it is locked once and answers once.
    pub(crate) fn read_socket(
        &self,
        receiver: &mut Receiver,
        socket: &BlockSocket,
        answer: Answer,
    ) -> Taken {
        let mut one_sided = false;
        let datagrams = receiver.drain(socket.as_fd(), &self.monitor, |arrived| {
            one_sided |= self.bring(arrived, answer);
        });
        Taken {
            datagrams,
            one_sided,
        }
    }

    /// Brings packets to their queue pairs; whether there was a one-sided request.
    fn bring(&self, arrived: &[Arrived<'_>], answer: Answer) -> bool {
        for run in arrived.chunk_by(|a, b| a.dest_qp() == b.dest_qp()) {
            let Some(qpn) = run.first().map(Arrived::dest_qp) else {
                continue;
            };
            match self.qps.find(qpn) {
                Some(qp) => self.receive(&qp, run, answer),
                None => self.misdirected(qpn, run),
            }
        }
        arrived.iter().any(Arrived::is_one_sided)
    }

    /// Reads a multicast group's socket, within bounds: each queue pair attached to the
    /// group gets a copy.
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

    /// The next queue pair that heard its peer before the connection manager knew of it.
    pub(crate) fn next_established(&self) -> Option<Qpn> {
        self.comm_est.any().then(|| self.comm_est.take()).flatten()
    }

    /// Deals with packets for a queue pair that this process does not have. The kernel brings each to the
    /// process of its block, but those it coalesced all go where the first one belongs.
    #[cold]
    fn misdirected(&self, qpn: Qpn, packets: &[Arrived<'_>]) {
        let block = Block::of_qpn(qpn.value());
        // What came by a ring is for nobody else, and has no ICRC.
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

    /// Calls the queue pairs whose time has come, after reading the sockets: they may hold
    /// what they wait for. By the progress thread, which may not have been woken for it: pollers read
    /// the sockets, and all of them may have been stopped meanwhile.
    pub(crate) fn read_and_serve_timers(&self) {
        let now = self.clock.now();
        if self.deadlines.next_ns() > as_nanos(now) {
            return;
        }
        let mut receiver = self.receiver.lock();
        self.read_sockets(&mut receiver, Answer::Now);
        drop(receiver);
        self.serve_timers(now);
    }

    /// Calls the queue pairs whose time had come at `now`. The caller has read the sockets since: an
    /// answer that waits there is none that is missing.
    fn serve_timers(&self, now: Duration) {
        if self.deadlines.next_ns() > as_nanos(now) {
            return;
        }
        for _ in 0..TIMERS_PER_TURN {
            let Some((due, qpn)) = self.deadlines.take_due(now) else {
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
    pub(crate) fn receive(&self, qp: &QpCore, packets: &[Arrived<'_>], answer: Answer) {
        if qp.qp_type == QpType::Ud {
            return self.receive_datagrams(qp, packets);
        }
        let counters = &self.monitor.counters;
        let mut state = qp.lock();
        let Some(path) = state.path.filter(|_| !state.closed) else {
            counters.dropped_no_queue_pair.add(packets.len());
            return;
        };
        let now = self.clock.now();
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
        // The owner is woken first: it wakes up while the answer is sent.
        self.report(qp, &mut state);
        match answer {
            Answer::Now => self.settle(qp, &mut state, now),
            Answer::AfterTheOwner => self.settle_soon(qp, &mut state, now),
        }
    }
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

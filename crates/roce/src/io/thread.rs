//! The progress thread's work.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::with_signals_blocked;
use portolan_wire::bth::BthPacket;
use portolan_wire::{Qpn, mad::MAD_LEN};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::clock::as_nanos;
use super::drive::Answer;
use super::group::Datagram;
use super::gsi::{self, Gsi, MadDrop, ReceivedMad};
use super::interface_monitor::InterfaceMonitor;
use super::linger::Linger;
use super::progress::{DATA, GROUP, INTERFACES, LOOK_INTERVAL, MULTICAST, SEND, WAKE};
use super::receive::{Arrived, IpFields, Receiver, verify};
use super::shared::Shared;
use super::tap::{Direction, TappedPacket};
use super::vigil::Vigil;

/// Descriptors looked at in one turn.
const EVENTS_PER_TURN: usize = 32;
/// How often the thread looks around when nothing at all is due, so that no missed wake-up lasts.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// How long after the first news of interfaces they are read: news come in swarms.
const READING_DELAY: Duration = Duration::from_millis(20);
/// How long after a reading that failed it is tried again.
const READING_RETRY: Duration = Duration::from_secs(1);

/// Starts the thread, with all signals blocked: they are the program's.
pub(super) fn start(
    shared: &Arc<Shared>,
    gsi: Arc<dyn Gsi>,
    interfaces: InterfaceMonitor,
) -> Result<JoinHandle<()>> {
    let worker = Worker {
        shared: Arc::clone(shared),
        gsi,
        gsi_deadline: None,
        interfaces,
        interfaces_gone: BTreeSet::new(),
        reading_due: None,
        multicast: None,
        vigil: Vigil::default(),
        linger: Linger::default(),
    };
    let builder = std::thread::Builder::new().name("portolan".into());
    let started = with_signals_blocked(|| builder.spawn(move || worker.run()));
    started.map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(0);
        Error::new(
            Step::OpenDevice,
            Cause::Os {
                call: "pthread_create",
                errno,
            },
        )
    })
}

struct Worker {
    shared: Arc<Shared>,
    gsi: Arc<dyn Gsi>,
    /// When the connection manager wants to be called.
    gsi_deadline: Option<Duration>,
    interfaces: InterfaceMonitor,
    /// Interfaces that went away since they were last read.
    interfaces_gone: BTreeSet<u32>,
    /// When to read the interfaces.
    reading_due: Option<Duration>,
    /// Reads the multicast groups' sockets; made when there is the first.
    multicast: Option<Receiver>,
    vigil: Vigil,
    linger: Linger,
}

impl Worker {
    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        let mut lingering = false;
        while !self.shared.progress.is_stopping() {
            events.clear();
            let found = lingering && self.linger.look_on(&self.shared);
            let yielding = self.wait(&mut events, found);
            let mut one_sided = yielding && self.stand_in_for_pollers();
            for event in &events {
                match event.data.u64() {
                    WAKE => self.shared.progress.awoken(),
                    GROUP => self.serve_group(),
                    INTERFACES => self.hear_of_interfaces(),
                    token if token >= MULTICAST => self.receive_multicast(token - MULTICAST),
                    token if token >= SEND => self.resume_senders(token - SEND),
                    token => one_sided |= self.receive(token - DATA),
                }
            }
            self.vigil.woken(yielding, one_sided);
            lingering = (found || one_sided) && !self.vigil.is_kept();
            self.tell_of_heard();
            self.serve_timers();
            self.serve_readings();
        }
    }

    /// Sleeps until there is something to do, or looks only, if it is to go on `at_once`; whether it left the sockets
    /// to pollers meanwhile.
    fn wait(&mut self, events: &mut Vec<epoll::Event>, at_once: bool) -> bool {
        if self.shared.progress.take_gsi_changed() {
            self.ask_gsi();
        }
        let progress = &self.shared.progress;
        let now = self.shared.clock.now();
        let beside_pollers = self.vigil.is_kept();
        let yielding = if beside_pollers {
            progress.watch_beside_pollers(&self.shared.group);
            false
        } else {
            progress.yield_to_pollers(&self.shared.group, now)
        };
        let polled = yielding || beside_pollers;
        let mut until = now + if polled { LOOK_INTERVAL } else { LONGEST_SLEEP };
        until = until.min(self.gsi_deadline.unwrap_or(until));
        until = until.min(self.reading_due.unwrap_or(until));
        if let Some(wait) = self.shared.group.next_timeout() {
            until = until.min(now + wait);
        }
        if at_once {
            until = now;
        }
        progress.sleep().announce(as_nanos(until));
        // Set after the sleep was announced, these would have woken us: look once more.
        let mut wait_ns = as_nanos(until).min(self.shared.timers.next_ns());
        wait_ns = wait_ns.saturating_sub(as_nanos(now));
        let owes = !polled && self.shared.owed.any();
        let asked = progress.is_gsi_changed() || progress.is_reading_asked();
        if owes || asked || progress.is_stopping() {
            wait_ns = 0;
        }
        let timeout = Timespec {
            tv_sec: (wait_ns / 1_000_000_000) as i64,
            tv_nsec: (wait_ns % 1_000_000_000) as _,
        };
        let look = |events: &mut Vec<_>, timeout| {
            let room = rustix::buffer::spare_capacity(events);
            epoll::wait(&progress.epoll, room, Some(timeout))
        };
        let mut waited = look(events, &timeout);
        if waited == Err(Errno::INTR) {
            // The process was stopped and goes on (signal(7)). What came meanwhile is not told by
            // that, and it is to be read before any timer is served.
            waited = look(events, &Timespec::default());
        }
        progress.sleep().end();
        match waited {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                // It cannot happen with descriptors of our own; if it does, do not spin on it.
                tracing::error!(%errno, "epoll_wait");
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
        yielding
    }

    /// Reads the sockets if pollers that read them are away; whether there was a request of a peer that no completion
    /// tells of.
    fn stand_in_for_pollers(&self) -> bool {
        let shared = &self.shared;
        if !shared.progress.is_poller_away(shared.clock.now()) {
            return false;
        }
        let Ok(mut receiver) = shared.receiver.try_lock() else {
            return false;
        };
        receiver.take_one_sided();
        receiver.turn(shared, Answer::Now);
        receiver.take_one_sided()
    }

    /// Reads a socket; whether there was a request of a peer that no completion tells of.
    fn receive(&self, index: u64) -> bool {
        let shared = &self.shared;
        let socket = usize::try_from(index)
            .ok()
            .and_then(|index| shared.group.sockets().get(index));
        let Some(socket) = socket else { return false };
        let receiver = match self.vigil.is_kept() {
            // A poller that has it and was stopped would be waited for by asking again and again.
            true => Ok(shared
                .receiver
                .lock()
                .unwrap_or_else(PoisonError::into_inner)),
            // If a poller has the lock, it reads the packets; the next turn sees that it was here.
            false => shared.receiver.try_lock(),
        };
        let Ok(mut receiver) = receiver else {
            return false;
        };
        receiver.take_one_sided();
        receiver.drain(shared, socket, Answer::Now);
        receiver.take_one_sided()
    }

    fn receive_multicast(&mut self, token: u64) {
        // It may have been left meanwhile.
        if let Some(group) = self.shared.multicast.by_token(token) {
            let receiver = self.multicast.get_or_insert_with(Receiver::new);
            receiver.drain_group(&self.shared, &group);
        }
    }

    fn resume_senders(&self, token: u64) {
        let Some(socket) = self.shared.transmitter.by_token(token) else {
            return;
        };
        match socket.resume(&self.shared.monitor) {
            Some(waiting) => {
                for qp in waiting
                    .into_iter()
                    .filter_map(|qpn| self.shared.qps.find(qpn))
                {
                    self.shared.resume(&qp);
                }
            }
            None => self
                .shared
                .progress
                .watch_for_room(&self.shared.transmitter, socket),
        }
    }

    fn serve_timers(&mut self) {
        let now = self.shared.clock.now();
        self.shared.owed.settle(&self.shared);
        self.shared.read_and_serve_timers();
        if self.shared.group.next_timeout() == Some(Duration::ZERO) {
            self.serve_group();
        }
        if self.gsi_deadline.is_some_and(|deadline| deadline <= now) {
            self.call_gsi(|gsi| gsi.timeout());
            self.ask_gsi();
        }
    }

    /// Tells the connection manager of queue pairs that heard their peers first.
    fn tell_of_heard(&mut self) {
        let heard = self.shared.heard.take();
        for qpn in &heard {
            self.call_gsi(|gsi| gsi.communication_established(*qpn));
        }
        if !heard.is_empty() {
            self.ask_gsi();
        }
    }

    /// Has the interfaces read soon, if there is news of them.
    fn hear_of_interfaces(&mut self) {
        if self.interfaces.take(&mut self.interfaces_gone) && self.reading_due.is_none() {
            self.reading_due = Some(self.shared.clock.now() + READING_DELAY);
        }
    }

    /// Reads the interfaces if that is due or was asked for.
    fn serve_readings(&mut self) {
        let asked = self.shared.progress.take_reading_asked();
        let due = self
            .reading_due
            .is_some_and(|due| due <= self.shared.clock.now());
        if asked || due {
            self.read_interfaces();
        }
    }

    fn read_interfaces(&mut self) {
        let wanted = self.shared.readings.wanted();
        // What was told before is part of what is read.
        self.interfaces.take(&mut self.interfaces_gone);
        self.reading_due = None;
        match self.shared.follow_interfaces(&self.interfaces_gone) {
            Ok(changes) => {
                self.interfaces_gone.clear();
                for (device, change) in &changes {
                    self.call_gsi(|gsi| gsi.device_changed(device, *change));
                }
                if !changes.is_empty() {
                    self.ask_gsi();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the network interfaces cannot be read");
                self.reading_due = Some(self.shared.clock.now() + READING_RETRY);
            }
        }
        if let Some(number) = wanted {
            self.shared.readings.finish(number);
        }
    }

    /// Calls the connection manager. If that panics, the panic is told and ends there: every queue
    /// pair of the process depends on this thread.
    fn call_gsi<R>(&self, call: impl FnOnce(&dyn Gsi) -> R) -> Option<R> {
        let called = catch_unwind(AssertUnwindSafe(|| call(&*self.gsi)));
        called
            .inspect_err(|_| tracing::error!("the connection manager panicked"))
            .ok()
    }

    fn ask_gsi(&mut self) {
        let wait = self.call_gsi(|gsi| gsi.next_timeout()).flatten();
        let now = self.shared.clock.now();
        self.gsi_deadline = wait.map(|wait| now + wait);
    }

    /// Gives the group its turn and delivers what it hands over.
    fn serve_group(&mut self) {
        // A management datagram may be for an address that has just come.
        if self.reading_due.is_some() {
            self.read_interfaces();
        }
        let mut had_mad = false;
        self.shared
            .group
            .process(&mut |datagram| had_mad |= self.deliver(datagram));
        if had_mad {
            self.ask_gsi();
        }
    }

    /// Whether it was for QP1.
    fn deliver(&self, datagram: Datagram<'_>) -> bool {
        let counters = &self.shared.monitor.counters;
        let Ok(bth) = BthPacket::new_checked(datagram.payload) else {
            counters.dropped_malformed.up();
            return false;
        };
        if bth.dest_qp() == Qpn::GSI {
            self.deliver_mad(&datagram);
            return true;
        }
        let (source, destination) = (datagram.source, datagram.destination);
        let to = SocketAddr::new(destination, self.shared.port());
        let verified = verify(&self.shared.monitor, source, to, 0, datagram.payload);
        if let Some(identification) = verified {
            match self.shared.qps.find(bth.dest_qp()) {
                Some(qp) => {
                    let payload = datagram.payload;
                    let arrived = Arrived {
                        source,
                        destination,
                        ip: IpFields {
                            identification,
                            traffic_class: datagram.traffic_class,
                            hop_limit: datagram.hop_limit,
                            flow_label: 0,
                        },
                        payload,
                    };
                    let packets = std::iter::once(arrived);
                    self.shared.receive(&qp, packets, Answer::Now);
                }
                None => counters.dropped_no_queue_pair.up(),
            }
        }
        false
    }

    fn deliver_mad(&self, datagram: &Datagram<'_>) {
        let monitor = &self.shared.monitor;
        let to = SocketAddr::new(datagram.destination, self.shared.port());
        let (source_qp, mad, identification): (_, &[u8; MAD_LEN], _) =
            match gsi::parse(datagram.source, to, datagram.payload) {
                Ok(parsed) => parsed,
                Err(MadDrop::Malformed) => return monitor.counters.dropped_malformed.up(),
                Err(MadDrop::Icrc) => return monitor.counters.dropped_icrc.up(),
                Err(MadDrop::NotAMad) => return monitor.counters.dropped_mad.up(),
            };
        monitor.counters.received_packets.up();
        monitor.counters.received_bytes.add(datagram.payload.len());
        if monitor.tap.is_plugged() {
            monitor.tap.packet(&TappedPacket {
                direction: Direction::Received,
                source: datagram.source,
                destination: to,
                identification,
                traffic_class: datagram.traffic_class,
                hop_limit: datagram.hop_limit,
                payload: datagram.payload,
                time: SystemTime::now(),
            });
        }
        let mad = ReceivedMad {
            remote: datagram.source,
            local: datagram.destination,
            interface: datagram.interface,
            device: self
                .shared
                .device_of(datagram.destination, datagram.interface)
                .map(|(device, _)| device),
            source_qp,
            traffic_class: datagram.traffic_class,
            hop_limit: datagram.hop_limit,
            mad,
        };
        self.call_gsi(|gsi| gsi.mad(mad));
    }
}

//! The progress thread.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::{biased, with_signals_blocked};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::io::host::device::DeviceCore;
use crate::io::host::drive::Answer;
use crate::io::host::hotplug::DeviceChange;
use crate::io::host::{Host, Receiver};
use crate::io::management::Management;
use crate::io::net::interface_monitor::InterfaceMonitor;
use crate::io::net::shm::links::{LinkServer, Links, Served};
use crate::io::polling::clock::as_nanos;
use crate::io::polling::policy::{Policy, PollingState};
use crate::io::polling::progress::{
    BELL, DATA, GROUP, INTERFACES, LINKS, LOOK_INTERVAL, MULTICAST, SEND, WAKE,
};
use crate::io::polling::sleeper_looks::SleeperLooks;
use crate::io::verbs::devices::Devices;

/// Descriptors handled in one turn.
const EVENTS_PER_TURN: usize = 32;
/// The longest sleep. It bounds the effect of a lost wake-up.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);
/// Delay between the first netlink message about interfaces and reading them: messages come in bursts.
const READING_DELAY: Duration = Duration::from_millis(20);
/// Delay before the interfaces are read again after a failure.
const READING_RETRY: Duration = Duration::from_secs(1);

/// The pause before accepting links again after descriptors ran out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Turns in which the ring of a dead process is read to its end. A full ring takes fewer.
const LAST_TURNS: u32 = 128;
/// Checks at which packets wait for a thread that waits for the rings itself, before this thread reads them.
const MISSES_MAX: u32 = 2;
/// Panics, not counting the connection manager's, after which the thread ends.
const PANICS_MAX: u32 = 8;

/// Starts the thread with all signals blocked, because they are the program's.
pub(crate) fn start(
    host: &Arc<Host>,
    devices: &Arc<Devices>,
    management: Arc<Management>,
    interfaces: InterfaceMonitor,
    links: Option<LinkServer>,
) -> Result<JoinHandle<()>> {
    if let Some(links) = &links {
        host.progress.watch_link(LINKS, links.as_fd());
    }
    let worker = Worker {
        host: Arc::clone(host),
        devices: Arc::clone(devices),
        management,
        gsi_deadline: None,
        interfaces,
        interfaces_gone: BTreeSet::new(),
        reading_due: None,
        multicast: None,
        links,
        accept_due: None,
        policy: Policy::default(),
        sleeper_looks: SleeperLooks::default(),
        misses: 0,
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

fn watch_link(host: &Host, server: &LinkServer, number: u64) {
    if let Some(fd) = server.connection(number) {
        host.progress.watch_link(LINKS + number, fd);
    }
}

struct Worker {
    host: Arc<Host>,
    devices: Arc<Devices>,
    management: Arc<Management>,
    /// The next timeout of the connection manager.
    gsi_deadline: Option<Duration>,
    interfaces: InterfaceMonitor,
    /// Interfaces removed since the last reading.
    interfaces_gone: BTreeSet<u32>,
    /// When to read the interfaces.
    reading_due: Option<Duration>,
    /// Reads the multicast groups' sockets. Created with the first group.
    multicast: Option<Receiver>,
    /// The connections that links through memory use.
    links: Option<LinkServer>,
    /// When to watch the links' listener again.
    accept_due: Option<Duration>,
    policy: Policy,
    sleeper_looks: SleeperLooks,
    /// Number of checks in a row at which packets waited for a thread that waits for the rings itself.
    misses: u32,
}

impl Worker {
    /// Runs until the stack ends.
    ///
    /// Every queue pair of the process depends on this thread, so it survives a panic. Its current work may be half
    /// done, so its devices do not.
    fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        let mut panics = 0;
        while !self.host.progress.is_stopping() {
            events.clear();
            if catch_unwind(AssertUnwindSafe(|| self.turn(&mut events))).is_ok() {
                continue;
            }
            panics += 1;
            self.host.progress.sleep().end();
            self.host.progress.panicked();
            let react = if panics < PANICS_MAX {
                Self::replace_devices
            } else {
                Self::give_up
            };
            if catch_unwind(AssertUnwindSafe(|| react(&mut self))).is_err() {
                tracing::error!("the progress thread panicked again");
            }
        }
    }

    /// Replaces every device, as if its interface had been removed and added again. Flushes their work, and notifies
    /// listeners of the devices and of the connection manager.
    fn replace_devices(&mut self) {
        tracing::error!(
            "the progress thread panicked: its devices fail, and new ones replace them"
        );
        let devices = self.host.devices.read().clone();
        let interfaces = devices.iter().map(|device| device.interface());
        self.interfaces_gone.extend(interfaces);
        self.read_interfaces();
    }

    /// Ends the thread after too many panics. Other processes take over its tasks in the group.
    fn give_up(&mut self) {
        tracing::error!(
            "the progress thread panicked {PANICS_MAX} times: it ends, and the devices with it"
        );
        self.host.progress.stop();
        self.host.multicast.leave_all();
        self.host.group.leave();
        let devices = std::mem::take(&mut *self.host.devices.write());
        for device in devices {
            self.host.fail_device(&device);
            self.tell_of_device(&device, DeviceChange::Removed);
        }
    }

    /// Waits for work, then does it.
    fn turn(&mut self, events: &mut Vec<epoll::Event>) {
        let busy_polled = self.busy_poll();
        self.wait(events, busy_polled);
        let yields = self.policy.state() == PollingState::YieldToPollers;
        let mut found = self.stand_in_for_pollers();
        self.stand_in_for_sleeper();
        for event in &*events {
            match event.data.u64() {
                WAKE => {
                    self.host.progress.awoken();
                    self.host.resume_rings();
                }
                GROUP => self.serve_group(),
                INTERFACES => self.hear_of_interfaces(),
                BELL => {
                    found |= self.host.links.as_ref().is_some_and(|links| {
                        links.bell().reset();
                        self.receive_rings(links)
                    });
                }
                token if token >= LINKS => found |= self.serve_link(token - LINKS),
                token if token >= MULTICAST => self.receive_multicast(token - MULTICAST),
                token if token >= SEND => self.resume_senders(token - SEND),
                token => found |= self.receive(token - DATA),
            }
        }
        self.policy.awake(found, busy_polled);
        if self.host.progress.take_panicked() {
            self.host.mend_after_panic();
        }
        self.tell_of_established();
        self.call_links();
        self.host.resume_waiting_for_links();
        self.serve_timers(yields);
        self.serve_readings();
    }

    /// Polls for packets before sleeping if the policy says so. Returns whether there was a one-sided request.
    fn busy_poll(&mut self) -> bool {
        let host = &self.host;
        let mut awake = None;
        let look = |now| host.look_for_one_sided(now, &mut awake);
        self.policy.busy_poll(|| host.clock.recent(), look)
    }

    /// Sleeps until there is work. With `at_once`, only checks for work.
    fn wait(&mut self, events: &mut Vec<epoll::Event>, at_once: bool) {
        if self.host.progress.take_gsi_changed() {
            self.ask_gsi();
        }
        let progress = &self.host.progress;
        let now = self.host.clock.now();
        self.policy
            .sleep(|| progress.yield_to_pollers(self.host.sources(), now));
        if self.policy.state() == PollingState::WatchOneSided {
            progress.watch_beside_pollers(self.host.sources());
        }
        match self.policy.state() {
            PollingState::YieldToPollers => {}
            // A poller that has the lock may be stopped: it has not visited for a while.
            state => {
                if let Some(links) = self.host.with_packets() {
                    if state == PollingState::Sleep && self.host.leaves_rings_to_waiter(links) {
                        // The writer may have seen a poller, and then rings no bell.
                        self.host.wake_waiter();
                        let sources = self.host.sources();
                        self.policy
                            .sleep(|| progress.yield_to_pollers(sources, now));
                    } else {
                        links.bell().ring();
                    }
                }
            }
        }
        let polled = self.policy.state() != PollingState::Sleep;
        let looks = polled || progress.expects_sleeper(now);
        let mut until = now + if looks { LOOK_INTERVAL } else { LONGEST_SLEEP };
        let (waits, is_away) = (progress.has_sleeper(), progress.is_sleeper_away());
        let packets = self.host.monitor.packets();
        let next_look = self.sleeper_looks.plan(waits, is_away, packets, now);
        until = until.min(next_look.unwrap_or(until));
        until = until.min(self.gsi_deadline.unwrap_or(until));
        until = until.min(self.reading_due.unwrap_or(until));
        until = until.min(self.accept_due.unwrap_or(until));
        if let Some(wait) = self.links.as_ref().and_then(LinkServer::next_call) {
            until = until.min(now + wait);
        }
        if let Some(wait) = self.host.group.next_timeout() {
            until = until.min(now + wait);
        }
        if at_once {
            until = now;
        }
        progress.sleep().announce(as_nanos(until));
        // Check again what was set before the sleep was announced, because it has not woken the thread.
        let mut wait_ns = as_nanos(until).min(self.host.deadlines.next_ns());
        wait_ns = wait_ns.saturating_sub(as_nanos(now));
        let owes = !polled && (self.host.deferred_acks.any() || self.host.copying.any());
        let asked = progress.is_gsi_changed() || progress.is_reading_asked();
        // A thread of the program has taken the sockets meanwhile, or left them to this one.
        let is_left = (waits, is_away) != (progress.has_sleeper(), progress.is_sleeper_away());
        if owes || asked || is_left || progress.is_stopping() {
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
            // The process was stopped and continued (signal(7)). The call does not report packets that arrived
            // meanwhile, and they must be read before any timeout is handled.
            waited = look(events, &Timespec::default());
        }
        progress.sleep().end();
        match waited {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                // Cannot happen with our own descriptors. If it does, do not spin.
                tracing::error!(%errno, "epoll_wait");
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
    }

    /// Reads the sockets if the thread yields to pollers but none is active. Returns whether there was a one-sided
    /// request.
    fn stand_in_for_pollers(&mut self) -> bool {
        let host = &self.host;
        let yields = self.policy.state() == PollingState::YieldToPollers;
        if !yields || !host.progress.is_poller_away(host.clock.now()) {
            self.misses = 0;
            return false;
        }
        let Some(mut receiver) = host.receiver.try_lock() else {
            return false;
        };
        let is_woken = host.links.as_ref().is_some_and(|links| {
            host.progress.ring_waiter().rests() && links.head_page().asleep().sleepers().waiter
        });
        if is_woken && receiver.has_more() {
            // It has just been woken, or does not come.
            self.misses += 1;
            if self.misses < MISSES_MAX {
                return false;
            }
        }
        self.misses = 0;
        let taken = host.read_sockets(&mut receiver, Answer::Now);
        drop(receiver);
        if taken.datagrams > 0 {
            host.waiter_is_away();
        }
        taken.one_sided
    }

    /// Reads the sockets in the place of a thread of the program that waits for them, or is expected to. It may be away, be
    /// stopped, be in a signal handler, or have left its wait by longjmp(3).
    fn stand_in_for_sleeper(&mut self) {
        let host = &self.host;
        if !self.sleeper_looks.take_due(host.clock.now()) {
            return;
        }
        let Some(mut receiver) = host.receiver.try_lock() else {
            return;
        };
        let taken = host.read_sockets(&mut receiver, Answer::Now);
        drop(receiver);
        let is_overdue = !host.progress.expects_sleeper(host.clock.now());
        if is_overdue && taken.datagrams > 0 {
            host.progress.sleeper_is_gone(host.sources());
        }
    }

    /// Reads a socket; returns whether there was a one-sided request.
    fn receive(&self, index: u64) -> bool {
        let host = &self.host;
        let socket = usize::try_from(index)
            .ok()
            .and_then(|index| host.group.sockets().get(index));
        let Some(socket) = socket else { return false };
        let receiver = match self.policy.state() {
            // Wait for the lock: if its holder is stopped, retrying would spin.
            PollingState::WatchOneSided => Some(host.receiver.lock()),
            // If a poller has the lock, it reads the packets. The next turn sees its visit.
            _ => host.receiver.try_lock(),
        };
        let Some(mut receiver) = receiver else {
            return false;
        };
        host.read_socket(&mut receiver, socket, Answer::Now)
            .one_sided
    }

    /// Reads the rings; returns whether there was a one-sided request.
    fn receive_rings(&self, links: &Links) -> bool {
        let host = &self.host;
        let receiver = match self.policy.state() {
            PollingState::WatchOneSided => Some(host.receiver.lock()),
            // If a poller has the lock, it reads the packets. The bell keeps ringing.
            _ => host.receiver.try_lock(),
        };
        let mut one_sided = false;
        let mut is_done = false;
        if let Some(mut receiver) = receiver {
            one_sided = host.read_rings(&mut receiver, links, Answer::Now).one_sided;
            is_done = !receiver.has_more();
        }
        if !is_done {
            links.bell().ring();
        }
        host.resume_rings();
        one_sided
    }

    /// Creates the links that queue pairs have requested.
    fn call_links(&mut self) {
        let (Some(links), Some(server)) = (&self.host.links, &mut self.links) else {
            return;
        };
        let is_due = |due: &mut Duration| *due <= self.host.clock.now();
        if self.accept_due.take_if(is_due).is_some() {
            self.host.progress.watch_link(LINKS, server.as_fd());
        }
        server.ask_for_files(links);
        for number in server.call_wanted(links) {
            watch_link(&self.host, server, number);
        }
    }

    /// Accepts connections of other processes (number 0), or reads one. Returns whether there was a one-sided request
    /// in a ring.
    fn serve_link(&mut self, number: u64) -> bool {
        let (Some(links), Some(server)) = (&self.host.links, &mut self.links) else {
            return false;
        };
        if number == 0 {
            let (numbers, is_short) = server.accept();
            for number in numbers {
                watch_link(&self.host, server, number);
            }
            if is_short {
                // The listener stays readable, so epoll would report it at once.
                self.host.progress.forget_link(server.as_fd());
                self.accept_due = Some(self.host.clock.now() + ACCEPT_RETRY);
            }
            return false;
        }
        match server.serve(number, links, self.host.transmitter.link_port()) {
            Served::Nothing => {}
            Served::Rung
                if self.policy.state() != PollingState::WatchOneSided
                    && self.host.leaves_rings_to_waiter(links) =>
            {
                self.host.resume_rings();
            }
            Served::Rung => return self.receive_rings(links),
            Served::Incoming(incoming) => {
                // Add the ring before answering, so that it has a reader before its first packet.
                let place = incoming.reader.place();
                self.host.receiver.lock().add_ring(incoming);
                if !server.answer(number, links) {
                    self.host.receiver.lock().remove_ring(place);
                }
                links.bell().ring();
            }
            Served::Gone(waited) => self.host.resume_all(waited),
            Served::Ended(place) => {
                let mut receiver = self.host.receiver.lock();
                // The ring contains the last packets of a dead process, possibly the acknowledgement of its last
                // message.
                for _ in 0..LAST_TURNS {
                    if !receiver.has_more_from(place) {
                        break;
                    }
                    self.host.read_rings(&mut receiver, links, Answer::Now);
                }
                receiver.remove_ring(place);
            }
        }
        false
    }

    fn receive_multicast(&mut self, token: u64) {
        // The group may have been left meanwhile.
        if let Some(group) = self.host.multicast.by_token(token) {
            let port = self.host.port();
            let receiver = self.multicast.get_or_insert_with(|| Receiver::new(port));
            self.host.read_group(receiver, &group);
        }
    }

    fn resume_senders(&self, token: u64) {
        let Some(socket) = self.host.transmitter.by_token(token) else {
            return;
        };
        match socket.resume(&self.host.monitor) {
            Some(waiting) => {
                for qp in waiting
                    .into_iter()
                    .filter_map(|qpn| self.host.qps.find(qpn))
                {
                    self.host.resume(&qp);
                }
            }
            None => self
                .host
                .progress
                .watch_for_room(&self.host.transmitter, socket),
        }
    }

    /// `yields`: pollers were active before it slept.
    fn serve_timers(&mut self, yields: bool) {
        let now = self.host.clock.now();
        self.host.settle_deferred_beside(yields, now);
        biased::prepare_if_wanted();
        self.host.continue_copies();
        self.host.read_and_serve_timers();
        if self.host.group.next_timeout() == Some(Duration::ZERO) {
            self.serve_group();
        }
        if self.gsi_deadline.is_some_and(|deadline| deadline <= now) {
            self.management.call_gsi(|gsi| gsi.timeout());
            self.ask_gsi();
        }
    }

    /// Notifies the connection manager of queue pairs that received a packet before it established them.
    fn tell_of_established(&mut self) {
        let mut told = false;
        while let Some(qpn) = self.host.next_established() {
            self.management
                .call_gsi(|gsi| gsi.communication_established(qpn));
            told = true;
        }
        if told {
            self.ask_gsi();
        }
    }

    /// Schedules a reading of the interfaces if netlink reports a change.
    fn hear_of_interfaces(&mut self) {
        if self.interfaces.take(&mut self.interfaces_gone) && self.reading_due.is_none() {
            self.plan_reading(Some(self.host.clock.now() + READING_DELAY));
        }
    }

    fn plan_reading(&mut self, due: Option<Duration>) {
        self.reading_due = due;
        self.host.progress.set_reading_due(due.is_some());
    }

    /// Reads the interfaces if that is due or requested.
    fn serve_readings(&mut self) {
        let asked = self.host.progress.take_reading_asked();
        let due = self
            .reading_due
            .is_some_and(|due| due <= self.host.clock.now());
        if asked || due {
            self.read_interfaces();
        }
    }

    fn read_interfaces(&mut self) {
        let wanted = self.host.readings.wanted();
        // The reading includes all changes announced so far.
        self.interfaces.take(&mut self.interfaces_gone);
        self.plan_reading(None);
        match self.host.follow_interfaces(&self.interfaces_gone) {
            Ok(changes) => {
                self.interfaces_gone.clear();
                for (device, change) in &changes {
                    self.tell_of_device(device, *change);
                }
                if !changes.is_empty() {
                    self.ask_gsi();
                }
            }
            Err(error) => {
                tracing::warn!(%error, "the network interfaces cannot be read");
                self.plan_reading(Some(self.host.clock.now() + READING_RETRY));
            }
        }
        if let Some(number) = wanted {
            self.host.readings.finish(number);
        }
    }

    fn tell_of_device(&self, device: &Arc<DeviceCore>, change: DeviceChange) {
        let device = self.devices.handle(device);
        self.management
            .call_gsi(|gsi| gsi.device_changed(&device, change));
    }

    fn ask_gsi(&mut self) {
        let wait = self.management.call_gsi(|gsi| gsi.next_timeout()).flatten();
        let now = self.host.clock.now();
        self.gsi_deadline = wait.map(|wait| now + wait);
    }

    /// Runs the group and delivers its datagrams.
    fn serve_group(&mut self) {
        // A management datagram may be for an address that was just added.
        if self.reading_due.is_some() {
            self.read_interfaces();
        }
        if self.management.serve() {
            self.ask_gsi();
        }
    }
}

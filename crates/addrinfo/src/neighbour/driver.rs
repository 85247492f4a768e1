//! The resolver's thread: executes the engine's actions in one poll loop over the wake-up, netlink
//! and the probes' errors.

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_REQUEST, NetlinkPayload};
use portolan_provider::Cause;
use portolan_provider::error::errno;
use portolan_threads::fork::ForkGuard;
use portolan_threads::lock::{Mutex, MutexGuard};
use portolan_threads::with_signals_blocked;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;

use super::Done;
use super::link_address::LinkAddress;
use super::message;
use super::pending::{Action, Entry, NextHop, Pending, Target};
use super::watch::{Changed, Watches};
use crate::sys::netlink::{Message, Received, Socket};
use crate::sys::probe::ProbeSocket;
use crate::sys::rtnetlink::RouteNetlinkMessage;
use crate::sys::{interface, os_error};

/// The thread's name in `top -H` (15 bytes at most).
const THREAD_NAME: &str = "portolan-neigh";
/// `RTMGRP_NEIGH` of `linux/rtnetlink.h`: changes of the neighbour tables.
const RTMGRP_NEIGH: u32 = 1 << 2;
/// Actions executed before netlink is read again. Each may leave a reply in the receive buffer.
const ACTIONS_PER_TURN: usize = 32;
/// Datagrams read before other work gets its turn.
const DATAGRAMS_PER_TURN: usize = 256;

/// State shared by callers and the thread.
pub(super) struct Shared {
    /// The process that runs the thread. A forked child has no thread, and its copy of the lock may
    /// be held.
    owner: ForkGuard,
    state: Mutex<DriverState>,
    wake: OwnedFd,
}

struct DriverState {
    pending: Pending<Done>,
    watches: Watches,
    stopped: bool,
}

/// Opens the sockets and starts the thread.
pub(super) fn start() -> Result<Arc<Shared>, Cause> {
    let netlink = Socket::open()?;
    let wake =
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os_error("eventfd"))?;
    let state = Mutex::new(DriverState {
        pending: Pending::new(),
        watches: Watches::default(),
        stopped: false,
    });
    let shared = Arc::new(Shared {
        owner: ForkGuard::new(),
        state,
        wake,
    });
    let driver = Driver {
        shared: Arc::clone(&shared),
        netlink,
        subscribed: false,
        probe_v4: None,
        probe_v6: None,
    };
    let builder = std::thread::Builder::new().name(THREAD_NAME.into());
    with_signals_blocked(|| builder.spawn(move || driver.run())).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(errno::EAGAIN);
        Cause::Os {
            call: "starting the neighbour resolver's thread",
            errno,
        }
    })?;
    Ok(shared)
}

impl Shared {
    pub(super) fn submit(
        &self,
        target: Target,
        now: Instant,
        within: Duration,
        done: Done,
    ) -> Result<u64, Cause> {
        self.check_own()?;
        let ticket = self.lock().pending.add(target, now, within, done)?;
        self.wake();
        Ok(ticket)
    }

    pub(super) fn cancel(&self, ticket: u64) -> bool {
        if !self.is_own() {
            return false;
        }
        // Drop the closure after unlocking: it may own anything.
        let cancelled = self.lock().pending.cancel(ticket);
        cancelled.is_some()
    }

    pub(super) fn watch(
        &self,
        hop: NextHop,
        known: LinkAddress,
        changed: Changed,
    ) -> Result<u64, Cause> {
        self.check_own()?;
        let number = self.lock().watches.add(hop, known, changed)?;
        self.wake();
        Ok(number)
    }

    pub(super) fn unwatch(&self, hop: NextHop, number: u64) {
        if self.is_own() {
            // Drop the closure after unlocking: it may own anything.
            let removed = self.lock().watches.remove(hop, number);
            drop(removed);
            self.wake();
        }
    }

    pub(super) fn stop(&self) {
        if self.is_own() {
            self.lock().stopped = true;
            self.wake();
        }
    }

    fn check_own(&self) -> Result<(), Cause> {
        if self.is_own() {
            return Ok(());
        }
        Err(Cause::InvalidState {
            expected: "the process that started the neighbour resolver",
            found: "a child forked from it",
        })
    }

    fn is_own(&self) -> bool {
        self.owner.is_owner()
    }

    /// Locks the state, even after a panic elsewhere: serving all other callers outweighs any
    /// inconsistency that the panic may have left in the engine.
    fn lock(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock()
    }

    fn wake(&self) {
        // The write fails only if the counter is full, and then the thread is already awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

struct Driver {
    shared: Arc<Shared>,
    netlink: Socket,
    subscribed: bool,
    probe_v4: Option<ProbeSocket>,
    probe_v6: Option<ProbeSocket>,
}

impl Driver {
    fn run(mut self) {
        loop {
            let now = Instant::now();
            let (stopped, idle, next_timeout) = {
                let mut state = self.shared.lock();
                state.pending.handle_timeout(now);
                if state.stopped {
                    state
                        .pending
                        .fail_all(&Cause::NoSuchObject("neighbour resolver"));
                }
                (
                    state.stopped,
                    state.pending.is_idle() && state.watches.is_empty(),
                    state.pending.next_timeout(),
                )
            };
            self.deliver();
            if stopped {
                return;
            }
            // Subscribe before any query, so that no change falls between a query and the
            // subscription.
            self.subscribe(!idle);
            let acted = self.act();
            let heard = self.listen();
            self.deliver();
            if !acted && !heard {
                self.wait(next_timeout);
            }
        }
    }

    /// Calls completions without holding the lock: they may call the resolver.
    fn deliver(&self) {
        let finished = self.shared.lock().pending.take_finished();
        for (done, outcome) in finished {
            if catch_unwind(AssertUnwindSafe(|| done(outcome))).is_err() {
                tracing::error!("a neighbour look-up's completion panicked");
            }
        }
    }

    /// Subscribes to changes only while lookups are pending: changes of other hosts must not wake
    /// an idle process.
    fn subscribe(&mut self, wanted: bool) {
        if self.subscribed == wanted {
            return;
        }
        match self
            .netlink
            .subscribe(if wanted { RTMGRP_NEIGH } else { 0 })
        {
            Ok(()) => self.subscribed = wanted,
            // Rechecks find the answers too, only later.
            Err(cause) => tracing::warn!(%cause, "neighbour changes are not announced"),
        }
    }

    /// Executes one turn's actions of the engine. Returns whether there were any.
    fn act(&mut self) -> bool {
        for done in 0..ACTIONS_PER_TURN {
            let action = self.shared.lock().pending.next_action();
            let Some(action) = action else {
                return self.ask_for_watches(ACTIONS_PER_TURN - done) || done > 0;
            };
            match action {
                Action::Query { hop, sequence } => self.query(hop, sequence),
                Action::Probe(target) => self.probe(target),
                Action::ReadLink(target) => self.read_link(target),
            }
        }
        true
    }

    /// Queries the table for some watched next hops. The answers have no sequence number and are
    /// handled like notifications.
    fn ask_for_watches(&mut self, most: usize) -> bool {
        let mut asked = false;
        for _ in 0..most {
            let Some(hop) = self.shared.lock().watches.next_question() else {
                break;
            };
            // If the query fails now, the next change still arrives.
            let _ = self.netlink.send(message::request(hop), NLM_F_REQUEST, 0);
            asked = true;
        }
        asked
    }

    fn query(&mut self, hop: NextHop, sequence: u32) {
        match self
            .netlink
            .send(message::request(hop), NLM_F_REQUEST, sequence)
        {
            Ok(()) => {}
            // A recheck queries again.
            Err(Errno::NOBUFS | Errno::AGAIN | Errno::NOMEM) => {}
            Err(errno) => {
                let cause = os_error("send(RTM_GETNEIGH)")(errno);
                self.shared
                    .lock()
                    .pending
                    .handle_reply(sequence, Err(cause));
            }
        }
    }

    fn probe(&mut self, target: Target) {
        let hop = target.hop;
        let slot = match hop.address {
            IpAddr::V4(_) => &mut self.probe_v4,
            IpAddr::V6(_) => &mut self.probe_v6,
        };
        let sent = match slot {
            Some(socket) => Ok(&*socket),
            None => ProbeSocket::open(hop.address).map(|socket| &*slot.insert(socket)),
        }
        .and_then(|socket| {
            let send = || socket.send(hop.address, hop.interface_index);
            // The first error may belong to an earlier probe.
            send().or_else(|_| send())
        });
        tracing::trace!(next_hop = %hop.address, interface = hop.interface_index, ?sent, "probe");
        match sent {
            Ok(()) => {}
            Err(Errno::NOBUFS | Errno::AGAIN | Errno::NOMEM) => {
                self.shared.lock().pending.handle_deferral(target);
            }
            Err(errno) => {
                let cause = refusal(hop, errno);
                self.shared.lock().pending.handle_refusal(target, cause);
            }
        }
    }

    fn read_link(&mut self, target: Target) {
        let hop = target.hop;
        let resolves = interface::resolves_neighbours(hop.interface_index)
            .map_err(|errno| link_error(hop, errno));
        self.shared.lock().pending.handle_link(target, resolves);
    }

    /// Reads netlink and the probes' error queues. Returns whether there was anything.
    fn listen(&mut self) -> bool {
        let mut heard = false;
        for _ in 0..DATAGRAMS_PER_TURN {
            match self.netlink.receive() {
                Ok(Received::Nothing) => break,
                Ok(Received::Messages(messages)) => {
                    messages.into_iter().for_each(|message| self.hear(message));
                }
                Ok(Received::Lost) => self.handle_loss(),
                Err(errno) => {
                    tracing::warn!(%errno, "reading neighbour changes failed");
                    self.handle_loss();
                }
            }
            heard = true;
        }
        for socket in [&self.probe_v4, &self.probe_v6].into_iter().flatten() {
            for next_hop in socket.take_errors() {
                self.shared.lock().pending.handle_icmp_error(next_hop);
                heard = true;
            }
        }
        heard
    }

    fn handle_loss(&self) {
        let mut state = self.shared.lock();
        state.pending.handle_loss(Instant::now());
        state.watches.handle_loss();
    }

    /// Notifies watchers without holding the lock: the closures may call the resolver.
    fn tell(&self, hop: NextHop, entry: Entry) {
        let watchers = self.shared.lock().watches.handle_change(hop, entry);
        let Some(address) = entry.address() else {
            return;
        };
        for changed in watchers {
            let call = || changed(hop.address, hop.interface_index, address);
            if catch_unwind(AssertUnwindSafe(call)).is_err() {
                tracing::error!("a watcher of a neighbour panicked");
            }
        }
    }

    fn hear(&self, message: Message) {
        let is_reply = self.netlink.is_reply(&message.header);
        let sequence = message.header.sequence_number;
        let mut state = self.shared.lock();
        match message.payload {
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(neighbour)) => {
                let Some((hop, entry)) = message::read(&neighbour) else {
                    return;
                };
                if is_reply {
                    state.pending.handle_reply(sequence, Ok(entry));
                } else {
                    state.pending.handle_change(hop, entry);
                    drop(state);
                    self.tell(hop, entry);
                }
            }
            NetlinkPayload::Error(error) if is_reply => {
                let reply = match error.raw_code().saturating_neg() {
                    errno::ENOENT => Ok(Entry::Absent),
                    errno::ENODEV => Err(Cause::NoDevice {
                        why: "the network interface of the next hop was removed".into(),
                    }),
                    errno => Err(Cause::Os {
                        call: "neighbour look-up (RTM_GETNEIGH)",
                        errno,
                    }),
                };
                state.pending.handle_reply(sequence, reply);
            }
            _ => {}
        }
    }

    /// Sleeps until a call, a change, an error or the next timeout.
    fn wait(&self, next_timeout: Option<Instant>) {
        let timeout = next_timeout
            .map(|at| at.saturating_duration_since(Instant::now()))
            .map(|left| Timespec::try_from(left).unwrap_or_default());
        let mut ready = vec![
            PollFd::new(&self.shared.wake, PollFlags::IN),
            PollFd::new(&self.netlink, PollFlags::IN),
        ];
        for socket in [&self.probe_v4, &self.probe_v6].into_iter().flatten() {
            // poll(2) always reports errors. Incoming data is ignored.
            ready.push(PollFd::new(socket, PollFlags::empty()));
        }
        match poll(&mut ready, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                // Memory is short (ENOMEM): sleep rather than spin.
                tracing::warn!(%errno, "poll failed");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count);
    }
}

/// Why a probe could not be sent.
fn refusal(hop: NextHop, errno: Errno) -> Cause {
    match errno {
        Errno::HOSTUNREACH => Cause::HostUnreachable,
        Errno::NETUNREACH | Errno::NETDOWN | Errno::AFNOSUPPORT => Cause::NetworkUnreachable,
        Errno::ADDRNOTAVAIL => Cause::AddressNotAvailable,
        Errno::NODEV | Errno::NXIO => link_error(hop, errno),
        Errno::PERM | Errno::ACCESS => os_error("sending a neighbour probe (a firewall?)")(errno),
        _ => os_error("sending a neighbour probe")(errno),
    }
}

fn link_error(hop: NextHop, errno: Errno) -> Cause {
    match errno {
        Errno::NODEV | Errno::NXIO => Cause::NoDevice {
            why: format!("there is no network interface {}", hop.interface_index),
        },
        _ => os_error("ioctl(SIOCGIFFLAGS)")(errno),
    }
}

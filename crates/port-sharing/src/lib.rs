//! Shares one UDP port among many processes, without a daemon.
//!
//! RoCEv2 has one UDP port (4791) for all queue pairs of a host, but every process has its own queue pairs. So a set of
//! sockets is bound to the port, one for each [`Block`] of queue pair numbers, and the kernel delivers each packet to
//! the socket of its destination (`bpf`). Each process reads only its own block's sockets.
//!
//! * **Founding** (`join`, `founding`, `sockets`): a process that finds no group binds the group's name and creates all
//!   sockets at once. The kernel selects a socket by its position in this order.
//! * **The descriptor store** (`descriptor_store`): the sockets are parked in a unix socket that every member holds. So
//!   none closes and the order stays when a process dies, even the founder.
//! * **The coordinator** (`coordinator`, `connections`, `registry`): the process that listens on the group's name
//!   (`name`). It admits other processes (`trust`; `stranger` and `witness` identify processes that block the way) and
//!   gives each a block. It answers requests, for example for ports. It reads block 0, where connection management
//!   arrives for all members, and forwards those datagrams.
//! * **Election** (`election`): when the coordinator dies, the kernel frees its name and the members' connections end.
//!   One member binds the name. The others connect to it with their blocks and register everything again.
//! * **Deaths**: if a block's name is free again, its process is dead. The coordinator tells all members
//!   ([`MemberService::peer_death`]), and a new coordinator tells those that reconnect, so that no process waits for a
//!   dead one.
//!
//! * **Observers** (`observe`): a process that only wants information asks the coordinator, which also asks the
//!   members.
//!
//! A block's packets never pass through another process. The coordinator only does what is rare or may be lost: the
//! protocol repeats lost management datagrams.
//!
//! One lock protects the whole state. It is held during calls to [`CoordinatorService`], but not during calls to
//! [`MemberService`], the delivery of datagrams, or any wait.

mod backoff;
mod batch;
mod block;
mod bpf;
mod config;
mod connection;
mod connections;
mod context;
mod coordinator;
mod datagram;
mod descriptor_store;
mod election;
mod fork;
mod founding;
mod join;
mod member_link;
mod message;
mod multicast;
mod name;
mod observe;
mod packet;
mod raw;
mod registry;
mod requests;
pub mod room;
mod service;
mod sockets;
mod state;
mod status;
mod stranger;
mod trust;
mod unix_diag;
mod uplink;
pub mod users;
mod witness;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::lock::{Condvar, Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::io::Errno;

pub use block::{BLOCK_COUNT, Block};
pub use config::{
    DATAGRAM_BYTES_MAX, GroupConfig, REPLAYS_MAX, REPORT_PARTS_MAX, REQUEST_BYTES_MAX,
    REQUESTS_MAX, ROCE_PORT,
};
pub use datagram::Datagram;
pub use fork::PrivateFd;
pub use member_link::{LinkMessage, MemberLink, MemberLinks};
pub use multicast::MulticastSocket;
pub use name::refuse_descriptors;
pub use observe::{Observation, observe};
pub use service::{CoordinatorService, MemberService, Route};
pub use sockets::{BlockSocket, Family};
pub use status::{GroupCounters, GroupStatus, MemberStatus};
pub use stranger::places_taken;
pub use trust::Trust;

use datagram::{Delivery, Inbox};
use portolan_threads::fork::ForkGuard;
use room::with_room;
use state::{MemberState, Turned};

/// This process's membership in the group of processes that share a UDP port. Dropping it leaves.
pub struct PortGroup {
    block: Block,
    sockets: Vec<BlockSocket>,
    member: Arc<dyn MemberService>,
    shared: Mutex<Shared>,
    /// A request has an answer, or a waiter may become the leader.
    answered: Condvar,
    /// Datagrams being delivered; swapped with the state's inbox.
    delivery: Mutex<Inbox>,
    /// Readable when [`process`](Self::process) has work: combines `wake` and the role's descriptors.
    epoll: PrivateFd,
    wake: PrivateFd,
    /// Whether `wake` may be readable, so that most calls need not read it.
    is_woken: AtomicBool,
    /// Wakes the leading waiter when another thread has found its answer.
    nudge: PrivateFd,
    fork_guard: ForkGuard,
}

const AFTER_FORK: &str = "use of a port group in a process forked after it was joined";

/// The state under the lock.
struct Shared {
    state: MemberState,
    /// Whether one of the waiting threads currently runs the state for all of them.
    has_leader: bool,
}

impl PortGroup {
    /// Joins the group of `config.port` in this network namespace, or founds it.
    ///
    /// From then on call [`process`](Self::process), because this process may be the coordinator.
    ///
    /// # Errors
    /// * `PortOwnedElsewhere`: another program has the port (for example the kernel's rdma_rxe).
    /// * `GroupNotTrusted`: an untrusted user leads the group or holds its name.
    /// * `GroupPlacesTaken`: untrusted users hold its places.
    /// * `GroupDistrusts`: the group does not trust this user.
    /// * `GroupRefused`: the group refuses this process for another reason.
    /// * `LimitReached`: all 127 blocks are in use.
    /// * `InvalidArgument`: a setting is out of range.
    /// * `DescriptorLimit`: even the hard limit of open files (`RLIMIT_NOFILE`) is too low; the soft limit is raised as
    ///   needed.
    /// * `Os`: a system call failed.
    pub fn join(
        config: GroupConfig,
        coordinator: Box<dyn CoordinatorService>,
        member: Arc<dyn MemberService>,
    ) -> Result<Self> {
        let fork_guard = ForkGuard::new();
        let os = join::os;
        let counter = || {
            let make = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            with_room(|| PrivateFd::make(make)).map_err(os("eventfd"))
        };
        let (wake, nudge) = (counter()?, counter()?);
        let make = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let epoll = with_room(|| PrivateFd::make(make)).map_err(os("epoll_create"))?;
        let join::Joined { state, sockets } = join::join(config, coordinator)?;
        for fd in [wake.as_fd(), state.context.as_fd()] {
            let (data, flags) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
            epoll::add(&epoll, fd, data, flags).map_err(os("epoll_ctl"))?;
        }
        Ok(Self {
            block: state.context.own,
            sockets,
            member,
            shared: Mutex::new(Shared {
                state,
                has_leader: false,
            }),
            answered: Condvar::new(),
            delivery: Mutex::default(),
            epoll,
            wake,
            is_woken: AtomicBool::new(false),
            nudge,
            fork_guard,
        })
    }

    /// This process's block of queue pair numbers.
    pub fn block(&self) -> Block {
        self.block
    }

    /// The block's sockets: IPv4, and IPv6 if the machine supports it. Only this process may use them, and only to
    /// receive; do not duplicate, connect or rebind them.
    pub fn sockets(&self) -> &[BlockSocket] {
        &self.sockets
    }

    /// Readable when [`process`](Self::process) has work; for poll and epoll only.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Does all work that is possible now, in bounded time and without blocking: the coordinator's duties, an election,
    /// and the delivery of datagrams that arrived at another process first. Only one thread may call it at a time.
    ///
    /// `deliver` is called without any lock that the group's other methods take.
    pub fn process(&self, deliver: &mut dyn FnMut(Datagram<'_>)) {
        if !self.fork_guard.is_owner() {
            return;
        }
        // Cleared before the work, so that no later call is lost.
        if self.is_woken.swap(false, Ordering::AcqRel) {
            take_count(&self.wake);
        }
        let _again = WakeIfPanics(self);
        let mut delivery = self.delivery.lock();
        let mut shared = self.lock();
        let turned = shared.state.turn(Instant::now());
        match delivery.is_empty() {
            true => std::mem::swap(&mut *delivery, &mut shared.state.context.inbox),
            // A panic interrupted the last call. What came since follows.
            false => self.wake(),
        }
        let mut shared = self.after_turn(shared, turned);
        let replayed = std::mem::take(&mut shared.state.context.replayed);
        drop(shared);
        for (request, answer) in &replayed {
            unharmed(|| self.member.replayed(request, answer));
        }
        delivery.deliver(&mut |delivery| match delivery {
            Delivery::Datagram(datagram) => deliver(datagram),
            Delivery::PeerDeath(blocks) => {
                let blocks: Vec<_> = blocks.iter().collect();
                unharmed(|| self.member.peer_death(&blocks));
            }
        });
    }

    /// Maximum time until the next call to [`process`](Self::process) while the descriptor is not readable; `None`
    /// means no limit.
    pub fn next_timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let at = self.lock().state.next_timeout(now)?;
        Some(at.saturating_duration_since(now))
    }

    /// Sends a request to the coordinator ([`CoordinatorService::request`]), which may be this process, and waits for
    /// the answer. If the coordinator dies, the request goes to the next one. Any thread may call it, including the one
    /// that calls [`process`](Self::process), but not from within [`CoordinatorService`].
    ///
    /// # Errors
    /// * `GroupSilent`: the coordinator did not answer within `timeout`.
    /// * `TimedOut`: there was no coordinator within `timeout`.
    /// * `GroupNotTrusted`, `GroupDistrusts`, `GroupRefused`: no answer, because this process and the current
    ///   coordinator do not trust each other. Also `GroupRefused`, at once, if this process has [left](Self::leave).
    /// * `LimitReached`: [`REQUESTS_MAX`] requests are waiting.
    /// * `InvalidArgument`: more than [`REQUEST_BYTES_MAX`] bytes.
    /// * `Unsupported`: the process is a child forked since.
    pub fn request(&self, payload: &[u8], timeout: Duration) -> Result<Vec<u8>> {
        self.check_request(payload)?;
        let now = Instant::now();
        let deadline = now + timeout;
        let mut shared = self.lock();
        let id = shared.state.requests.add(payload, now);
        let id = id.ok_or_else(too_many_requests)?;
        let answer = loop {
            shared = self.turn_for_all(shared);
            if let Some(answer) = shared.state.requests.take_answer(id) {
                break Some(answer);
            }
            let now = Instant::now();
            if now >= deadline || shared.state.has_left() {
                break None;
            }
            shared = self.wait(shared, deadline - now);
        };
        shared.state.requests.give_up(id);
        if !shared.has_leader {
            // This thread may have been woken to become the leader.
            self.answered.notify_one();
        }
        if let Some(answer) = answer {
            return Ok(answer);
        }
        let shut_out = shared.state.why_shut_out().cloned();
        let coordinator = shared.state.coordinator();
        drop(shared);
        let after_ms = timeout.as_millis() as u64;
        let cause = match (shut_out, coordinator) {
            (Some(cause), _) => cause,
            (None, Some(coordinator)) => Cause::GroupSilent {
                pid: coordinator.pid,
                stopped: coordinator.is_stopped(),
                open_files: coordinator.reached_open_files(),
                after_ms,
            },
            (None, None) => Cause::TimedOut {
                after_ms,
                retries: 0,
            },
        };
        Err(Error::new(Step::OpenDevice, cause))
    }

    /// Like [`request`](Self::request), but does not wait: the current or the next coordinator gets the request in
    /// order with this process's other requests, and the answer is dropped.
    ///
    /// # Errors
    /// As for [`request`](Self::request), except those of waiting.
    pub fn tell(&self, payload: &[u8]) -> Result<()> {
        self.check_request(payload)?;
        let mut shared = self.lock();
        let id = shared.state.requests.add_unawaited(payload, Instant::now());
        id.ok_or_else(too_many_requests)?;
        drop(self.turn_for_all(shared));
        Ok(())
    }

    fn check_request(&self, payload: &[u8]) -> Result<()> {
        if !self.fork_guard.is_owner() {
            return Err(Error::new(Step::OpenDevice, Cause::Unsupported(AFTER_FORK)));
        }
        if payload.len() > REQUEST_BYTES_MAX {
            let expected = format!("at most {REQUEST_BYTES_MAX} bytes");
            let (step, what) = (Step::OpenDevice, "request to the group");
            return Err(Error::invalid(step, what, expected, payload.len()));
        }
        Ok(())
    }

    /// How often the coordinator has changed since this process joined. A new coordinator only knows what
    /// [`MemberService::replay`] knew at the change. So if this number changed between the grant of a claim and its
    /// recording, request the claim again.
    pub fn epoch(&self) -> u64 {
        self.lock().state.epoch()
    }

    /// Forwards a datagram that arrived here but belongs to another block. This happens because the kernel may deliver
    /// packets of one sender to several queue pairs as one unit (generic receive offload). Use [`Block::COORDINATOR`]
    /// for datagrams to QP1. The datagram goes through the coordinator and may be lost.
    pub fn forward(&self, block: Block, datagram: Datagram<'_>) {
        if !self.fork_guard.is_owner() {
            return;
        }
        let mut shared = self.lock();
        if datagram.payload.len() > DATAGRAM_BYTES_MAX {
            shared.state.context.counters.malformed += 1;
            return;
        }
        shared.state.forward(block, datagram);
        let undelivered = !shared.state.context.inbox.is_empty();
        drop(shared);
        if undelivered {
            self.wake();
        }
    }

    /// Delivers a datagram of this process to QP1 of an address of its own host, without a socket. `false` if that is
    /// not possible: send it to the UDP port instead. `true` does not mean that it arrives.
    pub fn deliver_here(&self, datagram: Datagram<'_>) -> bool {
        if !self.fork_guard.is_owner() || datagram.payload.len() > DATAGRAM_BYTES_MAX {
            return false;
        }
        let mut shared = self.lock();
        let delivered = shared.state.deliver_here(datagram);
        let waits_here = delivered && !shared.state.context.inbox.is_empty();
        drop(shared);
        if waits_here {
            self.wake();
        }
        delivered
    }

    /// Leaves the group before this value is dropped. To others it looks as if this process had died. The block's
    /// sockets are closed, and requests fail.
    pub fn leave(&self) {
        self.sockets.iter().for_each(BlockSocket::vacate);
        let mut shared = self.lock();
        shared.state.leave();
        // Those that wait for answers.
        self.answered.notify_all();
        if shared.has_leader {
            add_count(&self.nudge);
        }
    }

    /// Enables direct connections between other members and this one, once.
    ///
    /// # Errors
    /// `Os` with `EADDRINUSE` if this was called before, or if another user's process holds the name; otherwise the
    /// system's error.
    pub fn link_members(&self) -> Result<MemberLinks> {
        let config = self.lock().state.context.config.clone();
        MemberLinks::new(self.block(), &config).map_err(join::os("listen"))
    }

    /// The state of the group, as known to this process.
    pub fn status(&self) -> GroupStatus {
        self.lock().state.status()
    }

    /// Makes a thread call [`process`](Self::process).
    fn wake(&self) {
        add_count(&self.wake);
        // After the count: a call that sees the flag finds the count.
        self.is_woken.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Only a service can panic; the group's own state is consistent during calls to it.
        self.shared.lock()
    }

    /// A turn by a thread that does not call `process`.
    fn turn_for_all<'a>(&'a self, mut shared: MutexGuard<'a, Shared>) -> MutexGuard<'a, Shared> {
        let now = Instant::now();
        let before = shared.state.next_timeout(now);
        let turned = shared.state.turn(now);
        let shared = self.after_turn(shared, turned);
        let sooner = match (before, shared.state.next_timeout(now)) {
            (Some(before), Some(after)) => after < before,
            (None, after) => after.is_some(),
            (Some(_), None) => false,
        };
        let context = &shared.state.context;
        if sooner || !context.inbox.is_empty() || !context.replayed.is_empty() {
            self.wake();
        }
        shared
    }

    /// Work after a turn: replays registrations without the lock, and wakes waiters.
    fn after_turn<'a>(
        &'a self,
        shared: MutexGuard<'a, Shared>,
        turned: Turned,
    ) -> MutexGuard<'a, Shared> {
        let mut shared = shared;
        if let Some(epoch) = turned.replay {
            drop(shared);
            let payloads = unharmed(|| self.member.replay());
            shared = self.lock();
            shared.state.replay(epoch, &payloads);
        }
        if !turned.surveys.is_empty() {
            drop(shared);
            let payloads = unharmed(|| self.member.report());
            shared = self.lock();
            shared.state.report(&turned.surveys, &payloads);
        }
        if turned.answered {
            self.answered.notify_all();
            if shared.has_leader {
                add_count(&self.nudge);
            }
        }
        shared
    }

    /// Waits until an answer may be available. One of the waiting threads watches the descriptors for all of them, so
    /// no request depends on another thread calling `process`.
    fn wait<'a>(
        &'a self,
        mut shared: MutexGuard<'a, Shared>,
        limit: Duration,
    ) -> MutexGuard<'a, Shared> {
        if shared.has_leader {
            let waited = self.answered.wait_timeout(shared, limit);
            return waited.0;
        }
        shared.has_leader = true;
        let now = Instant::now();
        let next = shared
            .state
            .next_timeout(now)
            .map(|at| at.saturating_duration_since(now));
        let limit = next
            .map_or(limit, |next| limit.min(next))
            .min(MemberState::LOOK_INTERVAL);
        // The state, and so its descriptor, lives as long as `self`.
        let watched = shared.state.context.epoll_handle();
        drop(shared);
        let mut descriptors = [
            PollFd::new(&*watched, PollFlags::IN),
            PollFd::new(&self.nudge, PollFlags::IN),
        ];
        if let Err(errno) = poll(&mut descriptors, limit.try_into().ok().as_ref())
            && errno != Errno::INTR
        {
            tracing::error!(%errno, "poll");
        }
        let mut shared = self.lock();
        take_count(&self.nudge);
        shared.has_leader = false;
        // If this thread has its answer, another thread must become the leader.
        self.answered.notify_one();
        shared
    }
}

/// Makes a thread call [`PortGroup::process`] again if this call panics: deliveries may be left.
struct WakeIfPanics<'a>(&'a PortGroup);

impl Drop for WakeIfPanics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.wake();
        }
    }
}

impl fmt::Debug for PortGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortGroup")
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}

/// Calls the member's service. A panic is logged and replaced by an empty answer, because the whole process depends on
/// the calling thread.
fn unharmed<R: Default>(call: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        tracing::error!("the member's service panicked");
        R::default()
    })
}

fn too_many_requests() -> Error {
    let limit = REQUESTS_MAX as u64;
    let what = "waiting requests to the group";
    Error::new(Step::OpenDevice, Cause::LimitReached { what, limit })
}

/// Makes an event counter readable.
fn add_count(counter: &PrivateFd) {
    // It can only fail if the counter is full, and then it is readable.
    let _ = rustix::io::write(counter, &1u64.to_ne_bytes());
}

/// Makes an event counter unreadable.
fn take_count(counter: &PrivateFd) {
    // It can only fail if the counter is zero.
    let _ = rustix::io::read(counter, &mut [0u8; 8]);
}

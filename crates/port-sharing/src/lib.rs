//! Many processes share one UDP port, without a daemon.
//!
//! RoCEv2 has one UDP port (4791) for all queue pairs of a host, but every process has its own. So
//! the port is bound by a set of sockets, one for each [`Block`] of queue pair numbers, and the kernel
//! brings each packet to the socket of its destination (`bpf`). Each process reads its own block's
//! sockets and no others.
//!
//! * **Founding** (`join`, `founding`, `sockets`): a process that finds no group binds its name and makes all
//!   sockets at once; their order is what the kernel's choice goes by.
//! * **The descriptor store** (`descriptor_store`): the sockets are parked in a unix socket that every member holds, so
//!   none closes, and the order stays, whichever process dies, the founder included.
//! * **The coordinator** (`coordinator`, `connections`, `registry`): the process that listens on the group's name
//!   (`name`). It lets others in (`trust`; `stranger` and `witness` find out who else is in the way), gives each a
//!   block, answers requests (such as which ports are taken), and reads block 0, where connection management
//!   arrives for all members: it forwards those datagrams.
//! * **Election** (`election`, `state`): when the coordinator dies the kernel frees its name; the members
//!   see their connections end, one binds the name, the others connect to it with the blocks they
//!   have and register everything again.
//! * **Deaths**: if a block's name is free again, its process is dead. The coordinator tells all
//!   members ([`MemberService::peer_death`]), a new coordinator those that come back, so that no process waits for
//!   the dead.
//!
//! * **Observers** (`observe`): a process that only wants to look asks the coordinator, which passes the question on to
//!   the members.
//!
//! A block's packets never pass through another process. Whatever the coordinator does is rare, or can be
//! lost: management datagrams are sent again by their protocol.
//!
//! Locks: one, around the whole state; held while [`CoordinatorService`] is asked, never while
//! [`MemberService`] is, nor while datagrams are delivered, nor while anything waits.

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
    /// A request has its answer, or its waiter may become the coordinator.
    answered: Condvar,
    /// Datagrams being delivered; changes places with the state's inbox.
    delivery: Mutex<Inbox>,
    /// Readable when [`process`](Self::process) has something to do: `wake`, or the role's own
    /// descriptors.
    epoll: PrivateFd,
    wake: PrivateFd,
    /// Wakes the waiter that looks after all when another thread has found its answer.
    nudge: PrivateFd,
    fork_guard: ForkGuard,
}

const AFTER_FORK: &str = "use of a port group in a process forked after it was joined";

/// What the lock guards.
struct Shared {
    state: MemberState,
    /// Whether one of the waiting threads is looking after the state for all of them.
    has_leader: bool,
}

impl PortGroup {
    /// Joins the group of `config.port` in this network namespace, or founds it.
    ///
    /// Call [`process`](Self::process) from now on: this process may be the coordinator.
    ///
    /// # Errors
    /// * `PortOwnedElsewhere`: the port is taken, and not by a group (the kernel's rdma_rxe takes it).
    /// * `GroupNotTrusted`: a user who is not trusted leads the group, or holds its name; `GroupPlacesTaken`: or its
    ///   places.
    /// * `GroupDistrusts`: the group does not trust this user; `GroupRefused`: it will not have this process for
    ///   another reason.
    /// * `LimitReached`: all 127 blocks are in use.
    /// * `InvalidArgument`: a setting that cannot work.
    /// * `DescriptorLimit`: even the hard limit of open files (`RLIMIT_NOFILE`) is too low; the soft one is raised
    ///   as far as needed.
    /// * `Os`: a system call failed.
    pub fn join(
        config: GroupConfig,
        coordinator: Box<dyn CoordinatorService>,
        member: Arc<dyn MemberService>,
    ) -> Result<Self> {
        let fork_guard = ForkGuard::new().map_err(|error| {
            let (call, errno) = ("mmap", error.raw_os_error().unwrap_or(0));
            Error::new(Step::OpenDevice, Cause::Os { call, errno })
        })?;
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
            nudge,
            fork_guard,
        })
    }

    /// The block of queue pair numbers that is this process's own.
    pub fn block(&self) -> Block {
        self.block
    }

    /// The block's sockets: IPv4, and IPv6 where the machine has it. Only for receiving, and only by
    /// this process; they are not to be duplicated, connected or bound anew.
    pub fn sockets(&self) -> &[BlockSocket] {
        &self.sockets
    }

    /// Readable when [`process`](Self::process) has something to do; for poll and epoll only.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Does what can be done now, in bounded time and without waiting: the coordinator's duties, an election,
    /// and the delivery of datagrams that came to another process first. For one thread at a time.
    ///
    /// `deliver` is called without any lock that the group's other methods take.
    pub fn process(&self, deliver: &mut dyn FnMut(Datagram<'_>)) {
        if !self.fork_guard.is_owner() {
            return;
        }
        take_count(&self.wake);
        let mut delivery = self.delivery.lock();
        let mut shared = self.lock();
        let turned = shared.state.turn(Instant::now());
        std::mem::swap(&mut *delivery, &mut shared.state.context.inbox);
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

    /// How long [`process`](Self::process) may be left uncalled while the descriptor is not readable;
    /// `None` means as long as it is not.
    pub fn next_timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let at = self.lock().state.next_timeout(now)?;
        Some(at.saturating_duration_since(now))
    }

    /// Asks the coordinator ([`CoordinatorService::request`]), be it another process or this one, and waits for the
    /// answer. If the coordinator dies meanwhile the next one is asked. Any thread may call it, the one that
    /// calls [`process`](Self::process) included, but not from within [`CoordinatorService`].
    ///
    /// # Errors
    /// * `GroupSilent`: the coordinator gives no answer within `timeout`; `TimedOut`: nor is there one.
    /// * `GroupNotTrusted`, `GroupDistrusts`, `GroupRefused`: neither, and this process and the present coordinator
    ///   do not trust each other.
    /// * `LimitReached`: [`REQUESTS_MAX`] requests are waiting.
    /// * `InvalidArgument`: more than [`REQUEST_BYTES_MAX`] bytes.
    /// * `Unsupported`: in a child forked since.
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
            if now >= deadline {
                break None;
            }
            shared = self.wait(shared, deadline - now);
        };
        shared.state.requests.give_up(id);
        if !shared.has_leader {
            // This thread may have been woken to look after the rest.
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
                after_ms,
            },
            (None, None) => Cause::TimedOut {
                after_ms,
                retries: 0,
            },
        };
        Err(Error::new(Step::OpenDevice, cause))
    }

    /// As [`request`](Self::request), but waits for nothing: the coordinator, or the next one, gets it in its
    /// turn with this process's other requests, and the answer is dropped.
    ///
    /// # Errors
    /// As for [`request`](Self::request), without those of waiting.
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

    /// How many coordinators this process has had after the first. What [`MemberService::replay`] did not know
    /// of when the coordinator changed, the new one does not know either: so a claim that was granted and
    /// then noted down is to be asked for again if this number changed in between.
    pub fn epoch(&self) -> u64 {
        self.lock().state.epoch()
    }

    /// Sends a datagram on that arrived here but is another block's: the kernel may deliver packets
    /// of one sender to several queue pairs in one piece (generic receive offload). [`Block::COORDINATOR`] is
    /// for those to QP1. It goes by way of the coordinator and may be lost.
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
            add_count(&self.wake);
        }
    }

    /// Leaves the group, though this value lives on: to all others it is as if this process had died. Its
    /// block's sockets are closed, and nothing can be asked any more.
    pub fn leave(&self) {
        self.sockets.iter().for_each(BlockSocket::vacate);
        self.lock().state.leave();
    }

    /// Lets other members connect to this one, and this one to them.
    ///
    /// # Errors
    /// `Os` if the system refuses.
    pub fn link_members(&self) -> Result<MemberLinks> {
        let shared = self.lock();
        let context = &shared.state.context;
        let own_name = Arc::clone(&context.block_name);
        MemberLinks::new(own_name, &context.config).map_err(join::os("listen"))
    }

    /// The group as this process sees it.
    pub fn status(&self) -> GroupStatus {
        self.lock().state.status()
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic can only come from a service; the group's own state is whole between calls to it.
        self.shared.lock()
    }

    /// A turn by a thread other than the one that calls `process`.
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
            add_count(&self.wake);
        }
        shared
    }

    /// What follows a turn: registrations replayed without the lock, waiters told.
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

    /// Waits until there may be an answer. One of the waiting threads watches the descriptors for
    /// all of them, so that no request depends on another thread calling `process`.
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
        // The state lives as long as `self`, and so does its descriptor.
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
        // Should this thread have its answer, another has to look after the rest.
        self.answered.notify_one();
        shared
    }
}

impl fmt::Debug for PortGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PortGroup")
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}

/// Calls the member's service. If that panics, the panic is logged and ends there, with an empty answer:
/// the whole process depends on the thread that called.
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
    // It can only fail by being full, and then it is readable.
    let _ = rustix::io::write(counter, &1u64.to_ne_bytes());
}

/// Makes an event counter unreadable.
fn take_count(counter: &PrivateFd) {
    // It can only fail by being empty.
    let _ = rustix::io::read(counter, &mut [0u8; 8]);
}

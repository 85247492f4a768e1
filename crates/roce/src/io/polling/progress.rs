//! The progress thread from other threads' side: what it waits for, and how it is woken.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use portolan_provider::{Error, Result, Step};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use crate::io::net::interface_monitor::InterfaceMonitor;
use crate::io::net::shm::links::Links;
use crate::io::net::sockopt::IpVersion;
use crate::io::net::transmit::{SendSocket, Transmitter};
use crate::io::polling::attendance::{Attendant, this_thread};
use crate::io::polling::clock::{Moment, as_nanos};
use crate::io::polling::last_polls::LastPolls;
use crate::io::polling::poll_handoff::{PollHandoff, Sleep, Watch};
use crate::io::polling::ring_waiter::RingWaiter;
use portolan_port_sharing::PortGroup;
use portolan_port_sharing::room::{self, with_room};

/// How long a visit of a poller counts.
const POLLER_STAYS_NS: u64 = 2_000_000;
/// An active poller visits more often than this.
const POLLER_AWAY_NS: u64 = 100_000;

/// A poller looks at full rings once in this time.
const FULL_RING_INTERVAL_NS: u64 = 20_000;

/// How often the progress thread checks whether pollers are still active.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// The longest time between two looks at sockets that a thread of the program waits for: less than the connections of
/// most peers endure without an answer.
pub(crate) const SLEEPER_LOOK_MAX: Duration = Duration::from_secs(2);

/// Tokens of descriptors in epoll. Send sockets have tokens from [`SEND`] up to [`INTERFACES`].
pub(crate) const WAKE: u64 = 0;
/// See [`WAKE`].
pub(crate) const GROUP: u64 = 1;
/// See [`WAKE`].
pub(crate) const DATA: u64 = 2;
/// See [`WAKE`].
pub(crate) const SEND: u64 = 16;
/// See [`WAKE`].
pub(crate) const INTERFACES: u64 = 1 << 32;
/// See [`WAKE`]. Above all send sockets.
pub(crate) const MULTICAST: u64 = 1 << 33;
/// See [`WAKE`]. The links' bell. [`LINKS`] is their listener, followed by the links.
pub(crate) const BELL: u64 = 1 << 34;
/// See [`BELL`].
pub(crate) const LINKS: u64 = BELL + 1;

/// The sockets and rings that packets arrive in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sources<'a> {
    pub(crate) group: &'a PortGroup,
    pub(crate) links: Option<&'a Links>,
}

/// The progress thread from other threads' side.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) epoll: OwnedFd,
    wake: OwnedFd,
    sleep: Sleep,
    handoff: PollHandoff,
    /// Number of connected queue pairs over IPv4 and IPv6.
    connected: [AtomicUsize; 2],
    /// Number of those that send by a socket, not by a ring.
    by_sockets: AtomicUsize,
    stopping: AtomicBool,
    /// The thread was woken, and has not looked why.
    woken: AtomicBool,
    /// A ring that this process writes to has no room.
    is_ring_full: AtomicBool,
    /// When a poller last looked whether it has, nanoseconds.
    ring_looked_ns: AtomicU64,
    /// The connection manager's timer may have changed.
    gsi_changed: AtomicBool,
    /// A reading of the interfaces was requested.
    reading_asked: AtomicBool,
    /// The interfaces have changed, and the thread reads them soon.
    reading_due: AtomicBool,
    /// The thread that waits for the group instead of the progress thread.
    pub(crate) attendant: Attendant,
    /// The thread that waits for the rings instead of the progress thread.
    ring_waiter: RingWaiter,
    last_polls: LastPolls,
    /// A thread panicked, possibly with queue pairs locked.
    panicked: AtomicBool,
}

impl Progress {
    /// Creates the epoll instance with everything the thread waits for.
    pub(crate) fn new(
        group: &PortGroup,
        transmitter: &Transmitter,
        interfaces: &InterfaceMonitor,
        links: Option<&Links>,
    ) -> Result<Self> {
        let epoll = with_room(|| epoll::create(epoll::CreateFlags::CLOEXEC))
            .map_err(|errno| os_error("epoll_create1", errno))?;
        let wake = with_room(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))
            .map_err(|errno| os_error("eventfd", errno))?;
        let add = |fd, token, flags| {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), flags)
                .map_err(|errno| os_error("epoll_ctl", errno))
        };
        add(wake.as_fd(), WAKE, epoll::EventFlags::IN)?;
        add(group.as_fd(), GROUP, epoll::EventFlags::IN)?;
        add(interfaces.as_fd(), INTERFACES, epoll::EventFlags::IN)?;
        for (token, socket) in (DATA..SEND).zip(group.sockets()) {
            add(socket.as_fd(), token, epoll::EventFlags::IN)?;
        }
        for (token, socket) in transmitter.iter() {
            if let Some(fd) = socket.fd() {
                add(fd, SEND + token, epoll::EventFlags::empty())?;
            }
        }
        if let Some(links) = links {
            add(links.bell().as_fd(), BELL, epoll::EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            wake,
            sleep: Sleep::new(),
            handoff: PollHandoff::new(POLLER_STAYS_NS),
            connected: Default::default(),
            by_sockets: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            is_ring_full: AtomicBool::new(false),
            ring_looked_ns: AtomicU64::new(0),
            gsi_changed: AtomicBool::new(true),
            reading_asked: AtomicBool::new(false),
            reading_due: AtomicBool::new(false),
            attendant: Attendant::new().map_err(|errno| os_error("eventfd", errno))?,
            ring_waiter: RingWaiter::new(),
            last_polls: LastPolls::default(),
            panicked: AtomicBool::new(false),
        })
    }

    /// The number of connected queue pairs of an IP version.
    pub(crate) fn connected(&self, version: IpVersion) -> &AtomicUsize {
        let [v4, v6] = &self.connected;
        match version {
            IpVersion::V4 => v4,
            IpVersion::V6 => v6,
        }
    }

    /// Whether any queue pair is connected over an IP version.
    #[inline]
    pub(crate) fn is_connected(&self, version: IpVersion) -> bool {
        self.connected(version).load(Ordering::Relaxed) > 0
    }

    /// The number of connected queue pairs that send by a socket.
    pub(crate) fn by_sockets(&self) -> &AtomicUsize {
        &self.by_sockets
    }

    /// Whether any queue pair sends by a socket.
    #[inline]
    pub(crate) fn needs_sockets(&self) -> bool {
        self.by_sockets.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn last_polls(&self) -> &LastPolls {
        &self.last_polls
    }

    /// The thread that waits for the rings instead of the progress thread.
    pub(crate) fn ring_waiter(&self) -> &RingWaiter {
        &self.ring_waiter
    }

    /// Called by a thread that polls: it will read the sockets.
    #[inline]
    pub(crate) fn poller_is_here(&self, now: Moment) {
        self.handoff.poller_is_here(now.ns);
    }

    /// Called by a polling thread that is about to sleep.
    #[inline]
    pub(crate) fn poller_leaves(&self, sources: Sources<'_>, now: Duration) {
        let watch = |change| self.watch(sources, change);
        self.handoff.poller_leaves(as_nanos(now), watch);
    }

    /// Removes the sockets from epoll if a poller reads them, otherwise adds them. Returns whether a poller does.
    pub(crate) fn yield_to_pollers(&self, sources: Sources<'_>, now: Duration) -> bool {
        let watch = |change| self.watch(sources, change);
        let yields = self.handoff.yield_to_pollers(as_nanos(now), watch);
        if !yields {
            self.ring_waiter.miss();
        }
        yields
    }

    /// The calling thread is about to wait for the sockets. False if another one does.
    pub(crate) fn sleeper_takes(&self, sources: Sources<'_>, now: Duration) -> bool {
        let watch = |change| self.watch(sources, change);
        let takes = self.handoff.sleeper_takes(this_thread(), watch);
        if takes {
            // This thread looks whether it comes.
            self.wake_before(now + 2 * SLEEPER_LOOK_MAX);
        }
        takes
    }

    /// The thread that waited for the sockets is awake, and has read them. If it is expected back, since now, this thread
    /// checks them at intervals.
    pub(crate) fn sleeper_returns(&self, sources: Sources<'_>, back: Option<Duration>) {
        let watch = |change| self.watch(sources, change);
        self.handoff
            .sleeper_returns(this_thread(), back.map(as_nanos), watch);
        if let Some(now) = back {
            self.wake_before(now + 2 * LOOK_INTERVAL);
        }
    }

    /// The thread that waited for the sockets does not come, or need not wait any more.
    pub(crate) fn sleeper_is_gone(&self, sources: Sources<'_>) {
        self.handoff
            .sleeper_is_gone(|change| self.watch(sources, change));
    }

    /// Whether this thread checks the sockets at intervals for a thread that is expected to wait for them again.
    pub(crate) fn expects_sleeper(&self, now: Duration) -> bool {
        self.handoff.expects_sleeper(as_nanos(now))
    }

    /// Whether that thread does not wait for them now.
    pub(crate) fn is_sleeper_away(&self) -> bool {
        self.handoff.is_sleeper_away()
    }

    /// Whether a thread of the program waits for the sockets.
    pub(crate) fn has_sleeper(&self) -> bool {
        self.handoff.has_sleeper()
    }

    /// Keeps the sockets in epoll although pollers read them.
    pub(crate) fn watch_beside_pollers(&self, sources: Sources<'_>) {
        self.handoff
            .watch_beside_pollers(|change| self.watch(sources, change));
    }

    /// Whether the active pollers do not read the sockets at the moment.
    pub(crate) fn is_poller_away(&self, now: Duration) -> bool {
        self.handoff.is_poller_away(as_nanos(now), POLLER_AWAY_NS)
    }

    /// Whether a poller is active.
    #[inline]
    pub(crate) fn is_polled(&self, now: Duration) -> bool {
        self.handoff.is_polled(as_nanos(now))
    }

    /// Whether the thread should stop polling the sockets: a poller reads them, or another thread requested
    /// something.
    pub(crate) fn is_wanted(&self, now: Duration) -> bool {
        self.is_polled(now)
            || self.woken.load(Ordering::Relaxed)
            || self.is_gsi_changed()
            || self.is_reading_asked()
            || self.is_stopping()
    }

    fn watch(&self, sources: Sources<'_>, change: Watch) {
        match change {
            Watch::Rings(watching) => {
                if let Some(links) = sources.links {
                    self.watch_rings(links, watching);
                }
            }
            Watch::Sockets(watching) => self.watch_sockets(sources.group, watching),
        }
    }

    fn watch_rings(&self, links: &Links, watching: bool) {
        let asleep = links.head_page().asleep();
        match watching {
            true => asleep.announce(),
            false => asleep.end(),
        }
        if watching && self.ring_waiter.rests() {
            // A poller may have told the writers not to wake it.
            asleep.announce_waiter();
        }
    }

    /// The progress thread polls the rings, so that their writers need not wake it. If it leaves them to others, nothing
    /// changes.
    pub(crate) fn polls_rings(&self, links: &Links) {
        self.handoff
            .if_watching(|| links.head_page().asleep().end());
    }

    /// Undoes [`polls_rings`](Self::polls_rings). The caller looks at every ring once more after this.
    pub(crate) fn polled_rings(&self, links: &Links) {
        self.handoff
            .if_watching(|| links.head_page().asleep().announce());
    }

    fn watch_sockets(&self, group: &PortGroup, watching: bool) {
        let flags = match watching {
            true => epoll::EventFlags::IN,
            false => epoll::EventFlags::empty(),
        };
        for (token, socket) in (DATA..SEND).zip(group.sockets()) {
            // The descriptor is in the set and both are open, so this cannot fail.
            let _ = epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(token), flags);
        }
    }

    /// Makes the thread resume a socket's queue pairs when there is room to send.
    pub(crate) fn watch_for_room(&self, transmitter: &Transmitter, socket: &SendSocket) {
        let Some((token, fd)) = transmitter.token(socket).zip(socket.fd()) else {
            // A ring has no descriptor: a poller retries. The thread retries when the reader has made room, and once
            // before it waits for that.
            self.ring_is_full();
            return self.wake();
        };
        let flags = epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT;
        // As above.
        let data = epoll::EventData::new_u64(SEND + token);
        let _ = epoll::modify(&self.epoll, fd, data, flags);
    }

    /// Whether a poller looks again at rings that had no room; clears the flag. Not at each poll: a ring has no room for
    /// as long as its reader is stopped.
    #[inline]
    pub(crate) fn take_ring_full(&self, now_ns: u64) -> bool {
        if !self.is_ring_full.load(Ordering::Relaxed) {
            return false;
        }
        let looked_ns = self.ring_looked_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(looked_ns) < FULL_RING_INTERVAL_NS {
            return false;
        }
        self.ring_looked_ns.store(now_ns, Ordering::Relaxed);
        self.is_ring_full.swap(false, Ordering::AcqRel)
    }

    /// A ring still has no room.
    pub(crate) fn ring_is_full(&self) {
        self.is_ring_full.store(true, Ordering::Release);
    }

    /// Makes the thread read a multicast group's socket.
    pub(crate) fn watch_multicast(&self, token: u64, socket: BorrowedFd<'_>) -> Result<()> {
        let data = epoll::EventData::new_u64(MULTICAST + token);
        epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)
            .map_err(|errno| os_error("epoll_ctl", errno))
    }

    /// Makes the thread read a connection of the links, or their listener.
    pub(crate) fn watch_link(&self, token: u64, fd: BorrowedFd<'_>) {
        let data = epoll::EventData::new_u64(token);
        if let Err(errno) = epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN) {
            tracing::debug!(%errno, "epoll_ctl");
        }
    }

    /// Undoes [`watch_link`](Self::watch_link).
    pub(crate) fn forget_link(&self, fd: BorrowedFd<'_>) {
        // The descriptor is in the set and both are open, so this cannot fail.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Undoes [`watch_multicast`](Self::watch_multicast).
    pub(crate) fn forget_multicast(&self, socket: BorrowedFd<'_>) {
        // The descriptor is in the set and both are open, so this cannot fail.
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Wakes the thread if it sleeps beyond `deadline`.
    pub(crate) fn wake_before(&self, deadline: Duration) {
        self.wake_before_ns(as_nanos(deadline));
    }

    /// As [`wake_before`](Self::wake_before), with the deadline in nanoseconds.
    #[inline]
    pub(crate) fn wake_before_ns(&self, deadline_ns: u64) {
        if self.sleep.misses(deadline_ns) {
            self.wake();
        }
    }

    /// Makes the thread ask the connection manager for its next timeout.
    pub(crate) fn gsi_changed(&self) {
        self.gsi_changed.store(true, Ordering::SeqCst);
        if self.sleep.misses(0) {
            self.wake();
        }
    }

    /// Whether the thread must ask the connection manager for its next timeout; clears the flag.
    pub(crate) fn take_gsi_changed(&self) -> bool {
        self.gsi_changed.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn is_gsi_changed(&self) -> bool {
        self.gsi_changed.load(Ordering::SeqCst)
    }

    /// Makes the thread serve requested readings of the interfaces.
    pub(crate) fn reading_asked(&self) {
        self.reading_asked.store(true, Ordering::SeqCst);
        if self.sleep.misses(0) {
            self.wake();
        }
    }

    /// Whether a reading was requested; clears the flag.
    pub(crate) fn take_reading_asked(&self) -> bool {
        self.reading_asked.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn is_reading_asked(&self) -> bool {
        self.reading_asked.load(Ordering::SeqCst)
    }

    /// Sets whether the interfaces have changed and are not read yet.
    pub(crate) fn set_reading_due(&self, is_due: bool) {
        self.reading_due.store(is_due, Ordering::Release);
    }

    pub(crate) fn is_reading_due(&self) -> bool {
        self.reading_due.load(Ordering::Acquire)
    }

    /// Watches the group, or not.
    pub(crate) fn watch_group(&self, group: &PortGroup, watching: bool) {
        let flags = match watching {
            true => epoll::EventFlags::IN,
            false => epoll::EventFlags::empty(),
        };
        // The descriptor is in the set and both are open, so this cannot fail.
        let _ = epoll::modify(
            &self.epoll,
            group.as_fd(),
            epoll::EventData::new_u64(GROUP),
            flags,
        );
    }

    /// Makes the thread mend what a panic has broken.
    pub(crate) fn panicked(&self) {
        self.panicked.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether a thread has panicked; clears the flag.
    pub(crate) fn take_panicked(&self) -> bool {
        self.panicked.load(Ordering::SeqCst) && self.panicked.swap(false, Ordering::SeqCst)
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// The thread's announcement of when it sleeps.
    pub(crate) fn sleep(&self) -> &Sleep {
        &self.sleep
    }

    /// Undoes [`wake`](Self::wake).
    pub(crate) fn awoken(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        // After the read. Otherwise it could stay set with nothing to read.
        self.woken.store(false, Ordering::SeqCst);
    }

    pub(crate) fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        // Fails only if 2^64 wake-ups are pending, and then the thread is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

fn os_error(call: &'static str, errno: Errno) -> Error {
    Error::new(Step::OpenDevice, room::cause(call, errno))
}

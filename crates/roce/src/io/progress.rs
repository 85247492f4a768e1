//! The progress thread as other threads see it: what it waits for, and how it is woken.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use portolan_provider::{Cause, Error, Result, Step};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use super::clock::as_nanos;
use super::group::Group;
use super::interface_monitor::InterfaceMonitor;
use super::sockopt::IpVersion;
use super::transmit::{SendSocket, Transmitter};
use super::turns::{Sleep, Turns};

/// A visit of a poller counts for so long.
const POLLER_STAYS_NS: u64 = 2_000_000;
/// Who polls comes back sooner than this.
const POLLER_AWAY_NS: u64 = 100_000;
/// How often the progress thread looks whether pollers are still there.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Tokens of the descriptors in epoll. Sockets to send from have those between [`SEND`] and
/// [`INTERFACES`].
pub(super) const WAKE: u64 = 0;
/// See [`WAKE`].
pub(super) const GROUP: u64 = 1;
/// See [`WAKE`].
pub(super) const DATA: u64 = 2;
/// See [`WAKE`].
pub(super) const SEND: u64 = 16;
/// See [`WAKE`].
pub(super) const INTERFACES: u64 = 1 << 32;
/// See [`WAKE`]. Beyond all sockets to send from.
pub(super) const MULTICAST: u64 = 1 << 33;

/// The progress thread as other threads see it.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) epoll: OwnedFd,
    wake: OwnedFd,
    sleep: Sleep,
    turns: Turns,
    /// Connected queue pairs over IPv4 and IPv6.
    connected: [AtomicUsize; 2],
    stopping: AtomicBool,
    /// The connection manager's timer may have changed.
    gsi_changed: AtomicBool,
    /// The interfaces are to be read.
    reading_asked: AtomicBool,
}

impl Progress {
    /// Sets up epoll over everything the thread waits for.
    pub(super) fn new(
        group: &Group,
        transmitter: &Transmitter,
        interfaces: &InterfaceMonitor,
    ) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| os_error("epoll_create1", errno))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
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
            add(socket.fd(), SEND + token, epoll::EventFlags::empty())?;
        }
        Ok(Self {
            epoll,
            wake,
            sleep: Sleep::new(),
            turns: Turns::new(POLLER_STAYS_NS),
            connected: Default::default(),
            stopping: AtomicBool::new(false),
            gsi_changed: AtomicBool::new(true),
            reading_asked: AtomicBool::new(false),
        })
    }

    /// The number of connected queue pairs of an IP version.
    pub(super) fn connected(&self, version: IpVersion) -> &AtomicUsize {
        let [v4, v6] = &self.connected;
        match version {
            IpVersion::V4 => v4,
            IpVersion::V6 => v6,
        }
    }

    /// Whether any queue pair is connected over an IP version.
    #[inline]
    pub(super) fn is_connected(&self, version: IpVersion) -> bool {
        self.connected(version).load(Ordering::Relaxed) > 0
    }

    /// A thread polls: it will read the sockets.
    #[inline]
    pub(super) fn poller_is_here(&self, now: Duration) {
        self.turns.poller_is_here(as_nanos(now));
    }

    /// A thread that polled is about to sleep.
    #[inline]
    pub(super) fn poller_leaves(&self, group: &Group) {
        self.turns
            .poller_leaves(|watching| self.watch(group, watching));
    }

    /// Takes the sockets out of epoll if a poller reads them, else puts them back; whether a poller
    /// does.
    pub(super) fn yield_to_pollers(&self, group: &Group, now: Duration) -> bool {
        let watch = |watching| self.watch(group, watching);
        self.turns.yield_to_pollers(as_nanos(now), watch)
    }

    /// Has the sockets in epoll though pollers read them.
    pub(super) fn watch_beside_pollers(&self, group: &Group) {
        self.turns
            .watch_beside_pollers(|watching| self.watch(group, watching));
    }

    /// Whether pollers that count as here do not read the sockets at the moment.
    pub(super) fn is_poller_away(&self, now: Duration) -> bool {
        self.turns.is_poller_away(as_nanos(now), POLLER_AWAY_NS)
    }

    /// Whether pollers count as here.
    #[inline]
    pub(super) fn is_polled(&self, now: Duration) -> bool {
        self.turns.is_polled(as_nanos(now))
    }

    /// Whether the thread, which is awake, has something else to do than to look at the sockets: a poller reads them, or
    /// somebody asked for something.
    pub(super) fn is_wanted(&self, now: Duration) -> bool {
        self.is_polled(now)
            || self.is_gsi_changed()
            || self.is_reading_asked()
            || self.is_stopping()
    }

    fn watch(&self, group: &Group, watching: bool) {
        let flags = match watching {
            true => epoll::EventFlags::IN,
            false => epoll::EventFlags::empty(),
        };
        for (token, socket) in (DATA..SEND).zip(group.sockets()) {
            // The descriptor is in the set and both are open: there is nothing it can fail of.
            let _ = epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(token), flags);
        }
    }

    /// Has the thread tell a socket's queue pairs when there is room to send.
    pub(super) fn watch_for_room(&self, transmitter: &Transmitter, socket: &SendSocket) {
        let Some(token) = transmitter.token(socket) else {
            return;
        };
        let flags = epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT;
        // As above.
        let data = epoll::EventData::new_u64(SEND + token);
        let _ = epoll::modify(&self.epoll, socket.fd(), data, flags);
    }

    /// Has the thread read a multicast group's socket.
    pub(super) fn watch_multicast(&self, token: u64, socket: BorrowedFd<'_>) -> Result<()> {
        let data = epoll::EventData::new_u64(MULTICAST + token);
        epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN)
            .map_err(|errno| os_error("epoll_ctl", errno))
    }

    /// Undoes [`watch_multicast`](Self::watch_multicast).
    pub(super) fn forget_multicast(&self, socket: BorrowedFd<'_>) {
        // The descriptor is in the set and both are open: there is nothing it can fail of.
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Wakes the thread if it means to sleep beyond `deadline`.
    pub(super) fn wake_before(&self, deadline: Duration) {
        if self.sleep.misses(as_nanos(deadline)) {
            self.wake();
        }
    }

    /// Has the thread ask the connection manager for its next timer.
    pub(super) fn gsi_changed(&self) {
        self.gsi_changed.store(true, Ordering::SeqCst);
        if self.sleep.misses(0) {
            self.wake();
        }
    }

    /// Whether the connection manager is to be asked for its next timer; once.
    pub(super) fn take_gsi_changed(&self) -> bool {
        self.gsi_changed.swap(false, Ordering::SeqCst)
    }

    pub(super) fn is_gsi_changed(&self) -> bool {
        self.gsi_changed.load(Ordering::SeqCst)
    }

    /// Has the thread look at [`Readings`](super::hotplug::Readings) that were asked for.
    pub(super) fn reading_asked(&self) {
        self.reading_asked.store(true, Ordering::SeqCst);
        if self.sleep.misses(0) {
            self.wake();
        }
    }

    /// Whether a reading was asked for; once.
    pub(super) fn take_reading_asked(&self) -> bool {
        self.reading_asked.swap(false, Ordering::SeqCst)
    }

    pub(super) fn is_reading_asked(&self) -> bool {
        self.reading_asked.load(Ordering::SeqCst)
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// The thread's announcements that it sleeps and wakes.
    pub(super) fn sleep(&self) -> &Sleep {
        &self.sleep
    }

    /// Undoes [`wake`](Self::wake).
    pub(super) fn awoken(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }

    pub(super) fn wake(&self) {
        // Fails only if 2^64 wakes are pending; then it is awake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

fn os_error(call: &'static str, errno: Errno) -> Error {
    Error::new(
        Step::OpenDevice,
        Cause::Os {
            call,
            errno: errno.raw_os_error(),
        },
    )
}

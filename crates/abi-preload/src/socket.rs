//! A socket of the program: a kernel TCP socket, which provides the descriptor and the options, and a stream.
//!
//! | kind | kernel socket | stream |
//! |---|---|---|
//! | fresh | everything | - |
//! | listening | listens, for peers without rsockets | listens |
//! | connecting | nothing yet | connects |
//! | connected | keeps the descriptor and the options | carries the data |
//! | refused | its connect failed immediately | - |
//! | plain | everything; the descriptor leaves the table | - |

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use portolan::Stream;
use portolan::stream::{Connecting, Direction};
use portolan_threads::fork::ForkGuard;
use portolan_threads::lock::{Mutex, MutexGuard};
use portolan_threads::spin::Spin;

use crate::background::Place;
use crate::backlog::{Backlog, Newcomer};
use crate::farewell::wake_sleepers;
use crate::pump::{self, Starting};
use crate::sharing::{Guest, Host};
use crate::table::Table;
use crate::watchers::{Watcher, Watchers};

/// The program's sockets.
pub(crate) static SOCKETS: Table<Socket> = Table::new();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Fresh,
    Listening,
    Connecting,
    Connected,
    Refused,
    Plain,
}

impl Kind {
    fn of(number: u8) -> Self {
        let kinds = [
            Self::Fresh,
            Self::Listening,
            Self::Connecting,
            Self::Connected,
            Self::Refused,
        ];
        kinds
            .get(usize::from(number))
            .copied()
            .unwrap_or(Self::Plain)
    }
}

/// Additional state of a kind.
pub(crate) enum Phase {
    Nothing,
    Listening(Listening),
    Connecting(Box<Attempt>),
}

/// A listener. If processes share a listening socket, the one that accepts must own the rsocket listener. So a process
/// gives up a listener at a fork if it has not used it yet.
#[derive(Default)]
pub(crate) struct Listening {
    pub(crate) backlog: Option<Arc<Backlog>>,
    /// If this process has the rsocket listener, others that share the socket.
    pub(crate) host: Option<Arc<Host>>,
    /// If another process has it.
    pub(crate) guest: Option<Guest>,
    /// The backlog that the program requested.
    pub(crate) length: c_int,
    pub(crate) retry_at: Option<Instant>,
    /// The program has accepted, or waited for connections.
    pub(crate) is_used: bool,
}

/// A pending connect.
pub(crate) struct Attempt {
    pub(crate) connecting: Connecting,
    /// The destination as the program passed it, for the fallback to TCP.
    pub(crate) destination: socket2::SockAddr,
    /// From one the thread looks now and then whether the program waits for it, from the other it watches its descriptor.
    pub(crate) places: Option<[Place; 2]>,
    pub(crate) unattended: Option<Unattended>,
}

/// A connect that the thread advances, because the program does not.
pub(crate) struct Unattended {
    /// Readable once the connect has ended.
    pub(crate) bell: OwnedFd,
    /// Why it failed. The program's next call connects with TCP.
    pub(crate) error: Option<portolan::Error>,
}

impl AsFd for Attempt {
    /// Readable while there is something for the program's calls to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.unattended {
            Some(unattended) => unattended.bell.as_fd(),
            None => self.connecting.as_fd(),
        }
    }
}

pub(crate) struct Socket {
    pub(crate) owner: ForkGuard,
    /// Identifies the socket in requests of child processes.
    pub(crate) id: u64,
    pub(crate) family: c_int,
    kind: AtomicU8,
    pub(crate) phase: Mutex<Phase>,
    stream: OnceLock<Stream>,
    nonblocking: AtomicBool,
    /// Timeouts of receives and sends in microseconds; 0 means none.
    timeouts_us: [AtomicU64; 2],
    /// Its descriptors.
    numbers: Mutex<Vec<c_int>>,
    watchers: Arc<Watchers>,
    /// The stream's device calls the watchers.
    is_called: AtomicBool,
    /// How often reads and writes found the socket not ready.
    blocked: [AtomicU32; 2],
    /// For `SO_ERROR`.
    pub(crate) error: AtomicI32,
    /// The program knows that the stream is broken.
    is_failure_told: AtomicBool,
    /// The program has ended its direction, or has written after the peer's end.
    is_write_over: AtomicBool,
    /// Options that the program has set, as bits of [`crate::inheritance`].
    options: AtomicU32,
    /// Another program has got the listener by an exec.
    pub(crate) is_passed_on: Arc<AtomicBool>,
    /// A thread accepts a TCP connection.
    accepting: Mutex<()>,
    /// Locked while data of the stream are read or written, and while the stream is handed over.
    moving: [Mutex<()>; 2],
    /// The pipe through which children ask for the stream, or -1.
    pub(crate) questions: AtomicI32,
    pub(crate) questions_file: AtomicU64,
    /// Whether the program wants keepalives, and after how many seconds; 0 means the system's default.
    pub(crate) keeps_alive: AtomicBool,
    pub(crate) idle_s: AtomicU32,
    /// This side's end of the socket pair that has replaced the descriptor since a fork.
    pair: Mutex<Option<OwnedFd>>,
    is_shared: AtomicBool,
    /// The program knows that the connect succeeded.
    pub(crate) is_told: AtomicBool,
    /// Calls that wait for the connect. The thread leaves it to them.
    attending: Arc<AtomicU32>,
    /// Whether calls that wait for the stream poll before they sleep.
    spin: Spin,
}

impl Socket {
    pub(crate) fn new(family: c_int, kind: Kind, phase: Phase, is_nonblocking: bool) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            owner: ForkGuard::new(),
            id: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            family,
            kind: AtomicU8::new(kind as u8),
            phase: Mutex::new(phase),
            stream: OnceLock::new(),
            nonblocking: AtomicBool::new(is_nonblocking),
            timeouts_us: [const { AtomicU64::new(0) }; 2],
            numbers: Mutex::default(),
            watchers: Arc::default(),
            is_called: AtomicBool::new(false),
            blocked: [const { AtomicU32::new(0) }; 2],
            error: AtomicI32::new(0),
            is_failure_told: AtomicBool::new(false),
            is_write_over: AtomicBool::new(false),
            options: AtomicU32::new(0),
            is_passed_on: Arc::default(),
            accepting: Mutex::default(),
            moving: Default::default(),
            questions: AtomicI32::new(-1),
            questions_file: AtomicU64::new(0),
            keeps_alive: AtomicBool::new(false),
            idle_s: AtomicU32::new(0),
            pair: Mutex::default(),
            is_shared: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            attending: Arc::default(),
            spin: Spin::default(),
        }
    }

    /// A socket that a listener has accepted.
    pub(crate) fn accepted(family: c_int, newcomer: Newcomer, is_nonblocking: bool) -> Self {
        let mut socket = Self::new(family, Kind::Connecting, Phase::Nothing, is_nonblocking);
        socket.watchers = newcomer.watchers;
        socket.is_called = AtomicBool::new(newcomer.is_called);
        let _ = socket.stream.set(newcomer.stream);
        socket.is_told = AtomicBool::new(true);
        socket.set_kind(Kind::Connected);
        socket
    }

    pub(crate) fn kind(&self) -> Kind {
        Kind::of(self.kind.load(Ordering::Acquire))
    }

    pub(crate) fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u8, Ordering::Release);
    }

    /// Sets the stream. The socket becomes connected.
    pub(crate) fn connect(&self, stream: Stream) {
        // This library does the blocking for the program's calls. A nonblocking stream also never blocks in `close`.
        let _ = stream.set_nonblocking(true);
        let watchers = self.watchers.clone();
        let is_called = stream.set_call(move || watchers.report());
        self.is_called.store(is_called, Ordering::Release);
        let _ = self.stream.set(stream);
        self.set_kind(Kind::Connected);
    }

    /// The stream, if the socket is connected.
    pub(crate) fn stream(&self) -> Option<&Stream> {
        match self.kind() {
            Kind::Connected => self.stream.get(),
            _ => None,
        }
    }

    /// Moves data of the stream in one direction, without waiting. `None` if the kernel carries the data: the stream was handed
    /// over, and is not while this runs.
    pub(crate) fn carry<T>(
        &self,
        direction: Direction,
        work: impl FnOnce(&Stream) -> T,
    ) -> Option<T> {
        let _moving = self.moving[direction as usize].lock();
        self.stream().map(work)
    }

    /// Whether a call waits for the connect.
    pub(crate) fn is_attended(&self) -> bool {
        self.attending.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn spin(&self) -> &Spin {
        &self.spin
    }

    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonblocking(&self, is_nonblocking: bool) {
        self.nonblocking.store(is_nonblocking, Ordering::Relaxed);
    }

    pub(crate) fn timeout(&self, direction: Direction) -> Option<Duration> {
        let us = self.timeouts_us[direction as usize].load(Ordering::Relaxed);
        (us > 0).then(|| Duration::from_micros(us))
    }

    pub(crate) fn set_timeout_us(&self, direction: Direction, us: u64) {
        self.timeouts_us[direction as usize].store(us, Ordering::Relaxed);
    }

    /// The options that the program has set.
    pub(crate) fn options(&self) -> u32 {
        self.options.load(Ordering::Relaxed)
    }

    pub(crate) fn note_option(&self, bit: u32) {
        self.options.fetch_or(bit, Ordering::Relaxed);
    }

    /// Gives a new socket what the program has set on this one, perhaps in a parent, whose locks may be held.
    pub(crate) fn copy_settings(&self, to: &Self) {
        to.note_option(self.options());
        let (keeps_alive, idle_s) = (&self.keeps_alive, &self.idle_s);
        to.keeps_alive
            .store(keeps_alive.load(Ordering::Relaxed), Ordering::Relaxed);
        to.idle_s
            .store(idle_s.load(Ordering::Relaxed), Ordering::Relaxed);
        for (its, own) in to.timeouts_us.iter().zip(&self.timeouts_us) {
            its.store(own.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns whether the program hears only now that the stream is broken. TCP tells it once.
    pub(crate) fn tell_failure(&self) -> bool {
        !self.is_failure_told.swap(true, Ordering::AcqRel)
    }

    /// The program has ended its direction: its next write fails if the connection has ended.
    pub(crate) fn note_write_over(&self) {
        if !self.is_write_over.swap(true, Ordering::Relaxed) {
            // Perhaps it is hung up from here on, which the stream does not report again.
            self.watchers
                .tell(|watcher, number| watcher.touched(number));
        }
    }

    /// Whether the program has ended its direction, or has written after the peer's end.
    pub(crate) fn is_write_over(&self) -> bool {
        self.is_write_over.load(Ordering::Relaxed)
    }

    /// Returns whether this write succeeds although the peer has closed. With TCP the first such write does: the peer refuses its
    /// data afterwards.
    pub(crate) fn may_write_in_vain(&self, stream: &Stream) -> bool {
        let ready = stream.ready();
        let may = ready.read_closed && !ready.failed && !self.is_write_over();
        if may {
            self.note_write_over();
        }
        may
    }

    pub(crate) fn is_failure_told(&self) -> bool {
        self.is_failure_told.load(Ordering::Acquire)
    }

    /// Lets one thread accept TCP connections at a time.
    pub(crate) fn try_accepting(&self) -> Option<MutexGuard<'_, ()>> {
        self.accepting.try_lock()
    }

    /// One of the socket's descriptors, or -1.
    pub(crate) fn number(&self) -> c_int {
        self.numbers.lock().first().copied().unwrap_or(-1)
    }

    /// Replaces the descriptor `number` by `call`, and removes it from the socket if that succeeded. No other thread
    /// replaces it meanwhile.
    pub(crate) fn replace(&self, number: c_int, call: impl FnOnce() -> c_int) -> c_int {
        let mut numbers = self.numbers.lock();
        let made = call();
        if made >= 0 {
            numbers.retain(|known| *known != number);
        }
        made
    }

    /// Removes all numbers from the table, so that the kernel serves their calls.
    pub(crate) fn leave_table(&self) {
        // The program may give the numbers to other files at once.
        let left: Vec<_> = {
            let mut numbers = self.numbers.lock();
            numbers
                .drain(..)
                .filter_map(|number| SOCKETS.take(number))
                .collect()
        };
        drop(left);
    }

    /// How often a direction was found not ready.
    pub(crate) fn blocked(&self, direction: Direction) -> u32 {
        self.blocked[direction as usize].load(Ordering::Relaxed)
    }

    /// Notes that a call found a direction not ready, so that edge-triggered sets report it when it is ready again.
    pub(crate) fn note_blocked(&self, direction: Direction) {
        self.blocked[direction as usize].fetch_add(1, Ordering::Relaxed);
        self.watchers
            .tell(|watcher, number| watcher.touched(number));
    }

    /// Notifies watchers that the descriptors to watch have changed.
    pub(crate) fn tell_change(&self) {
        self.watchers
            .tell(|watcher, number| watcher.changed(number));
    }

    pub(crate) fn add_watcher(&self, number: c_int, watcher: Weak<dyn Watcher>) {
        self.watchers.add(number, watcher);
    }

    pub(crate) fn remove_watcher(&self, number: c_int, watcher: &Weak<dyn Watcher>) {
        self.watchers.remove(number, watcher);
    }

    /// Whether a child process may have the socket as well.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Acquire)
    }

    /// Replaces the descriptors of a stream, once: `replace` gets the stream and its descriptors, and returns this side's end of
    /// the pair to which they refer from then on. Two threads may fork at once, and no other thread closes a descriptor
    /// meanwhile.
    pub(crate) fn share(&self, replace: impl FnOnce(&Stream, &[c_int]) -> Option<OwnedFd>) {
        let mut pair = self.pair.lock();
        let Some(stream) = self.stream().filter(|_| !self.is_shared()) else {
            return;
        };
        if let Some(ours) = replace(stream, &self.numbers.lock()) {
            *pair = Some(ours);
            self.is_shared.store(true, Ordering::Release);
        }
    }

    /// Starts to relay the data: a pump copies it between the stream and the pair. The descriptors become the kernel's.
    pub(crate) fn hand_over(&self) {
        let _starting = Starting::begin();
        let Some(pair) = self.pair.lock().take() else {
            return;
        };
        let Some(stream) = self.stream.get().cloned() else {
            return;
        };
        {
            // What a call has begun to read is in the program's memory before the pump reads.
            let _moving = self.moving.each_ref().map(Mutex::lock);
            self.set_kind(Kind::Plain);
        }
        self.leave_table();
        self.tell_change();
        wake_sleepers();
        pump::start(stream, pair);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.owner.is_owner() {
            // The stream and the phase belong to the parent: drop nothing of them.
            std::mem::forget(self.stream.take());
            let phase = std::mem::replace(self.phase.get_mut(), Phase::Nothing);
            std::mem::forget(phase);
            return;
        }
        // A child process may still have the descriptor.
        if let (Some(pair), Some(stream)) = (self.pair.get_mut().take(), self.stream.take()) {
            pump::start(stream, pair);
        }
    }
}

/// A call waits for a socket's connect, until this is dropped.
pub(crate) struct Attending(Arc<AtomicU32>);

impl Attending {
    /// Begins the wait. After this, the caller asks what to wait for.
    pub(crate) fn begin(socket: &Socket) -> Self {
        let attending = socket.attending.clone();
        attending.fetch_add(1, Ordering::SeqCst);
        Self(attending)
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Enters a socket into the table under one of its numbers.
pub(crate) fn enter(number: c_int, socket: &Arc<Socket>) {
    // The former socket is stale if a call that is not intercepted closed its descriptor.
    drop(put(number, socket));
}

/// As [`enter`]. Returns the number's former socket.
pub(crate) fn put(number: c_int, socket: &Arc<Socket>) -> Option<Arc<Socket>> {
    socket.numbers.lock().push(number);
    SOCKETS.put(number, socket.clone())
}

/// Removes a number from the table. The socket ends with its last number.
pub(crate) fn leave(number: c_int) {
    if let Some(socket) = SOCKETS.take(number) {
        socket.watchers.tell(|watcher, its| {
            if its == number {
                watcher.closed(its);
            }
        });
        socket.watchers.forget(number);
        socket.numbers.lock().retain(|known| *known != number);
    }
}

/// The descriptors that signal a change of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Watch {
    /// Whether to watch the number itself for the kernel's events.
    pub(crate) kernel: bool,
    /// Whether an epoll set watches the number itself, and reports the kernel's events as its own.
    pub(crate) number: bool,
    /// A descriptor that becomes readable.
    pub(crate) own: Option<RawFd>,
}

impl Socket {
    /// What an epoll set watches: nothing if the device calls the set. A one-shot event of a listener is the kernel's or this
    /// library's, so one of them reports both.
    pub(crate) fn watch_in_set(&self, is_one_shot: bool) -> Watch {
        if self.is_called.load(Ordering::Acquire) && self.kind() == Kind::Connected {
            return Watch::default();
        }
        let mut watch = self.watch();
        if is_one_shot && self.kind() == Kind::Listening {
            (watch.number, watch.kernel) = (watch.kernel, false);
        }
        watch
    }

    pub(crate) fn watch(&self) -> Watch {
        let own = |fd: RawFd| Watch {
            own: Some(fd),
            ..Watch::default()
        };
        if let Some(stream) = self.stream() {
            return own(stream.as_fd().as_raw_fd());
        }
        match (&*self.phase.lock(), self.kind()) {
            (Phase::Connecting(attempt), _) => own(attempt.as_fd().as_raw_fd()),
            (Phase::Listening(listening), _) => {
                let backlog = listening.backlog.as_ref();
                Watch {
                    kernel: true,
                    own: backlog.map(|backlog| backlog.ready().as_raw_fd()),
                    ..Watch::default()
                }
            }
            (Phase::Nothing, Kind::Refused) => Watch::default(),
            (Phase::Nothing, _) => Watch {
                kernel: true,
                ..Watch::default()
            },
        }
    }
}

//! Connections that wait for `accept`. As with TCP, a connect succeeds before the program accepts it, and the program gets
//! a connection only when its client has confirmed it.
//!
//! If other processes accept from the same socket, this one must not keep clients waiting that another could serve. Then the
//! thread only wakes the program, and a call of the program that looks at the listener accepts a request, one at a time.
//! Without such a call, requests are soon rejected: their clients connect with TCP, which gives the connection to any of the
//! processes.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use portolan::{Stream, StreamListener};
use portolan_threads::lock::Mutex;

use crate::background::{DELAY, Place, Task, make_bell, out_of_the_way};
use crate::watchers::{Watcher, Watchers};
use crate::{pump, report};

/// Maximum backlog that `listen` grants.
const LENGTH_MAX: usize = 4096;
/// Maximum of a listener's streams that their clients have not confirmed. Beyond it the oldest is closed.
const UNCONFIRMED_MAX: usize = 256;
/// How many connections to accept or reject before looking at something else.
const BATCH: usize = 64;
/// How long a request waits for the program if other processes share the listening socket.
const PATIENCE: Duration = Duration::from_millis(100);
/// How long requests do not wait at all after one has waited for nothing.
const AWAY: Duration = Duration::from_secs(1);

/// A listener and its queue of unaccepted streams.
pub(crate) struct Backlog {
    place: OnceLock<Place>,
    listener: StreamListener,
    length: usize,
    waiting: Mutex<VecDeque<Newcomer>>,
    /// By the numbers of their places, so the newest is the last.
    unconfirmed: Mutex<BTreeMap<u64, Unconfirmed>>,
    /// Confirmed streams so far.
    arrived: AtomicU64,
    /// Readable while the program should look: streams wait, or a request.
    bell: OwnedFd,
    /// Other processes accept from the same socket.
    is_shared: AtomicBool,
    turn: Mutex<Turn>,
    this: Weak<Self>,
}

/// A stream that the program has not accepted yet, with those who learn of its changes.
pub(crate) struct Newcomer {
    pub(crate) stream: Stream,
    pub(crate) watchers: Arc<Watchers>,
    /// The stream's device calls the watchers.
    pub(crate) is_called: bool,
}

/// A stream that its client has not confirmed.
struct Unconfirmed {
    newcomer: Newcomer,
    place: Arc<Place>,
    since: Instant,
}

impl Unconfirmed {
    /// Whether the confirmation may be on its way. Older ones may be forged.
    fn is_new(&self) -> bool {
        self.since.elapsed() < DELAY
    }
}

/// A request that waits for the program, if other processes share the listening socket.
#[derive(Default)]
struct Turn {
    waits_since: Option<Instant>,
    /// The program did not look when a request waited.
    away_until: Option<Instant>,
    /// When the last stream was accepted, while its client has not confirmed it.
    accepted_at: Option<Instant>,
    /// Looks again after a while.
    timer: Option<Place>,
    is_timing: bool,
}

impl Backlog {
    /// Starts to accept the listener's connections in the background.
    ///
    /// # Errors
    /// The process cannot create another descriptor or thread.
    pub(crate) fn start(listener: StreamListener, length: i32) -> rustix::io::Result<Arc<Self>> {
        let bell = make_bell()?;
        let _ = listener.set_nonblocking(true);
        let backlog = Arc::new_cyclic(|this| Self {
            place: OnceLock::new(),
            listener,
            length: usize::try_from(length).unwrap_or(0).clamp(1, LENGTH_MAX),
            waiting: Mutex::default(),
            unconfirmed: Mutex::default(),
            arrived: AtomicU64::new(0),
            bell,
            is_shared: AtomicBool::new(false),
            turn: Mutex::default(),
            this: this.clone(),
        });
        let place = Place::new(backlog.this.clone())?;
        let place = backlog.place.get_or_init(|| place);
        place.watch(&backlog.listener)?;
        Ok(backlog)
    }

    /// Whether other processes accept from the same socket.
    pub(crate) fn set_shared(&self, is_shared: bool) {
        if self.is_shared.swap(is_shared, Ordering::AcqRel) == is_shared {
            return;
        }
        self.turn.lock().waits_since = None;
        // It may ring for a request.
        self.silence_if_empty(&self.waiting.lock());
        self.listen_again();
    }

    /// Removes the oldest waiting stream.
    pub(crate) fn take(&self) -> Option<Newcomer> {
        let mut waiting = self.waiting.lock();
        let was_full = waiting.len() >= self.length;
        let taken = waiting.pop_front();
        self.silence_if_empty(&waiting);
        drop(waiting);
        if was_full {
            self.listen_again();
        }
        taken
    }

    /// A call of the program looks at the listener.
    pub(crate) fn attend(&self) {
        if !self.is_shared.load(Ordering::Acquire) {
            return;
        }
        let now = Instant::now();
        let mut turn = self.turn.lock();
        turn.away_until = None;
        let is_new = |at: Instant| now.saturating_duration_since(at) < DELAY;
        let may_accept = !turn.accepted_at.is_some_and(is_new);
        if may_accept && turn.waits_since.take().is_some() {
            turn.accepted_at = Some(now);
            drop(turn);
            if !self.accept_one() {
                self.turn.lock().accepted_at = None;
            }
            self.listen_again();
        }
        self.silence_if_empty(&self.waiting.lock());
    }

    /// Number of confirmed streams so far.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Whether no confirmed stream waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// Whether no client loses anything if the listener ends.
    pub(crate) fn is_unused(&self) -> bool {
        let unconfirmed = self.unconfirmed.lock();
        let newest = unconfirmed.last_key_value();
        !newest.is_some_and(|(_, newest)| newest.is_new()) && self.is_empty()
    }

    /// Readable while the program should look.
    pub(crate) fn ready(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Accepts a batch, unless the backlog is full.
    fn fill(&self) {
        for _ in 0..BATCH {
            if self.waiting.lock().len() >= self.length {
                return;
            }
            if !self.accept_one() {
                break;
            }
        }
        self.listen_again();
    }

    /// Returns whether there was a request.
    fn accept_one(&self) -> bool {
        match self.listener.accept() {
            Ok((stream, _)) => {
                // Otherwise dropping it waits for its client.
                let _ = stream.set_nonblocking(true);
                self.await_confirmation(stream);
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => {
                report::complain("a stream was not accepted", &error);
                false
            }
        }
    }

    /// A request waits for the program.
    fn offer(&self) {
        let now = Instant::now();
        let mut turn = self.turn.lock();
        let is_away = turn.away_until.is_some_and(|until| now < until);
        if is_away || !self.look_later(&mut turn) {
            drop(turn);
            return self.reject();
        }
        turn.waits_since.get_or_insert(now);
        drop(turn);
        self.ring();
    }

    /// Wakes the program again, or rejects the request if it has waited too long.
    fn remind(&self) {
        let now = Instant::now();
        let mut turn = self.turn.lock();
        turn.is_timing = false;
        let Some(since) = turn.waits_since else {
            return;
        };
        if now.saturating_duration_since(since) < PATIENCE && self.look_later(&mut turn) {
            drop(turn);
            return self.ring();
        }
        turn.waits_since = None;
        turn.away_until = Some(now + AWAY);
        drop(turn);
        self.silence_if_empty(&self.waiting.lock());
        self.reject();
    }

    /// Returns false if that is impossible.
    fn look_later(&self, turn: &mut Turn) -> bool {
        if turn.timer.is_none() {
            turn.timer = Place::new(self.this.clone()).ok();
        }
        let Some(timer) = &turn.timer else {
            return false;
        };
        if !std::mem::replace(&mut turn.is_timing, true) {
            timer.put_off();
        }
        true
    }

    fn reject(&self) {
        for _ in 0..BATCH {
            match self.listener.reject_one() {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    report::complain("a request was not rejected", &error);
                    break;
                }
            }
        }
        self.listen_again();
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn silence_if_empty(&self, waiting: &VecDeque<Newcomer>) {
        if waiting.is_empty() {
            // Fails with EAGAIN if the bell is already clear.
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        }
    }

    fn listen_again(&self) {
        if let Some(place) = self.place.get() {
            // Fails only without memory.
            let _ = place.watch(&self.listener);
        }
    }

    fn await_confirmation(&self, stream: Stream) {
        let watchers = Arc::<Watchers>::default();
        let called = watchers.clone();
        let newcomer = Newcomer {
            is_called: stream.set_call(move || called.report()),
            stream,
            watchers,
        };
        // Locked first: the thread may find the confirmation at once.
        let mut unconfirmed = self.unconfirmed.lock();
        let place = match Place::new(self.this.clone()) {
            Ok(place) => Arc::new(place),
            Err(error) => return report::complain("a stream was not accepted", &error),
        };
        let watcher: Weak<dyn Watcher> = Arc::<Place>::downgrade(&place);
        newcomer.watchers.add(-1, watcher);
        let number = place.number();
        let since = Instant::now();
        let newest = Unconfirmed {
            newcomer,
            place,
            since,
        };
        unconfirmed.insert(number, newest);
        let oldest = match unconfirmed.len() > UNCONFIRMED_MAX {
            true => unconfirmed.pop_first(),
            false => None,
        };
        drop(unconfirmed);
        if let Some((_, oldest)) = oldest {
            oldest.newcomer.stream.abandon();
        }
        self.look_at(number);
    }

    /// Looks whether a client has confirmed its stream.
    fn look_at(&self, number: u64) {
        let mut unconfirmed = self.unconfirmed.lock();
        let Some(Unconfirmed {
            newcomer, place, ..
        }) = unconfirmed.get(&number)
        else {
            return;
        };
        let Some(is_confirmed) = newcomer.is_confirmed() else {
            // On a device that does not call, the stream's descriptor tells.
            if !newcomer.is_called && place.watch(&newcomer.stream).is_err() {
                place.put_off();
            }
            return;
        };
        let decided = unconfirmed.remove(&number);
        drop(unconfirmed);
        self.turn.lock().accepted_at = None;
        let Some(Unconfirmed {
            newcomer, place, ..
        }) = decided.filter(|_| is_confirmed)
        else {
            return;
        };
        let watcher: Weak<dyn Watcher> = Arc::<Place>::downgrade(&place);
        newcomer.watchers.remove(-1, &watcher);
        let mut waiting = self.waiting.lock();
        waiting.push_back(newcomer);
        self.ring();
        self.arrived.fetch_add(1, Ordering::Relaxed);
    }
}

impl Newcomer {
    /// Whether the client has confirmed or failed (`false`). `None` while that is open; then the watchers or the descriptor
    /// will tell. The client's first data confirms, too.
    fn is_confirmed(&self) -> Option<bool> {
        let both = [true; 2];
        let ready = self.stream.glance(both, true);
        let ready = ready.unwrap_or_else(|| self.stream.ready_or_watch(true, true));
        match ready.failed {
            true => Some(false),
            false => (ready.readable || ready.writable).then_some(true),
        }
    }
}

impl Drop for Backlog {
    /// Other processes that share the listening socket serve the clients that the program has not accepted.
    fn drop(&mut self) {
        let mut unconfirmed = std::mem::take(&mut *self.unconfirmed.lock());
        let newest = unconfirmed.pop_last();
        let (newest, older) = match newest {
            Some((_, newest)) if newest.is_new() => (Some(newest.newcomer), None),
            other => (None, other),
        };
        for (_, forgotten) in unconfirmed.into_iter().chain(older) {
            forgotten.newcomer.stream.abandon();
        }
        if !self.is_shared.load(Ordering::Acquire) {
            return;
        }
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let until = Instant::now() + PATIENCE;
        for newcomer in waiting.into_iter().chain(newest) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.hand_on(newcomer.stream, left) {
                return;
            }
        }
    }
}

impl Backlog {
    /// Relays a stream to whoever accepts from the kernel's socket. Returns false if there is nobody; then the stream ends.
    fn hand_on(&self, stream: Stream, timeout: Duration) -> bool {
        let Ok(mut address) = self.listener.local_addr() else {
            return false;
        };
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let Ok(connected) = TcpStream::connect_timeout(&address, timeout) else {
            return false;
        };
        let _ = connected.set_nonblocking(true);
        pump::start(stream, out_of_the_way(connected.into()));
        true
    }
}

impl Task for Backlog {
    fn ready(&self, place: u64) {
        let is_of = |own: &Place| own.number() == place;
        if self.place.get().is_some_and(is_of) {
            return match self.is_shared.load(Ordering::Acquire) {
                true => self.offer(),
                false => self.fill(),
            };
        }
        let is_of_timer = self.turn.lock().timer.as_ref().is_some_and(is_of);
        match is_of_timer {
            true => self.remind(),
            false => self.look_at(place),
        }
    }
}

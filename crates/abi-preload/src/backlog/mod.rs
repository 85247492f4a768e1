//! Connections that wait for `accept`. As with TCP, a connect succeeds before the program accepts it, and the program gets
//! a connection only when its client has confirmed it.

mod turn;

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use portolan::{Stream, StreamListener};
use portolan_threads::lock::Mutex;

use self::turn::Turn;
use crate::background::{DELAY, Place, Task, make_bell};
use crate::report;
use crate::watchers::{Watcher, Watchers};

/// Maximum backlog that `listen` grants.
const LENGTH_MAX: usize = 4096;
/// Maximum of a listener's streams that their clients have not confirmed. Beyond it the oldest is closed.
const UNCONFIRMED_MAX: usize = 256;
/// How many connections to accept or reject before looking at something else.
const BATCH: usize = 64;
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
    /// Another program has got the socket by an exec. It has TCP.
    is_passed_on: Arc<AtomicBool>,
    /// The program has looked at the listener.
    is_attended: AtomicBool,
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

impl Backlog {
    /// Starts to accept the listener's connections in the background.
    ///
    /// # Errors
    /// The process cannot create another descriptor or thread.
    pub(crate) fn start(
        listener: StreamListener,
        length: i32,
        is_passed_on: Arc<AtomicBool>,
    ) -> rustix::io::Result<Arc<Self>> {
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
            is_passed_on,
            is_attended: AtomicBool::new(false),
            turn: Mutex::default(),
            this: this.clone(),
        });
        let place = Place::new(backlog.this.clone())?;
        let place = backlog.place.get_or_init(|| place);
        place.watch(&backlog.listener)?;
        Ok(backlog)
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

    /// Number of confirmed streams so far.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Acquire)
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
        // Before the bell: who hears it looks once.
        self.arrived.fetch_add(1, Ordering::Release);
        self.ring();
    }
}

impl Newcomer {
    /// Whether the client has confirmed or failed (`false`). `None` while that is open; then the watchers or the descriptor
    /// will tell. The client's first data confirms, too. A confirmed stream may have ended already: the program gets it, as
    /// with TCP.
    fn is_confirmed(&self) -> Option<bool> {
        let both = [true; 2];
        let ready = self.stream.glance(both, true);
        let ready = ready.unwrap_or_else(|| self.stream.ready_or_watch(true, true));
        match ready.failed {
            true => Some(self.stream.is_established()),
            false => (ready.readable || ready.writable).then_some(true),
        }
    }
}

impl Task for Backlog {
    fn ready(&self, place: u64) {
        let own = self.place.get();
        if own.is_some_and(|own| own.number() == place) {
            let is_others = self.is_passed_on.load(Ordering::Acquire)
                && !self.is_attended.load(Ordering::Acquire);
            return match self.is_shared.load(Ordering::Acquire) {
                _ if is_others => self.reject(),
                true => self.offer(),
                false => self.fill(),
            };
        }
        let is_timer = self.turn.lock().is_timer(place);
        match is_timer {
            true => self.remind(),
            false => self.look_at(place),
        }
    }
}

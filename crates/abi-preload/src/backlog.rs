//! Connections that wait for `accept`. As with TCP, a connect succeeds before the program accepts it, and the program gets
//! a connection only when its client has confirmed it.
//!
//! If other processes accept from the same socket, this one must not keep clients waiting that another could serve. Then a
//! request waits until the program calls `accept`, and is soon rejected: its client connects with TCP, which gives the
//! connection to any of the processes.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use portolan::{Stream, StreamListener};
use portolan_threads::lock::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::background::{Place, Task};
use crate::report;

/// Maximum backlog that `listen` grants.
const LENGTH_MAX: usize = 4096;
/// Maximum of a listener's streams that their clients have not confirmed. Beyond it the oldest is closed.
const UNCONFIRMED_MAX: usize = 256;
/// How many connections to accept before looking at the confirmations of earlier ones.
const BATCH: usize = 64;
/// How long a request waits if other processes share the listening socket.
const SHARED_WAIT: Duration = Duration::from_millis(100);
/// How long requests do not wait at all after one has waited for nothing.
const AWAY: Duration = Duration::from_secs(1);

/// A listener and its queue of unaccepted streams.
pub(crate) struct Backlog {
    place: OnceLock<Place>,
    listener: StreamListener,
    length: usize,
    waiting: Mutex<VecDeque<Stream>>,
    /// By the number of the place.
    unconfirmed: Mutex<BTreeMap<u64, (Stream, Place)>>,
    /// Confirmed streams so far, and requests that wait for the program's call.
    arrived: AtomicU64,
    /// Other processes accept from the same socket.
    is_shared: AtomicBool,
    offered: Mutex<Offered>,
    /// Readable while streams wait.
    bell: OwnedFd,
    this: Weak<Self>,
}

/// What the program is told of, if other processes share the listening socket: a request that it may accept.
#[derive(Default)]
struct Offered {
    since: Option<Instant>,
    /// The program did not come for a request.
    away_until: Option<Instant>,
    /// Looks after a while whether the program has come.
    timer: Option<Place>,
    is_timing: bool,
}

impl Backlog {
    /// Starts to accept the listener's connections in the background.
    ///
    /// # Errors
    /// The process cannot create another descriptor or thread.
    pub(crate) fn start(listener: StreamListener, length: i32) -> rustix::io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let _ = listener.set_nonblocking(true);
        let backlog = Arc::new_cyclic(|this| Self {
            place: OnceLock::new(),
            listener,
            length: usize::try_from(length).unwrap_or(0).clamp(1, LENGTH_MAX),
            waiting: Mutex::default(),
            unconfirmed: Mutex::default(),
            arrived: AtomicU64::new(0),
            is_shared: AtomicBool::new(false),
            offered: Mutex::default(),
            bell,
            this: this.clone(),
        });
        let place = Place::new(backlog.this.clone())?;
        let place = backlog.place.get_or_init(|| place);
        place.watch(&backlog.listener)?;
        Ok(backlog)
    }

    /// Other processes accept from the same socket.
    pub(crate) fn share(&self) {
        self.is_shared.store(true, Ordering::Release);
    }

    /// Removes the oldest waiting stream.
    pub(crate) fn take(&self) -> Option<Stream> {
        if !self.is_shared.load(Ordering::Acquire) {
            return self.take_waiting();
        }
        let taken = self.take_waiting().or_else(|| {
            self.accept_one();
            self.take_waiting()
        });
        // For the next request.
        let mut offered = self.offered.lock();
        (offered.since, offered.away_until) = (None, None);
        drop(offered);
        self.listen_again();
        taken
    }

    fn take_waiting(&self) -> Option<Stream> {
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

    /// Number of streams and requests that the program was told of so far.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty() && self.unconfirmed.lock().is_empty()
    }

    /// Readable while streams wait.
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

    /// Tells the program of a request.
    fn offer(&self) {
        let mut offered = self.offered.lock();
        let now = Instant::now();
        if offered.away_until.is_some_and(|until| now < until) {
            drop(offered);
            return self.reject();
        }
        let offered = &mut *offered;
        offered.since.get_or_insert(now);
        self.ring();
        if offered.timer.is_none() {
            // Without it, the request waits for the program.
            offered.timer = Place::new(self.this.clone()).ok();
        }
        if let Some(timer) = offered.timer.as_ref().filter(|_| !offered.is_timing) {
            offered.is_timing = true;
            timer.put_off();
        }
    }

    /// Rejects the requests that the program has not come for.
    fn withdraw(&self) {
        let mut offered = self.offered.lock();
        match (offered.since, &offered.timer) {
            (Some(since), Some(timer)) if since.elapsed() < SHARED_WAIT => return timer.put_off(),
            _ => offered.is_timing = false,
        }
        if offered.since.take().is_some() {
            offered.away_until = Some(Instant::now() + AWAY);
            drop(offered);
            self.silence_if_empty(&self.waiting.lock());
            self.reject();
        }
    }

    fn reject(&self) {
        if let Err(error) = self.listener.reject_waiting() {
            report::complain("a request was not rejected", &error);
        }
        self.listen_again();
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        self.arrived.fetch_add(1, Ordering::Relaxed);
    }

    fn silence_if_empty(&self, waiting: &VecDeque<Stream>) {
        if waiting.is_empty() {
            // Fails with EAGAIN if the bell is already clear.
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        }
    }

    fn listen_again(&self) {
        if let Some(place) = self.place.get() {
            place.watch_again(&self.listener);
        }
    }

    fn await_confirmation(&self, stream: Stream) {
        match is_confirmed(&stream) {
            Some(true) => return self.add(stream),
            Some(false) => return,
            None => {}
        }
        // Locked first: the thread may find the confirmation at once.
        let mut unconfirmed = self.unconfirmed.lock();
        let place = Place::new(self.this.clone());
        let watched = place.and_then(|place| place.watch(&stream).map(|()| place));
        let place = match watched {
            Ok(place) => place,
            Err(error) => return report::complain("a stream was not accepted", &error),
        };
        unconfirmed.insert(place.number(), (stream, place));
        let oldest = match unconfirmed.len() > UNCONFIRMED_MAX {
            true => unconfirmed.pop_first(),
            false => None,
        };
        drop(unconfirmed);
        // Closes it.
        drop(oldest);
    }

    /// An unconfirmed stream has changed.
    fn look_at(&self, place: u64) {
        let mut unconfirmed = self.unconfirmed.lock();
        let Some((stream, its)) = unconfirmed.get(&place) else {
            return;
        };
        let Some(is_confirmed) = is_confirmed(stream) else {
            return its.watch_again(stream);
        };
        let decided = unconfirmed.remove(&place);
        drop(unconfirmed);
        if let Some((stream, _)) = decided.filter(|_| is_confirmed) {
            self.add(stream);
        }
    }

    fn add(&self, stream: Stream) {
        let mut waiting = self.waiting.lock();
        waiting.push_back(stream);
        self.ring();
    }
}

impl Task for Backlog {
    fn ready(&self, place: u64) {
        let is_of = |own: &Place| own.number() == place;
        let is_of_listener = self.place.get().is_some_and(is_of);
        let is_of_timer = || self.offered.lock().timer.as_ref().is_some_and(is_of);
        match is_of_listener {
            true if self.is_shared.load(Ordering::Acquire) => self.offer(),
            true => self.fill(),
            false if is_of_timer() => self.withdraw(),
            false => self.look_at(place),
        }
    }
}

/// Whether the client has confirmed or failed (`false`). `None` while that is open; then the stream's descriptor becomes
/// readable. The client's first data confirms, too.
fn is_confirmed(stream: &Stream) -> Option<bool> {
    let ready = stream.ready_or_watch(true, true);
    match ready.failed {
        true => Some(false),
        false => (ready.readable || ready.writable).then_some(true),
    }
}

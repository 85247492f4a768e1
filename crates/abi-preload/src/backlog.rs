//! Connections that wait for `accept`. As with TCP, a connect succeeds before the program accepts it, and the program gets
//! a connection only when its client has confirmed it.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

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

/// A listener and its queue of unaccepted streams.
pub(crate) struct Backlog {
    place: OnceLock<Place>,
    listener: StreamListener,
    length: usize,
    waiting: Mutex<VecDeque<Stream>>,
    /// By the number of the place.
    unconfirmed: Mutex<BTreeMap<u64, (Stream, Place)>>,
    /// Confirmed streams so far.
    arrived: AtomicU64,
    /// Readable while streams wait.
    bell: OwnedFd,
    this: Weak<Self>,
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
            bell,
            this: this.clone(),
        });
        let place = Place::new(backlog.this.clone())?;
        let place = backlog.place.get_or_init(|| place);
        place.watch(&backlog.listener)?;
        Ok(backlog)
    }

    /// Removes the oldest waiting stream.
    pub(crate) fn take(&self) -> Option<Stream> {
        let mut waiting = self.waiting.lock();
        let was_full = waiting.len() >= self.length;
        let taken = waiting.pop_front();
        if waiting.is_empty() {
            // Fails with EAGAIN if the bell is already clear.
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        }
        drop(waiting);
        if was_full {
            self.listen_again();
        }
        taken
    }

    /// Number of confirmed streams so far.
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
            match self.listener.accept() {
                Ok((stream, _)) => self.await_confirmation(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    report::complain("a stream was not accepted", &error);
                    break;
                }
            }
        }
        self.listen_again();
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
        let place = Place::new(self.this.clone());
        let watched = place.and_then(|place| place.watch(&stream).map(|()| place));
        let place = match watched {
            Ok(place) => place,
            Err(error) => return report::complain("a stream was not accepted", &error),
        };
        let mut unconfirmed = self.unconfirmed.lock();
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
        if waiting.is_empty() {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
        waiting.push_back(stream);
        self.arrived.fetch_add(1, Ordering::Relaxed);
    }
}

impl Task for Backlog {
    fn ready(&self, place: u64) {
        match self.place.get() {
            Some(own) if own.number() == place => self.fill(),
            _ => self.look_at(place),
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

//! Connections that wait for `accept`. As with TCP, a connect succeeds before the program accepts it: one thread per
//! process accepts the connections of all listeners.

use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use portolan::{Stream, StreamListener};
use portolan_threads::lock::Mutex;
use portolan_threads::{ProcessCell, with_signals_blocked};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use crate::report;

/// Maximum backlog that `listen` grants.
const LENGTH_MAX: usize = 4096;
const BATCH: usize = 64;

/// A listener and its queue of unaccepted streams.
pub(crate) struct Backlog {
    id: u64,
    listener: StreamListener,
    length: usize,
    waiting: Mutex<VecDeque<Stream>>,
    /// Streams that have arrived so far.
    arrived: AtomicU64,
    /// Readable while streams wait.
    bell: OwnedFd,
}

/// The accepting thread's epoll set and its listeners.
struct Service {
    set: OwnedFd,
    backlogs: Mutex<HashMap<u64, Weak<Backlog>>>,
}

static SERVICE: ProcessCell<Option<Service>> = ProcessCell::new();

impl Backlog {
    /// Starts to accept the listener's connections in the background.
    ///
    /// # Errors
    /// The process cannot create another descriptor or thread.
    pub(crate) fn start(listener: StreamListener, length: i32) -> rustix::io::Result<Arc<Self>> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let service = SERVICE.get_or_make(launch).as_ref().ok_or(Errno::AGAIN)?;
        let _ = listener.set_nonblocking(true);
        let backlog = Arc::new(Self {
            id: LAST.fetch_add(1, Ordering::Relaxed),
            listener,
            length: usize::try_from(length).unwrap_or(0).clamp(1, LENGTH_MAX),
            waiting: Mutex::default(),
            arrived: AtomicU64::new(0),
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let known = Arc::downgrade(&backlog);
        service.backlogs.lock().insert(backlog.id, known);
        let data = epoll::EventData::new_u64(backlog.id);
        epoll::add(&service.set, &backlog.listener, data, flags())?;
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

    /// Number of streams that have arrived so far.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }

    /// Readable while streams wait.
    pub(crate) fn ready(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn listen_again(&self) {
        if let Some(service) = SERVICE.get_or_make(launch) {
            let data = epoll::EventData::new_u64(self.id);
            let _ = epoll::modify(&service.set, &self.listener, data, flags());
        }
    }

    /// Accepts until the backlog is full or no connection is pending.
    fn fill(&self) {
        loop {
            if self.waiting.lock().len() >= self.length {
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let mut waiting = self.waiting.lock();
                    if waiting.is_empty() {
                        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
                    }
                    waiting.push_back(stream);
                    self.arrived.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    report::complain("a stream was not accepted", &error);
                    break;
                }
            }
        }
        self.listen_again();
    }
}

impl Drop for Backlog {
    fn drop(&mut self) {
        if let Some(service) = SERVICE.get_or_make(launch) {
            service.backlogs.lock().remove(&self.id);
            let _ = epoll::delete(&service.set, &self.listener);
        }
    }
}

/// One-shot, so a full backlog does not wake the thread again until `take` makes room.
fn flags() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::ONESHOT
}

fn launch() -> Option<Service> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
    let own = set.try_clone().ok()?;
    let thread = std::thread::Builder::new().name("portolan-accept".into());
    with_signals_blocked(|| thread.spawn(move || run(&own))).ok()?;
    Some(Service {
        set,
        backlogs: Mutex::default(),
    })
}

fn run(set: &OwnedFd) {
    loop {
        let mut events = Vec::with_capacity(BATCH);
        let room = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(set, room, None).is_err() {
            continue;
        }
        let Some(service) = SERVICE.get_or_make(|| None) else {
            return;
        };
        for event in events {
            let known = service.backlogs.lock().get(&event.data.u64()).cloned();
            if let Some(backlog) = known.and_then(|known| known.upgrade()) {
                backlog.fill();
            }
        }
    }
}

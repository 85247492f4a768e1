//! Answers peers that disconnect, while the program is busy elsewhere.
//!
//! One thread of the process waits for the events of all connections. It runs from the first connection on. Software
//! providers call it; it waits for the descriptors of other providers' channels.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use portolan_port_sharing::room::{self, with_room};
use portolan_provider::{Error, Result, Step};
use portolan_threads::lock::{Condvar, Mutex};
use portolan_threads::{ProcessCell, with_signals_blocked};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::{Errno, read, write};

use super::inner::Inner;
use crate::cm::EventChannel;
use crate::software::Watcher;

/// Maximum of connections whose events one system call reports.
const BATCH: usize = 64;
/// In the epoll set, the bell of the called connections instead of a connection.
const BELL: u64 = u64::MAX;

/// A forked child has a service of its own, because threads do not survive a fork.
static SERVICE: ProcessCell<Service> = ProcessCell::new();
/// Ascends across forks, so that an inherited registration never names a connection of the child.
static NEXT_KEY: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
struct Service {
    state: Mutex<State>,
    /// The thread has finished with a connection.
    handled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// What the thread waits for, once it runs.
    set: Option<Arc<Set>>,
    thread: Option<ThreadId>,
    connections: HashMap<u64, Weak<Inner>>,
    /// The connection whose events the thread is taking.
    busy: Option<u64>,
}

/// What the thread waits for.
#[derive(Debug)]
struct Set {
    /// The bell, and the event channels that have descriptors.
    epoll: OwnedFd,
    /// Readable if connections were called.
    bell: OwnedFd,
    called: Mutex<Vec<Arc<Called>>>,
}

/// A connection whose provider calls at its events.
#[derive(Debug)]
struct Called {
    key: u64,
    /// Whether it is among those that the thread has yet to handle.
    is_noted: AtomicBool,
    set: Weak<Set>,
    me: Weak<Self>,
}

/// A connection whose events are taken in the background.
#[derive(Debug)]
pub(super) struct Registration(u64);

fn service() -> &'static Service {
    SERVICE.get_or_make(|| Service {
        state: Mutex::default(),
        handled: Condvar::new(),
    })
}

impl Registration {
    /// Registers an established connection. If the system lacks the resources, the connection answers only while the
    /// program uses it.
    pub(super) fn new(connection: &Arc<Inner>) -> Self {
        let key = NEXT_KEY.fetch_add(1, Ordering::Relaxed);
        let mut state = service().state.lock();
        state.connections.insert(key, Arc::downgrade(connection));
        let added = state
            .start()
            .and_then(|set| set.watch(&connection.events, key));
        if let Err(error) = added {
            state.connections.remove(&key);
            drop(state);
            tracing::warn!(
                peer = ?connection.addresses.remote,
                "a disconnect of the peer is answered only while the program uses the connection: {error}"
            );
        }
        Self(key)
    }

    /// Removes the connection. Afterwards the thread has no reference to it.
    pub(super) fn remove(&self, connection: &Inner) {
        let service = service();
        let mut state = service.state.lock();
        if state.connections.remove(&self.0).is_none() {
            return;
        }
        if !connection.events.watch(None)
            && let Some(set) = &state.set
        {
            // The channel may stay open for longer, in a forked child.
            let _ = epoll::delete(&set.epoll, &connection.events);
        }
        // A waker that the thread called may drop the connection: the thread cannot wait for itself.
        while state.busy == Some(self.0) && state.thread != Some(std::thread::current().id()) {
            state = service.handled.wait(state);
        }
    }
}

impl Set {
    fn new() -> Result<Arc<Self>> {
        let epoll = with_room(|| epoll::create(epoll::CreateFlags::CLOEXEC));
        let epoll = epoll.map_err(|errno| os_error("epoll_create1", errno))?;
        let bell = with_room(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK));
        let bell = bell.map_err(|errno| os_error("eventfd", errno))?;
        add(&epoll, &bell, BELL)?;
        let called = Mutex::default();
        Ok(Arc::new(Self {
            epoll,
            bell,
            called,
        }))
    }

    fn watch(self: &Arc<Self>, events: &EventChannel, key: u64) -> Result<()> {
        let called = Arc::new_cyclic(|me| Called {
            key,
            is_noted: AtomicBool::new(false),
            set: Arc::downgrade(self),
            me: me.clone(),
        });
        match events.watch(Some(called)) {
            true => Ok(()),
            false => add(&self.epoll, &events.descriptor()?, key),
        }
    }

    /// The connections that were called since the last time.
    fn take_called(&self) -> Vec<u64> {
        // Before the list: a connection that is noted after this rings again.
        let _ = read(&self.bell, &mut [0; 8]);
        let called = std::mem::take(&mut *self.called.lock());
        let key_of = |called: &Arc<Called>| {
            // Before its events are taken: a later one notes it again.
            called.is_noted.store(false, Ordering::Release);
            called.key
        };
        called.iter().map(key_of).collect()
    }
}

fn add(set: &OwnedFd, fd: &impl AsFd, key: u64) -> Result<()> {
    // Edge-triggered, because other threads take events too, and a failed channel stays readable.
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    let data = epoll::EventData::new_u64(key);
    epoll::add(set, fd, data, flags).map_err(|errno| os_error("epoll_ctl", errno))
}

impl Watcher for Called {
    fn event(&self) {
        if self.is_noted.swap(true, Ordering::AcqRel) {
            return;
        }
        if let (Some(set), Some(me)) = (self.set.upgrade(), self.me.upgrade()) {
            let mut called = set.called.lock();
            called.push(me);
            // The thread is awake as long as it has not taken the others.
            if called.len() == 1 {
                let _ = write(&set.bell, &1u64.to_ne_bytes());
            }
        }
    }
}

fn os_error(call: &'static str, errno: Errno) -> Error {
    Error::new(Step::Event, room::cause(call, errno))
}

impl State {
    /// Starts the thread unless it runs. Returns what it waits for.
    fn start(&mut self) -> Result<&Arc<Set>> {
        let set = match self.set.take() {
            Some(set) => set,
            None => {
                let set = Set::new()?;
                let of_thread = set.clone();
                let thread = std::thread::Builder::new().name("portolan-events".into());
                let spawned = with_signals_blocked(|| thread.spawn(move || run(&of_thread)));
                let spawned = spawned.map_err(|_| os_error("pthread_create", Errno::AGAIN))?;
                self.thread = Some(spawned.thread().id());
                set
            }
        };
        Ok(self.set.insert(set))
    }
}

fn run(set: &Set) {
    let service = service();
    let mut ready = Vec::with_capacity(BATCH);
    loop {
        ready.clear();
        let waited = epoll::wait(&set.epoll, rustix::buffer::spare_capacity(&mut ready), None);
        match waited {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                tracing::warn!("disconnects of peers are not answered in the background: {errno}");
                return;
            }
        }
        for event in &ready {
            match event.data.u64() {
                BELL => set
                    .take_called()
                    .into_iter()
                    .for_each(|key| service.handle(key)),
                key => service.handle(key),
            }
        }
    }
}

impl Service {
    /// Handles the events of a connection.
    fn handle(&self, key: u64) {
        let mut state = self.state.lock();
        let Some(connection) = state.connections.get(&key).and_then(Weak::upgrade) else {
            return;
        };
        state.busy = Some(key);
        drop(state);
        // The connection's next call reports an error of its channel. After a panic, connections that are being
        // dropped must not wait for this thread. A waker may have dropped the program's handle of the connection, and
        // then the connection's buffers are freed here.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let taken = connection.take_events();
            drop(connection);
            taken
        }));
        self.state.lock().busy = None;
        self.handled.notify_all();
    }
}

//! Answers peers that disconnect, while the program is busy elsewhere.
//!
//! One thread of the process waits for the events of all connections. It runs from the first connection on.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use portolan_port_sharing::room::{self, with_room};
use portolan_provider::{Error, Result, Step};
use portolan_threads::lock::{Condvar, Mutex};
use portolan_threads::{ProcessCell, with_signals_blocked};
use rustix::event::epoll;
use rustix::io::Errno;

use super::inner::Inner;
use crate::cm::EventChannel;

/// Maximum of connections whose events one system call reports.
const BATCH: usize = 64;

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
    /// The epoll set of the connections' event channels, once the thread runs.
    set: Option<Arc<OwnedFd>>,
    thread: Option<ThreadId>,
    connections: HashMap<u64, Weak<Inner>>,
    /// The connection whose events the thread is taking.
    busy: Option<u64>,
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
            .and_then(|set| watch(set, &connection.events, key));
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
        if let Some(set) = &state.set {
            // The channel may stay open for longer, in a forked child.
            let _ = epoll::delete(set, &connection.events);
        }
        // A waker that the thread called may drop the connection: the thread cannot wait for itself.
        while state.busy == Some(self.0) && state.thread != Some(std::thread::current().id()) {
            state = service.handled.wait(state);
        }
    }
}

fn watch(set: &OwnedFd, events: &EventChannel, key: u64) -> Result<()> {
    // Edge-triggered, because other threads take events too, and a failed channel stays readable.
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    let data = epoll::EventData::new_u64(key);
    epoll::add(set, events.descriptor()?, data, flags).map_err(|errno| os_error("epoll_ctl", errno))
}

fn os_error(call: &'static str, errno: Errno) -> Error {
    Error::new(Step::Event, room::cause(call, errno))
}

impl State {
    /// Starts the thread unless it runs. Returns its epoll set.
    fn start(&mut self) -> Result<&OwnedFd> {
        let set = match self.set.take() {
            Some(set) => set,
            None => {
                let set = with_room(|| epoll::create(epoll::CreateFlags::CLOEXEC));
                let set = set.map_err(|errno| os_error("epoll_create1", errno))?;
                let set = Arc::new(set);
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

fn run(set: &OwnedFd) {
    let service = service();
    let mut ready = Vec::with_capacity(BATCH);
    loop {
        ready.clear();
        let waited = epoll::wait(set, rustix::buffer::spare_capacity(&mut ready), None);
        match waited {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                tracing::warn!("disconnects of peers are not answered in the background: {errno}");
                return;
            }
        }
        ready
            .iter()
            .for_each(|event| service.handle(event.data.u64()));
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

//! How calls on a socket tell the instances of `repoll_create` that have it: a call may finish the socket's connect, or take what its
//! descriptor signals to all.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use portolan_threads::lock::{Mutex, RwLock};

use crate::fork::Known;

static WATCHERS: Known<RwLock<Vec<Weak<Watcher>>>> = Known::new();

/// An instance, as calls on sockets know it.
pub(super) struct Watcher {
    /// Wakes the threads that wait for the instance.
    pub(super) bell: OwnedFd,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    /// The events that the instance awaits of sockets that it does not check by itself.
    awaited: HashMap<c_int, u32>,
    /// The socket that the instance checks at this moment.
    looked_at: Option<c_int>,
    /// Sockets to check.
    numbers: Vec<c_int>,
}

impl Watcher {
    pub(super) fn new(bell: OwnedFd) -> Arc<Self> {
        let watcher = Arc::new(Self {
            bell,
            told: Mutex::default(),
        });
        let mut watchers = WATCHERS.get().write();
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.push(Arc::downgrade(&watcher));
        watcher
    }

    /// Makes waiting threads look again.
    pub(super) fn ring(&self) {
        // Fails only if it rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// The instance is about to check a socket, and then awaits these events of it.
    pub(super) fn begin_look(&self, number: c_int, events: u32) {
        let mut told = self.told.lock();
        told.looked_at = Some(number);
        let always = (libc::POLLERR | libc::POLLHUP) as u32;
        told.awaited.insert(number, events | always);
    }

    /// The instance has checked the socket. A ready one it checks again by itself.
    pub(super) fn end_look(&self, number: c_int, is_ready: bool) {
        let mut told = self.told.lock();
        told.looked_at = None;
        if is_ready {
            told.forget(number);
        } else if told.numbers.contains(&number) {
            // Another call on the socket took the events meanwhile.
            self.ring();
        }
    }

    pub(super) fn forget(&self, number: c_int) {
        self.told.lock().forget(number);
    }

    /// The sockets to check since the last call.
    pub(super) fn take(&self) -> Vec<c_int> {
        std::mem::take(&mut self.told.lock().numbers)
    }
}

impl Told {
    fn forget(&mut self, number: c_int) {
        self.awaited.remove(&number);
        self.numbers.retain(|told| *told != number);
    }
}

/// Makes the instances that await one of the `events` of a socket check it. The caller may hold the socket's and its
/// stream's locks.
pub(super) fn tell(number: c_int, events: u32) {
    for watcher in WATCHERS.get().read().iter().filter_map(Weak::upgrade) {
        let mut told = watcher.told.lock();
        let is_awaited = told
            .awaited
            .get(&number)
            .is_some_and(|awaited| awaited & events != 0);
        if is_awaited {
            told.awaited.remove(&number);
            told.numbers.push(number);
            // While it looks it does not sleep, and most of what it finds it has taken itself.
            if told.looked_at != Some(number) {
                watcher.ring();
            }
        }
    }
}

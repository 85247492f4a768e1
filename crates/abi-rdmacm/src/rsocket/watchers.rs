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
    /// The events that the program wants of each socket.
    wanted: HashMap<c_int, u32>,
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

    /// The program wants these events of a socket from now on.
    pub(super) fn want(&self, number: c_int, events: u32) {
        self.told.lock().wanted.insert(number, events);
    }

    pub(super) fn forget(&self, number: c_int) {
        self.told.lock().wanted.remove(&number);
    }

    /// The sockets to check since the last call.
    pub(super) fn take(&self) -> Vec<c_int> {
        std::mem::take(&mut self.told.lock().numbers)
    }
}

/// Makes the instances that want one of the `events` of a socket check it. The caller may hold the socket's lock.
pub(super) fn tell(number: c_int, events: u32) {
    for watcher in WATCHERS.get().read().iter().filter_map(Weak::upgrade) {
        let mut told = watcher.told.lock();
        let wants = told
            .wanted
            .get(&number)
            .is_some_and(|wanted| wanted & events != 0);
        if wants && !told.numbers.contains(&number) {
            told.numbers.push(number);
            watcher.ring();
        }
    }
}

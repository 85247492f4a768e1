//! Who learns of a socket's changes.

use std::ffi::c_int;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use portolan_threads::lock::Mutex;

/// Receives notifications of a socket's changes.
pub(crate) trait Watcher: Send + Sync {
    /// The descriptors to watch have changed ([`Socket::watch`](crate::socket::Socket::watch)).
    fn changed(&self, number: c_int);
    /// A call has found the socket not ready.
    fn touched(&self, number: c_int);
    /// The device has something for the socket's stream. Its locks are held: this must neither wait nor use a stream.
    fn reported(&self, number: c_int);
    /// The number is being closed.
    fn closed(&self, number: c_int);
}

/// The watchers of a socket, each with the number that it watches.
#[derive(Default)]
pub(crate) struct Watchers {
    list: Mutex<Vec<(c_int, Weak<dyn Watcher>)>>,
    any: AtomicBool,
}

impl Watchers {
    /// Calls all. No lock is held meanwhile.
    pub(crate) fn tell(&self, what: impl Fn(&dyn Watcher, c_int)) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let watchers = self.list.lock().clone();
        for (number, watcher) in watchers {
            if let Some(watcher) = watcher.upgrade() {
                what(&*watcher, number);
            }
        }
    }

    /// Called by the device.
    pub(crate) fn report(&self) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        for (number, watcher) in &*self.list.lock() {
            if let Some(watcher) = watcher.upgrade() {
                watcher.reported(*number);
            }
        }
    }

    pub(crate) fn add(&self, number: c_int, watcher: Weak<dyn Watcher>) {
        let mut watchers = self.list.lock();
        watchers.retain(|(_, known)| known.strong_count() > 0);
        watchers.push((number, watcher));
        self.any.store(true, Ordering::Release);
    }

    /// Removes what watches a number.
    pub(crate) fn forget(&self, number: c_int) {
        let mut watchers = self.list.lock();
        watchers.retain(|(its, _)| *its != number);
        self.any.store(!watchers.is_empty(), Ordering::Release);
    }

    pub(crate) fn remove(&self, number: c_int, watcher: &Weak<dyn Watcher>) {
        let mut watchers = self.list.lock();
        watchers.retain(|(its, known)| *its != number || !known.ptr_eq(watcher));
        self.any.store(!watchers.is_empty(), Ordering::Release);
    }
}

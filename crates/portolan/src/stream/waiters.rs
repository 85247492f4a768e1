//! Several tasks that wait for one direction of a stream. A direction wakes only one waker, so they share one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use portolan_threads::lock::Mutex;

/// The tasks that wait for one direction. As a waker it wakes all of them.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    next: u64,
    wakers: BTreeMap<u64, Waker>,
}

/// A place among the waiters, for a future. It leaves it when it is dropped.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    waiters: &'a Arc<Waiters>,
    place: u64,
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        // They stay until their futures end. A waker may do anything, so it is called without the lock.
        let wakers: Vec<_> = self.0.lock().wakers.values().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl<'a> Waiting<'a> {
    pub(super) fn among(waiters: &'a Arc<Waiters>) -> Self {
        let mut known = waiters.0.lock();
        known.next += 1;
        let place = known.next;
        drop(known);
        Self { waiters, place }
    }

    /// Makes the future's task one of those that are woken, and calls `poll` with the waker of all.
    pub(super) fn poll<T>(
        &self,
        context: &Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> T,
    ) -> T {
        self.set(Some(context.waker()));
        let all = Waker::from(self.waiters.clone());
        poll(&mut Context::from_waker(&all))
    }

    /// Replaces the waker at this place.
    fn set(&self, waker: Option<&Waker>) {
        let mut known = self.waiters.0.lock();
        let former = match (waker, known.wakers.get(&self.place)) {
            (Some(new), Some(former)) if former.will_wake(new) => return,
            (Some(new), _) => known.wakers.insert(self.place, new.clone()),
            (None, _) => known.wakers.remove(&self.place),
        };
        drop(known);
        // It may do anything when it is dropped.
        drop(former);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.set(None);
    }
}

//! Shared memory that expires at a set time.
//!
//! One thread of the process withdraws the peers' access. It runs only while some memory has an expiry time.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use portolan_port_sharing::room;
use portolan_provider::traits::{Mr, Mw};
use portolan_provider::{Cause, Error, Result, Step};
use portolan_threads::lock::{Condvar, Mutex};
use portolan_threads::with_signals_blocked;

use crate::deadline;

/// The leases by expiry time. A number distinguishes leases with the same time.
static DUE: Mutex<Due> = Mutex::new(Due {
    leases: BTreeMap::new(),
    made: 0,
    runner: None,
});
static CHANGED: Condvar = Condvar::new();

struct Due {
    leases: BTreeMap<(Instant, u64), Weak<Mutex<Term>>>,
    made: u64,
    /// The process whose thread runs (`fork::generation`). A forked child does not have its parent's thread.
    runner: Option<u32>,
}

/// How long peers may access some memory.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    term: Arc<Mutex<Term>>,
}

#[derive(Debug, Default)]
struct Term {
    /// Its key among the leases; `None` if the memory does not expire.
    due: Option<(Instant, u64)>,
    /// The process that has this entry (`fork::generation`).
    process: u32,
    is_over: bool,
    regions: Vec<Weak<dyn Mr>>,
    /// Open windows on the regions, which prevent that these are withdrawn.
    windows: Vec<Weak<dyn Mw>>,
}

impl Lease {
    /// Sets the regions to withdraw when the lease expires.
    pub(crate) fn covers(&self, regions: &[Arc<dyn Mr>]) {
        let mut term = self.term.lock();
        term.regions = regions.iter().map(Arc::downgrade).collect();
        if term.is_over {
            // The lease expired while a region was being registered.
            term.withdraw();
        }
    }

    /// Adds a window that closes when the lease expires.
    ///
    /// # Errors
    /// The lease has expired.
    pub(crate) fn opens(&self, window: &Arc<dyn Mw>) -> Result<()> {
        self.check()?;
        let mut term = self.term.lock();
        if term.windows.len() == term.windows.capacity() {
            term.windows.retain(|window| window.strong_count() > 0);
        }
        term.windows.push(Arc::downgrade(window));
        if term.is_over {
            // The lease expired after it was checked.
            term.withdraw();
        }
        Ok(())
    }

    /// Fails if the lease has expired.
    pub(crate) fn check(&self) -> Result<()> {
        match self.term.lock().is_over {
            false => Ok(()),
            true => {
                let (expected, found) = ("memory that is shared", "memory that has expired");
                let cause = Cause::InvalidState { expected, found };
                Err(Error::new(Step::RegisterMemory, cause))
            }
        }
    }

    /// Sets the expiry time, which replaces an earlier one.
    pub(crate) fn end_at(&self, at: Instant) -> Result<()> {
        self.check()?;
        let mut due = DUE.lock();
        due.start()?;
        let key = (at, due.made);
        due.made += 1;
        let mut term = self.term.lock();
        term.process = portolan_threads::fork::generation();
        let earlier = term.due.replace(key);
        drop(term);
        earlier.and_then(|earlier| due.leases.remove(&earlier));
        due.leases.insert(key, Arc::downgrade(&self.term));
        CHANGED.notify_all();
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let term = self.term.lock();
        let (key, process) = (term.due, term.process);
        drop(term);
        // A forked child has no thread that ends leases, and its copy of the lock may be held for ever.
        if let Some(key) = key
            && process == portolan_threads::fork::generation()
        {
            DUE.lock().leases.remove(&key);
            // The thread ends after the last one.
            CHANGED.notify_all();
        }
    }
}

impl Term {
    /// Expires the lease, unless its expiry time was changed to a later one.
    fn end(&mut self, now: Instant) {
        if self.due.is_some_and(|(end, _)| end <= now) {
            self.is_over = true;
            self.withdraw();
        }
    }

    fn withdraw(&mut self) {
        for window in self.windows.drain(..).filter_map(|window| window.upgrade()) {
            if let Err(error) = window.deallocate() {
                tracing::warn!("a window on expired memory stays open: {error}");
            }
        }
        for region in self.regions.iter().filter_map(Weak::upgrade) {
            if let Err(error) = region.deregister() {
                tracing::warn!("expired memory stays in reach of peers: {error}");
            }
        }
    }
}

impl Due {
    /// Starts the thread unless it runs.
    fn start(&mut self) -> Result<()> {
        let process = portolan_threads::fork::generation();
        if self.runner == Some(process) {
            return Ok(());
        }
        let thread = std::thread::Builder::new().name("portolan-leases".into());
        with_signals_blocked(|| thread.spawn(run)).map_err(|error| {
            let errno = error.raw_os_error().and_then(rustix_errno);
            let errno = errno.unwrap_or(rustix::io::Errno::AGAIN);
            Error::new(Step::RegisterMemory, room::cause("pthread_create", errno))
        })?;
        self.runner = Some(process);
        Ok(())
    }
}

fn rustix_errno(number: i32) -> Option<rustix::io::Errno> {
    (number > 0).then(|| rustix::io::Errno::from_raw_os_error(number))
}

fn run() {
    let mut due = DUE.lock();
    loop {
        let now = Instant::now();
        let Some(first) = due.leases.first_entry() else {
            due.runner = None;
            return;
        };
        let at = first.key().0;
        if at > now {
            due = CHANGED.wait_timeout(due, deadline::left(at)).0;
            continue;
        }
        let term = first.remove().upgrade();
        drop(due);
        if let Some(term) = term {
            term.lock().end(now);
        }
        due = DUE.lock();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The entries of one lease. Other tests have leases, too.
    fn entries(term: &Weak<Mutex<Term>>) -> usize {
        let due = DUE.lock();
        due.leases.values().filter(|each| each.ptr_eq(term)).count()
    }

    #[test]
    fn a_lease_has_one_entry_however_often_it_is_renewed_and_none_after_its_end() {
        let lease = Lease::default();
        let term = Arc::downgrade(&lease.term);
        for renewal in 0..1_000 {
            let later = Duration::from_secs(3_600 + renewal);
            lease.end_at(Instant::now() + later).unwrap();
        }
        assert_eq!(entries(&term), 1);
        drop(lease);
        assert_eq!(entries(&term), 0);
    }
}

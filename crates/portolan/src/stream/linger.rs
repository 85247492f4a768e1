//! Finishes streams that their owners have dropped, sends keepalives, and tells peers of shutdowns that had to wait.
//!
//! One thread serves all streams of the process. It runs only while there is such work.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use portolan_port_sharing::room::with_room;
use portolan_threads::lock::{Mutex, MutexGuard};
use portolan_threads::{ProcessCell, with_signals_blocked};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::core::{Core, Shared, Wait};
use crate::deadline;

/// Time limit for a dropped stream to deliver its data.
const LINGER: Duration = Duration::from_secs(10);
/// How long the thread that drops a blocking stream waits for the delivery.
const DROP_WAIT: Duration = Duration::from_secs(1);
/// Maximum of lingering streams. The thread that drops one more waits itself, and data that takes longer is lost.
const LINGERING_MAX: usize = 4096;

/// That of this process. A forked child has neither its parent's thread nor its streams, and a thread of the parent may have held
/// their locks at the fork.
fn service() -> MutexGuard<'static, Service> {
    static SERVICE: ProcessCell<Mutex<Service>> = ProcessCell::new();
    SERVICE.get_or_make(Mutex::default).lock()
}

#[derive(Default)]
struct Service {
    lingering: Vec<(Shared, Instant)>,
    /// When to look after which streams, by their places in memory.
    alive: HashMap<usize, (Weak<Core>, Instant)>,
    /// Wakes the thread.
    bell: Option<Arc<OwnedFd>>,
    runs: bool,
}

/// Ends a stream without an owner, after delivering its data.
pub(super) fn end(core: Shared, is_blocking: bool) {
    core.forget_owner();
    core.close(portolan_rsocket::Close::Both);
    if is_blocking {
        // The service delivers the rest.
        let _ = core.flush(Wait::Until(Some(deadline::after(DROP_WAIT))));
    }
    if core.is_flushed() {
        core.disconnect();
        return;
    }
    let mut service = service();
    if service.lingering.len() < LINGERING_MAX && service.start() {
        service.lingering.push((core, Instant::now() + LINGER));
        service.ring();
        return;
    }
    drop(service);
    let _ = core.flush(Wait::Until(Some(deadline::after(DROP_WAIT))));
    core.disconnect();
}

/// Waits until the peers have the data of all streams that this process has dropped, at most for `timeout`.
///
/// Dropped streams ([`Stream`](super::Stream)) deliver their data in the background, for up to ten seconds. A process that
/// ends before loses the rest. [`Stream`](super::Stream) has an example.
pub fn deliver_dropped(timeout: Duration) {
    let until = deadline::after(timeout);
    let lingering = service().lingering.clone();
    for (core, _) in lingering {
        // A broken stream has nothing to wait for.
        let _ = core.flush(Wait::Until(Some(until)));
    }
}

/// Makes a stream send keepalives, and tell its peer of a shutdown although its owner does not call again.
pub(super) fn look_after(core: &Shared) {
    let Some(next) = core.look_after(Instant::now()) else {
        return;
    };
    let mut service = service();
    if service.start() {
        service
            .alive
            .insert(place_of(core), (Arc::downgrade(core), next));
        service.ring();
    }
}

impl Service {
    /// Starts the thread unless it runs. Returns whether it runs.
    fn start(&mut self) -> bool {
        if self.bell.is_none() {
            let made = with_room(|| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK));
            self.bell = made.ok().map(Arc::new);
        }
        if !self.runs && self.bell.is_some() {
            let thread = std::thread::Builder::new().name("portolan-streams".into());
            self.runs = with_signals_blocked(|| thread.spawn(run)).is_ok();
        }
        self.runs
    }

    /// When to look after a stream next.
    fn next_alive(&mut self) -> Option<Instant> {
        self.alive.retain(|_, (core, _)| core.strong_count() > 0);
        self.alive.values().map(|(_, next)| *next).min()
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }
}

fn run() {
    loop {
        let now = Instant::now();
        look_after_due(now);
        let (lingering, next_alive, bell) = {
            let mut service = service();
            let next_alive = service.next_alive();
            let Some(bell) = service.bell.clone() else {
                return;
            };
            if service.lingering.is_empty() && next_alive.is_none() {
                service.runs = false;
                return;
            }
            // Cleared before the streams are checked, so that no wake-up is lost.
            let _ = rustix::io::read(&bell, &mut [0u8; 8]);
            (service.lingering.clone(), next_alive, bell)
        };
        let (done, rest): (Vec<_>, Vec<_>) = lingering
            .into_iter()
            .partition(|(core, until)| is_done(core, now >= *until));
        if !done.is_empty() {
            let is_done = |core: &Shared| done.iter().any(|(each, _)| Arc::ptr_eq(each, core));
            service().lingering.retain(|(core, _)| !is_done(core));
        }
        // Their descriptors are free before the wait, which may be long.
        drop(done);
        let next = rest.iter().map(|(_, until)| *until).chain(next_alive).min();
        wait(&rest, &bell, next);
    }
}

/// Advances a stream. Disconnects it if it is flushed or late.
fn is_done(core: &Core, is_late: bool) -> bool {
    // Checked again after the next notification was requested.
    let is_done = core.is_flushed() || core.prepare_flush() || is_late;
    if is_done {
        core.disconnect();
    }
    is_done
}

/// Looks after the streams that are due. The service is free meanwhile: they may wake tasks, which may drop streams.
fn look_after_due(now: Instant) {
    let due: Vec<_> = {
        let mut service = service();
        let due = service.alive.extract_if(|_, (_, next)| now >= *next);
        due.filter_map(|(_, (core, _))| core.upgrade()).collect()
    };
    for core in due {
        if let Some(next) = core.look_after(now) {
            // Another thread may have set a time meanwhile.
            let again = || (Arc::downgrade(&core), next);
            service().alive.entry(place_of(&core)).or_insert_with(again);
        }
    }
}

/// Where a stream is in memory. No other one gets this place while a weak reference exists.
fn place_of(core: &Shared) -> usize {
    Arc::as_ptr(core).addr()
}

fn wait(lingering: &[(Shared, Instant)], bell: &Arc<OwnedFd>, next: Option<Instant>) {
    let readiness = lingering.iter().map(|(core, _)| core.readiness());
    let fds: Vec<_> = readiness.chain([bell.as_fd()]).collect();
    let mut fds: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::new(fd, PollFlags::IN))
        .collect();
    let left = next.map(|at| Timespec::try_from(deadline::left(at)).unwrap_or_default());
    // Fails only on a signal. The loop checks again.
    let _ = poll(&mut fds, left.as_ref());
}

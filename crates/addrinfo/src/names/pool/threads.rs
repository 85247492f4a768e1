//! The threads of a pool: several workers, and one timer for deadlines.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::Cause;
use portolan_provider::error::errno;
use portolan_threads::fork::ForkGuard;
use portolan_threads::lock::{Condvar, Mutex, MutexGuard};
use portolan_threads::with_signals_blocked;

use super::jobs::Jobs;
use super::{JOBS_MAX, Unanswered};

/// The threads' names in `top -H` (15 bytes at most).
const WORKER_NAME: &str = "portolan-names";
const TIMER_NAME: &str = "portolan-timer";
/// How long an idle worker waits for more work before it ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// The work of a job; it stores its own result.
pub(super) type Work = Box<dyn FnOnce() + Send>;
/// Called when the job is done, or with the reason why it has no result.
pub(super) type Done = Box<dyn FnOnce(Result<(), Unanswered>) + Send>;

/// Starts a thread with this name.
pub(super) type Spawn = fn(&str, Box<dyn FnOnce() + Send>) -> Result<(), Cause>;

/// State shared by callers and threads.
pub(super) struct Shared {
    /// The process that runs the threads. A forked child has no threads, and its copy of the lock
    /// may be held.
    owner: ForkGuard,
    threads_max: usize,
    spawn_worker: Spawn,
    state: Mutex<PoolState>,
    /// Signals new work, or the end of the pool.
    work: Condvar,
    /// Signals a new earliest deadline, or the end of the pool.
    timer: Condvar,
}

struct PoolState {
    jobs: Jobs<Work, Done>,
    threads: usize,
    /// Number of idle workers.
    idle: usize,
    stopped: bool,
}

/// Starts the timer thread; workers start when there is work.
pub(super) fn start(threads_max: usize) -> Result<Arc<Shared>, Cause> {
    start_with(threads_max, spawn)
}

/// Like [`start`](Self::start), with another way to start workers.
pub(super) fn start_with(threads_max: usize, spawn_worker: Spawn) -> Result<Arc<Shared>, Cause> {
    let shared = Arc::new(Shared {
        owner: ForkGuard::new(),
        threads_max,
        spawn_worker,
        state: Mutex::new(PoolState {
            jobs: Jobs::new(),
            threads: 0,
            idle: 0,
            stopped: false,
        }),
        work: Condvar::new(),
        timer: Condvar::new(),
    });
    let of_timer = Arc::clone(&shared);
    spawn(TIMER_NAME, Box::new(move || of_timer.time()))?;
    Ok(shared)
}

fn spawn(name: &str, run: Box<dyn FnOnce() + Send>) -> Result<(), Cause> {
    let builder = std::thread::Builder::new().name(name.into());
    let started = with_signals_blocked(|| builder.spawn(run));
    started.map(drop).map_err(|error| Cause::Os {
        call: "starting a thread for name look-ups",
        errno: error.raw_os_error().unwrap_or(errno::EAGAIN),
    })
}

impl Shared {
    pub(super) fn submit(
        self: &Arc<Self>,
        deadline: Instant,
        work: Work,
        done: Done,
    ) -> Result<u64, Cause> {
        if !self.is_own() {
            return Err(Cause::InvalidState {
                expected: "the process that started the pool",
                found: "a child forked from it",
            });
        }
        let mut state = self.lock();
        let first = state.jobs.next_timeout();
        let ticket = state.jobs.add(deadline, JOBS_MAX, work, done)?;
        if first.is_none_or(|first| deadline < first) {
            self.timer.notify_one();
        }
        if state.jobs.queued() <= state.idle {
            self.work.notify_one();
            return Ok(ticket);
        }
        if state.threads == self.threads_max {
            return Ok(ticket);
        }
        // Spawn under the lock, so that a thread that fails to start is never counted on.
        let of_worker = Arc::clone(self);
        let Err(cause) = (self.spawn_worker)(WORKER_NAME, Box::new(move || of_worker.work()))
        else {
            state.threads += 1;
            return Ok(ticket);
        };
        if state.threads > 0 {
            // The existing threads will take the job.
            return Ok(ticket);
        }
        let cancelled = state.jobs.cancel(ticket);
        drop(state);
        drop(cancelled);
        Err(cause)
    }

    pub(super) fn cancel(&self, ticket: u64) {
        if self.is_own() {
            // Drop the closures after unlocking: they may own anything.
            let cancelled = self.lock().jobs.cancel(ticket);
            drop(cancelled);
        }
    }

    pub(super) fn stop(&self) {
        if self.is_own() {
            self.lock().stopped = true;
            self.work.notify_all();
            self.timer.notify_all();
        }
    }

    pub(super) fn threads(&self) -> usize {
        if self.is_own() {
            self.lock().threads
        } else {
            0
        }
    }

    fn is_own(&self) -> bool {
        self.owner.is_owner()
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock()
    }

    /// The main loop of a worker.
    fn work(&self) {
        while let Some((ticket, work)) = self.next_work() {
            let ran = catch_unwind(AssertUnwindSafe(work));
            let done = self.lock().jobs.finish(ticket);
            if let Some(done) = done {
                tell(done, ran.map_err(|_| Unanswered::Panicked));
            }
        }
    }

    /// Waits for work; `None` when the worker should end.
    fn next_work(&self) -> Option<(u64, Work)> {
        let mut state = self.lock();
        let mut waited_for_long = false;
        loop {
            if !state.stopped
                && let Some(work) = state.jobs.take_work()
            {
                return Some(work);
            }
            if state.stopped || waited_for_long {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            let (woken, waited) = self.work.wait_timeout(state, IDLE_MAX);
            state = woken;
            state.idle -= 1;
            waited_for_long = waited.timed_out();
        }
    }

    /// The main loop of the timer thread.
    fn time(&self) {
        let mut state = self.lock();
        loop {
            if state.stopped {
                let left = state.jobs.take_all();
                drop(state);
                for (work, done) in left {
                    discard(work);
                    tell(done, Err(Unanswered::Stopped));
                }
                return;
            }
            let now = Instant::now();
            if let Some((work, done)) = state.jobs.take_expired(now) {
                drop(state);
                discard(work);
                tell(done, Err(Unanswered::Expired));
                state = self.lock();
                continue;
            }
            state = match state.jobs.next_timeout() {
                None => self.timer.wait(state),
                Some(at) => {
                    let left = at.saturating_duration_since(now);
                    let waited = self.timer.wait_timeout(state, left);
                    waited.0
                }
            };
        }
    }
}

/// Drops work that never ran; catches a panic of its destructor.
fn discard(work: Option<Work>) {
    if catch_unwind(AssertUnwindSafe(|| drop(work))).is_err() {
        tracing::error!("the destructor of a name lookup panicked");
    }
}

/// Calls `done` without holding the lock.
fn tell(done: Done, outcome: Result<(), Unanswered>) {
    if catch_unwind(AssertUnwindSafe(|| done(outcome))).is_err() {
        tracing::error!("a name look-up's completion panicked");
    }
}

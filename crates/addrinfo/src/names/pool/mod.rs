//! A thread pool for blocking work, such as the system's resolver.
//!
//! getaddrinfo(3) blocks for as long as the system's settings permit and cannot be interrupted. So
//! the asynchronous calls run it here, on at most [`THREADS_MAX`] threads. They start when there is
//! work and end after an idle period.
//!
//! Each job has a deadline. When it passes, a timer thread completes the job, whether queued or
//! running, so an expired queued job never occupies a thread. A running job keeps its thread until
//! libc returns: with a name server that does not answer, some seconds (resolv.conf(5), `timeout`
//! and `attempts`). Jobs queued behind such threads still complete by their deadlines.

mod jobs;
mod threads;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::Cause;
use portolan_threads::ProcessCell;
use portolan_threads::lock::Mutex;

use threads::Shared;

/// Maximum number of threads for jobs; one more thread waits for deadlines.
pub const THREADS_MAX: usize = 8;
/// Maximum number of threads for lookups that this machine's files answer, which takes microseconds.
const FILES_THREADS_MAX: usize = 2;
/// Maximum number of jobs in a pool, queued and running.
pub const JOBS_MAX: usize = 16_384;
/// Longest deadline of a job.
pub const DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// Why a job has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unanswered {
    /// The deadline passed.
    Expired,
    /// The pool was dropped.
    Stopped,
    /// The job panicked.
    Panicked,
}

/// A pool of threads for blocking jobs.
///
/// Dropping a private pool completes its pending jobs with [`Unanswered::Stopped`] and ends its
/// threads as they become idle.
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// Returns this process's pool. Its threads start with the first call; after a fork the child
    /// gets its own pool.
    ///
    /// A pool thread stays in the network namespace of the thread whose call started it, and any
    /// idle thread takes the next job. So the shared pool suits processes with one network
    /// namespace. A process whose threads use several (setns(2)) calls [`resolve`](crate::resolve)
    /// on the caller's thread, or creates its own pool in each with [`Pool::start`].
    ///
    /// # Errors
    /// As [`Pool::start`].
    pub fn shared() -> Result<&'static Self, Cause> {
        static SHARED: ProcessCell<Pool> = ProcessCell::new();
        SHARED.get_or_try_make(|| Self::start(THREADS_MAX))
    }

    /// Returns this process's pool for lookups that this machine's files answer, so that they do not wait behind those
    /// that need a slow server. Otherwise like [`Pool::shared`].
    ///
    /// # Errors
    /// As [`Pool::start`].
    pub fn shared_for_files() -> Result<&'static Self, Cause> {
        static SHARED: ProcessCell<Pool> = ProcessCell::new();
        SHARED.get_or_try_make(|| Self::start(FILES_THREADS_MAX))
    }

    /// Creates a private pool with this many threads for jobs, clamped to 1 to [`THREADS_MAX`].
    ///
    /// # Errors
    /// [`Cause::Os`] if the timer's thread cannot be started.
    pub fn start(threads_max: usize) -> Result<Self, Cause> {
        Ok(Self {
            shared: threads::start(threads_max.clamp(1, THREADS_MAX))?,
        })
    }

    /// Runs `work` on a pool thread.
    ///
    /// A pool thread calls `done` with its result, or with [`Unanswered::Expired`] when `deadline`
    /// passes. `done` should pass the outcome on and return. Dropping the returned [`Pending`]
    /// cancels the job.
    ///
    /// # Errors
    /// `done` is dropped without a call, and the result is [`Cause::InvalidArgument`] for a
    /// deadline above [`DEADLINE_MAX`], [`Cause::LimitReached`] with [`JOBS_MAX`] jobs in progress,
    /// [`Cause::InvalidState`] in a child forked from the process that started this pool, or
    /// [`Cause::Os`] if there is no thread and none can be started.
    pub fn submit<T: Send + 'static>(
        &self,
        deadline: Duration,
        work: impl FnOnce() -> T + Send + 'static,
        done: impl FnOnce(Result<T, Unanswered>) + Send + 'static,
    ) -> Result<Pending, Cause> {
        if deadline > DEADLINE_MAX {
            return Err(Cause::InvalidArgument {
                what: "deadline",
                expected: "an hour at most".into(),
                found: format!("{} s", deadline.as_secs()),
            });
        }
        // Carries the result from the thread to `done`, which the timer may call instead.
        let result = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&result);
        let work = Box::new(move || {
            let made = work();
            *keep.lock() = Some(made);
        });
        let done = Box::new(move |ended: Result<(), Unanswered>| {
            let made = result.lock().take();
            done(ended.and_then(|()| made.ok_or(Unanswered::Panicked)));
        });
        let ticket = self.shared.submit(Instant::now() + deadline, work, done)?;
        Ok(Pending {
            shared: Arc::clone(&self.shared),
            ticket,
        })
    }

    /// Current number of threads for jobs.
    pub fn threads(&self) -> usize {
        self.shared.threads()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// A job in progress. Dropping it cancels the job: `done` is dropped without a call, unless the
/// call has begun. Work already running continues, and its result is dropped.
#[must_use = "dropping it cancels the job"]
pub struct Pending {
    shared: Arc<Shared>,
    ticket: u64,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.cancel(self.ticket);
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("ticket", &self.ticket)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

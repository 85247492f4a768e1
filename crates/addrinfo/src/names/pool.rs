//! Work that blocks, such as the system's resolver, on a few threads of its own.
//!
//! getaddrinfo(3) blocks for as long as the system's settings let it take, and nothing can end it
//! early. So the asynchronous forms run it here: on [`THREADS_MAX`] threads at most, started when
//! there is work and ended when there has been none for a while. Every job has one deadline. When it
//! passes, a timer answers for the job, be it queued or running; a queued job so never occupies a
//! thread. A running one keeps its thread until libc returns, which is lost to the others for that
//! long: with a name server that does not answer, some seconds (resolv.conf(5), `timeout` and
//! `attempts`). Jobs that wait behind such threads are answered by their deadlines all the same.

mod jobs;
mod threads;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use portolan_provider::Cause;

use crate::sys::process_cell::ProcessCell;
use threads::Shared;

/// Most threads that a pool has for its jobs; one more waits for deadlines.
pub const THREADS_MAX: usize = 8;
/// Most jobs that a pool has at a time, waiting and running.
pub const JOBS_MAX: usize = 16_384;
/// Longest deadline that a job may have.
pub const DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// Why a job has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unanswered {
    /// Its deadline passed.
    Expired,
    /// The pool was dropped.
    Stopped,
    /// It panicked.
    Panicked,
}

/// Runs jobs that block. Dropping a pool of one's own answers what is pending with
/// [`Unanswered::Stopped`] and ends its threads as they become free.
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// This process's pool. Its threads start with the first call; after a fork the child gets a pool of
    /// its own.
    ///
    /// A thread of the pool is, and stays, in the network namespace of the thread whose call started it,
    /// and whichever is free takes the next job. So all is well in a process that has one namespace. One
    /// whose threads are in several (setns(2)) looks names up by [`resolve`](crate::resolve), in the caller's
    /// thread, or has a [`Pool::start`] of its own in each.
    ///
    /// # Errors
    /// As [`Pool::start`].
    pub fn shared() -> Result<&'static Self, Cause> {
        static SHARED: ProcessCell<Pool> = ProcessCell::new();
        SHARED.get_or_try_make(|| Self::start(THREADS_MAX))
    }

    /// A pool of one's own with this many threads for jobs (1 to [`THREADS_MAX`]; others are cut).
    ///
    /// # Errors
    /// [`Cause::Os`] if the timer's thread cannot be started.
    pub fn start(threads_max: usize) -> Result<Self, Cause> {
        Ok(Self {
            shared: threads::start(threads_max.clamp(1, THREADS_MAX))?,
        })
    }

    /// Runs `work` on a thread of the pool. `done` gets its result, or [`Unanswered::Expired`] once
    /// `deadline` has passed, on one of the pool's threads. It should hand the outcome over and
    /// return. Dropping the [`Pending`] that this returns cancels the job.
    ///
    /// # Errors
    /// `done` is dropped uncalled, and the result is [`Cause::InvalidArgument`] for a deadline above
    /// [`DEADLINE_MAX`], [`Cause::LimitReached`] with [`JOBS_MAX`] jobs under way,
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
        // The result's way from the thread to `done`, which the timer may call instead.
        let result = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&result);
        let work = Box::new(move || {
            let made = work();
            *keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
        });
        let done = Box::new(move |ended: Result<(), Unanswered>| {
            let made = result.lock().unwrap_or_else(PoisonError::into_inner).take();
            done(ended.and_then(|()| made.ok_or(Unanswered::Panicked)));
        });
        let ticket = self.shared.submit(Instant::now() + deadline, work, done)?;
        Ok(Pending {
            shared: Arc::clone(&self.shared),
            ticket,
        })
    }

    /// The threads there are for jobs now.
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

/// A job under way. Dropping it cancels the job: its `done` is dropped uncalled, unless it has been
/// called or is being called; work that runs already runs to its end, for nobody.
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

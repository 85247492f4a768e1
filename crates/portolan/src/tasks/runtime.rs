//! The runtime's services for the futures here: readiness of descriptors, deadlines, threads for blocking calls.

use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::Handle;
use ::tokio::task::JoinError;
use ::tokio::task::coop::consume_budget;
use ::tokio::time::{Sleep, sleep_until};
use portolan_provider::traits::CompChannel;
use portolan_provider::{Cause, Error, Result, Step};

use crate::cm::EventChannel;

/// The runtime of the current task.
///
/// # Errors
/// `InvalidState` outside of a tokio runtime, where tokio's own functions would panic.
pub(super) fn runtime(step: Step) -> Result<Handle> {
    Handle::try_current().map_err(|_| {
        let (expected, found) = (
            "a task or thread of a tokio runtime",
            "a thread outside of any",
        );
        Error::new(step, Cause::InvalidState { expected, found })
    })
}

/// What a task waits for by a descriptor. It owns the descriptor and keeps it open and unchanged, as tokio's newer,
/// unsafe registration requires.
pub(crate) trait Waited {
    /// The descriptor's number. It is readable while there may be something to take.
    ///
    /// # Errors
    /// The process has no descriptor left. The one that then stands in for programs that poll is of no use to a
    /// runtime: it is the same for all, and always readable, whereas the runtime only sees changes.
    fn number(&self) -> Result<RawFd>;
}

/// What a task waits for, with the number of its descriptor.
#[derive(Debug)]
pub(crate) struct Watched<T>(pub(crate) T, RawFd);

impl<T> AsRawFd for Watched<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.1
    }
}

/// Registers a descriptor with the runtime.
#[allow(deprecated, reason = "it needs no unsafe code; see `Waited`")]
pub(crate) fn watch<T: Waited>(waited: T, step: Step) -> Result<AsyncFd<Watched<T>>> {
    runtime(step)?;
    let number = waited.number().map_err(|error| error.at(step))?;
    let watched = of_runtime(step, "a tokio runtime with I/O enabled", || {
        AsyncFd::with_interest(Watched(waited, number), Interest::READABLE)
    });
    watched?.map_err(runtime_error)
}

/// Runs a call that panics if the runtime was built without a driver, and turns the panic into an error. tokio reports
/// a missing driver in no other way.
fn of_runtime<T>(step: Step, expected: &'static str, call: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| {
        let found = "one that was built without it";
        Error::new(step, Cause::InvalidState { expected, found })
    })
}

/// A sleep until the given time.
fn until(moment: Instant, step: Step) -> Result<Sleep> {
    of_runtime(step, "a tokio runtime with time enabled", || {
        sleep_until(moment.into())
    })
}

impl Waited for Arc<dyn CompChannel> {
    fn number(&self) -> Result<RawFd> {
        self.descriptor().map(|fd| fd.as_raw_fd())
    }
}

impl Waited for EventChannel {
    fn number(&self) -> Result<RawFd> {
        self.descriptor().map(|fd| fd.as_raw_fd())
    }
}

/// Waits until `take` returns a value. It may while the descriptor is readable.
pub(crate) async fn ready<T, R, E: From<Error>>(
    watched: &AsyncFd<Watched<T>>,
    mut take: impl FnMut(&T) -> std::result::Result<Option<R>, E>,
) -> std::result::Result<R, E> {
    loop {
        // A task that finds all its calls ready lets others run now and then, as with tokio's own types.
        consume_budget().await;
        if let Some(found) = take(&watched.get_ref().0)? {
            return Ok(found);
        }
        let mut guard = watched.readable().await.map_err(runtime_error)?;
        // Check again while the guard is held and before readiness is cleared, so that nothing is missed.
        if let Some(found) = take(&watched.get_ref().0)? {
            return Ok(found);
        }
        guard.clear_ready();
    }
}

/// Waits until the given time; forever for `None`.
///
/// # Errors
/// `InvalidState` if the runtime does not have time enabled.
pub(super) async fn reached(moment: Option<Instant>, step: Step) -> Result<()> {
    match moment {
        Some(moment) => until(moment, step)?.await,
        None => std::future::pending().await,
    }
    Ok(())
}

/// Limits a future by a deadline.
pub(crate) async fn within<T>(
    deadline: Instant,
    step: Step,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    runtime(step)?;
    let started = Instant::now();
    let over = until(deadline, step)?;
    ::tokio::select! {
        biased;
        outcome = work => outcome,
        () = over => {
            let after_ms = Duration::as_millis(&started.elapsed()) as u64;
            let retries = 0;
            Err(Error::new(step, Cause::TimedOut { after_ms, retries }))
        }
    }
}

/// Runs blocking work outside of the runtime's own threads.
pub(crate) async fn off_runtime<T: Send + 'static>(
    step: Step,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let runtime = runtime(step)?;
    // tokio panics if it has no thread yet and the system refuses one.
    let spawned = catch_unwind(AssertUnwindSafe(|| runtime.spawn_blocking(work)));
    let Ok(task) = spawned else {
        let (call, errno) = ("pthread_create", portolan_provider::error::errno::EAGAIN);
        return Err(Error::new(step, Cause::Os { call, errno }));
    };
    match task.await {
        Ok(outcome) => outcome,
        Err(ended) => Err(of_ended_task(ended, step)),
    }
}

/// Converts the failure of one of this module's tasks; resumes its panic in the caller.
pub(crate) fn of_ended_task(ended: JoinError, step: Step) -> Error {
    if ended.is_panic() {
        std::panic::resume_unwind(ended.into_panic());
    }
    let gone = Cause::NoSuchObject("the runtime, which is shutting down,");
    Error::new(step, gone)
}

pub(crate) fn runtime_error(error: std::io::Error) -> Error {
    let call = "epoll";
    let cause = match error.raw_os_error() {
        Some(errno) => Cause::Os { call, errno },
        // tokio's own error, after its driver has ended.
        None => Cause::NoSuchObject("the tokio runtime that watched the descriptor"),
    };
    Error::new(Step::Watch, cause)
}

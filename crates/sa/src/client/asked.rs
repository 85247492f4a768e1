//! A query as a future.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use portolan_threads::lock::Mutex;

use super::Pending;
use crate::engine::Failure;
use crate::query_coalescer::Outcome;

/// A query in progress. Dropping it cancels the query.
#[must_use = "a future does nothing unless it is awaited; dropping it cancels the query"]
pub struct Asked {
    state: Arc<Mutex<Progress>>,
    pending: Option<Pending>,
}

#[derive(Default)]
struct Progress {
    outcome: Option<Outcome>,
    over: bool,
    waker: Option<Waker>,
}

impl Asked {
    pub(super) fn new(ask: impl FnOnce(Box<dyn FnOnce(Outcome) + Send>) -> Pending) -> Self {
        let state = Arc::new(Mutex::new(Progress::default()));
        let theirs = Theirs(state.clone());
        let pending = ask(Box::new(move |outcome| theirs.finish(outcome)));
        Self {
            state,
            pending: Some(pending),
        }
    }
}

/// The thread's end. Dropping it without an outcome wakes the waiting task with an error.
struct Theirs(Arc<Mutex<Progress>>);

impl Theirs {
    fn finish(&self, outcome: Outcome) {
        let mut state = self.0.lock();
        if state.over {
            return;
        }
        state.outcome = Some(outcome);
        state.over = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        self.finish(Err(Failure::Closed));
    }
}

impl Future for Asked {
    type Output = Outcome;

    /// A poll after completion returns [`Failure::Closed`].
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let mut state = self.state.lock();
        if let Some(outcome) = state.outcome.take() {
            drop(state);
            if let Some(pending) = self.pending.take() {
                pending.disarm();
            }
            return Poll::Ready(outcome);
        }
        if state.over {
            return Poll::Ready(Err(Failure::Closed));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked")
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}

//! Wakes the threads that sleep on streams when one of these is handed over to another process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use portolan_threads::ProcessCell;
use portolan_threads::lock::Mutex;

use crate::background::make_bell;

/// Maximum sleep on a stream without [`Farewell`], for the case that the stream is handed over.
const DEAF_SLEEP: Duration = Duration::from_millis(100);

/// Wakes the threads that sleep now. It is replaced after it has rung, so no thread has to reset it.
static FAREWELL: ProcessCell<Mutex<Option<Arc<OwnedFd>>>> = ProcessCell::new();

/// What wakes a sleeping thread when a stream is handed over. The thread gets it before it looks
/// whether the stream was handed over.
pub(crate) struct Farewell(Option<Arc<OwnedFd>>);

impl Farewell {
    pub(crate) fn hear() -> Self {
        let mut bell = FAREWELL.get_or_make(Mutex::default).lock();
        if bell.is_none() {
            *bell = make_bell().ok().map(Arc::new);
        }
        Self(bell.clone())
    }

    /// What to wait for.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(|bell| bell.as_fd())
    }

    /// How long the thread may sleep that would sleep for `left`.
    pub(crate) fn at_most(&self, left: Option<Duration>) -> Option<Duration> {
        match &self.0 {
            Some(_) => left,
            // No descriptor was left for it.
            None => Some(left.map_or(DEAF_SLEEP, |left| left.min(DEAF_SLEEP))),
        }
    }
}

/// Wakes the threads that sleep on streams, after one was handed over.
pub(crate) fn wake_sleepers() {
    let bell = FAREWELL.get_or_make(Mutex::default).lock().take();
    if let Some(bell) = bell {
        let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
    }
}

//! Ctrl-C: the first ends a command cleanly, the second at once.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::Notify;

/// A shell's exit code for a program that SIGINT ended.
const EXIT_INTERRUPTED: i32 = 130;
/// Maximum delay until a signal ends [`Interrupt::unless_raised`].
const CHECK: Duration = Duration::from_millis(100);

/// Whether the command should end.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    raised: AtomicBool,
    notify: Notify,
}

impl Interrupt {
    /// Starts handling SIGINT and SIGTERM. Before, a signal ends the process at once. So a command calls this after the
    /// steps that may wait long and leave nothing to report, such as joining a group, or runs them by
    /// [`Interrupt::unless_raised`].
    ///
    /// # Errors
    ///
    /// The handlers cannot be installed, or their thread cannot start.
    pub(crate) fn install() -> io::Result<Interrupt> {
        let interrupt = Interrupt::default();
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let shared = interrupt.shared.clone();
        let wait = move || {
            for _ in signals.forever() {
                if shared.raised.swap(true, Ordering::AcqRel) {
                    std::process::exit(EXIT_INTERRUPTED);
                }
                shared.notify.notify_one();
            }
        };
        thread::Builder::new().name("signals".into()).spawn(wait)?;
        Ok(interrupt)
    }

    /// Whether the command should end.
    pub(crate) fn is_raised(&self) -> bool {
        self.shared.raised.load(Ordering::Acquire)
    }

    /// Runs a call that waits long, such as one that connects, until it returns or the command should end. Returns `None`
    /// in the second case. The call then goes on in its own thread, until the process ends.
    ///
    /// # Errors
    ///
    /// The thread cannot start.
    pub(crate) fn unless_raised<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        let (send, returned) = mpsc::channel();
        let run = move || drop(send.send(call()));
        let calling = thread::Builder::new().name("calling".into()).spawn(run)?;
        while !self.is_raised() {
            match returned.recv_timeout(CHECK) {
                Ok(value) => return Ok(Some(value)),
                Err(RecvTimeoutError::Timeout) => {}
                // It panicked before it sent anything.
                Err(RecvTimeoutError::Disconnected) => match calling.join() {
                    Err(panic) => resume_unwind(panic),
                    Ok(()) => unreachable!("a call that returns sends its value"),
                },
            }
        }
        Ok(None)
    }

    /// Waits until the command should end. Only for one task at a time.
    pub(crate) async fn raised(&self) {
        while !self.is_raised() {
            self.shared.notify.notified().await;
        }
    }
}

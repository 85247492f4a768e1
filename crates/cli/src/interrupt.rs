//! Ctrl-C: the first ends a command cleanly, the second at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::sync::Notify;

/// A shell's exit code for a program that SIGINT ended.
const EXIT_INTERRUPTED: i32 = 130;

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
    /// Starts handling SIGINT and SIGTERM.
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

    /// Waits until the command should end. Only for one task at a time.
    pub(crate) async fn raised(&self) {
        while !self.is_raised() {
            self.shared.notify.notified().await;
        }
    }
}

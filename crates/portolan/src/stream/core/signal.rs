//! What the device of a stream calls when the stream may have advanced.
//!
//! A stream needs a descriptor only while an event loop or a sleeping thread waits for it, so the descriptor is made
//! then. A device without such calls has descriptors of its own ([`Readiness`](super::Readiness)).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use portolan_port_sharing::room::aside;
use portolan_provider::traits::Notify;
use portolan_provider::{Result, Step};
use portolan_threads::lock::Mutex;

use crate::bell::{make_bell, ring, silence};

/// A program's function that is called when a stream may have become ready.
pub(super) type Call = Box<dyn Fn() + Send + Sync>;

#[derive(Debug, Default)]
struct State {
    /// Whether it was raised and not lowered since. The descriptor is readable exactly then, unless it is quiet.
    is_raised: bool,
    /// Whoever reads the state next handles what raises it, so nobody needs the descriptor.
    is_quiet: bool,
}

pub(crate) struct Signal {
    /// Locked last of all locks.
    state: Mutex<State>,
    bell: OnceLock<OwnedFd>,
    call: OnceLock<Call>,
    /// In the place of a descriptor that could not be made: always readable.
    spare: &'static OwnedFd,
}

impl Signal {
    /// # Errors
    /// No descriptor is left for the first one of the process.
    pub(crate) fn new() -> Result<Arc<Self>> {
        static SPARE: OnceLock<OwnedFd> = OnceLock::new();
        let spare = match SPARE.get() {
            Some(spare) => spare,
            None => {
                let made = make_bell(Step::Event)?;
                ring(&made);
                SPARE.get_or_init(|| made)
            }
        };
        Ok(Arc::new(Self {
            state: Mutex::default(),
            bell: OnceLock::new(),
            call: OnceLock::new(),
            spare,
        }))
    }

    pub(super) fn raise(&self) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.is_raised, true) {
            return;
        }
        if !state.is_quiet
            && let Some(bell) = self.bell.get()
        {
            ring(bell);
        }
        if let Some(call) = self.call.get() {
            call();
        }
    }

    #[cfg(feature = "tokio")]
    pub(super) fn is_raised(&self) -> bool {
        self.state.lock().is_raised
    }

    /// Returns whether it was raised.
    pub(super) fn lower(&self) -> bool {
        let mut state = self.state.lock();
        let was_raised = std::mem::replace(&mut state.is_raised, false);
        if was_raised && let Some(bell) = self.bell.get() {
            silence(bell);
        }
        was_raised
    }

    /// Calls `act`. The caller handles afterwards what raises the signal meanwhile, which does not change the
    /// descriptor. Returns whether anything did. A signal that was raised before stays so.
    pub(super) fn quietly(&self, act: impl FnOnce()) -> bool {
        {
            let mut state = self.state.lock();
            if state.is_raised {
                drop(state);
                act();
                return false;
            }
            state.is_quiet = true;
        }
        act();
        let mut state = self.state.lock();
        state.is_quiet = false;
        std::mem::replace(&mut state.is_raised, false)
    }

    /// Whether the descriptor exists: an event loop may wait for it.
    pub(super) fn has_bell(&self) -> bool {
        self.bell.get().is_some()
    }

    /// Sets the function to call. Calls it if the signal is raised.
    pub(super) fn set_call(&self, call: Call) {
        let state = self.state.lock();
        if self.call.set(call).is_ok()
            && state.is_raised
            && let Some(call) = self.call.get()
        {
            call();
        }
    }
}

impl Notify for Signal {
    fn notify(&self) {
        self.raise();
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor().unwrap_or(self.spare.as_fd())
    }

    fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        if let Some(bell) = self.bell.get() {
            return Ok(bell.as_fd());
        }
        let state = self.state.lock();
        if let Some(bell) = self.bell.get() {
            return Ok(bell.as_fd());
        }
        let made = make_bell(Step::Event)?;
        // The program may be about to use the number that it has just closed.
        let made = aside(made);
        if state.is_raised {
            ring(&made);
        }
        Ok(self.bell.get_or_init(|| made).as_fd())
    }
}

impl std::fmt::Debug for Signal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signal").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(signal: &Signal) -> bool {
        let fd = signal.as_fd();
        poll(
            &mut [PollFd::new(&fd, PollFlags::IN)],
            Some(&Timespec::default()),
        )
        .unwrap()
            == 1
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_the_signal_is_raised_even_if_it_was_made_later() {
        let signal = Signal::new().unwrap();
        signal.raise();
        assert!(is_readable(&signal));
        assert!(signal.lower());
        assert!(!is_readable(&signal) && !signal.lower());
        signal.raise();
        signal.raise();
        assert!(is_readable(&signal) && signal.lower());
        assert!(!is_readable(&signal));
    }

    #[test]
    fn what_raises_it_quietly_is_reported_to_the_caller_and_not_by_the_descriptor() {
        let signal = Signal::new().unwrap();
        assert!(!is_readable(&signal));
        assert!(!signal.quietly(|| {}));
        assert!(signal.quietly(|| signal.raise()));
        assert!(!is_readable(&signal) && !signal.lower());
        signal.raise();
        assert!(!signal.quietly(|| signal.raise()), "it was raised before");
        assert!(is_readable(&signal) && signal.lower());
    }

    #[test]
    fn the_function_is_called_once_for_each_time_that_the_signal_is_raised() {
        let (signal, calls) = (Signal::new().unwrap(), Arc::new(AtomicU32::new(0)));
        signal.raise();
        let counted = calls.clone();
        signal.set_call(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        assert_eq!(calls.load(Ordering::Relaxed), 1, "it was raised before");
        signal.raise();
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        signal.lower();
        signal.raise();
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }
}

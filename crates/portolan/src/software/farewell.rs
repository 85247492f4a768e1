//! Connections end with their process: as the kernel disconnects what a process leaves open, so that the peer need not wait
//! for its retries to learn of it.
//!
//! Whoever calls exit(3) may have been interrupted anywhere, as a signal handler has, and so hold any lock. The progress
//! thread disconnects, and the exit waits for it for a while.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Once, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use portolan_cm::State;
use portolan_provider::Step;

use super::core::Core;
use crate::lock;
use crate::sys::at_exit;

/// How long an exit waits for the progress thread.
const WAIT_MAX: Duration = Duration::from_millis(200);
const LOOK_AGAIN: Duration = Duration::from_micros(50);
/// How long the thread sends: of more connections than that the peers find out by themselves.
const SEND_MAX: Duration = Duration::from_millis(150);

/// The software rdma_cms of this process.
static CORES: Mutex<Vec<Weak<Core>>> = Mutex::new(Vec::new());

/// How far the end of the process has come.
#[derive(Debug, Default)]
pub(super) struct Farewell(AtomicU8);

const ASKED: u8 = 1;
const SAID: u8 = 2;

impl Farewell {
    /// Whether the process ends, and the peers are to be told.
    pub(super) fn is_due(&self) -> bool {
        self.0.load(Ordering::Acquire) == ASKED
    }
}

/// Has the peers told when the process ends.
pub(super) fn promise(core: &Arc<Core>) {
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| at_exit(at_end));
    let mut cores = lock(&CORES);
    cores.retain(|core| core.strong_count() > 0);
    cores.push(Arc::downgrade(core));
}

extern "C" fn at_end() {
    // Nothing may unwind into libc; who panicked here has no peer to tell any more.
    let _ = catch_unwind(|| {
        let Ok(cores) = CORES.try_lock() else { return };
        for core in cores.iter().filter_map(Weak::upgrade) {
            core.have_farewell_said();
        }
    });
}

impl Core {
    fn have_farewell_said(&self) {
        // A forked child's connections are its parent's.
        let is_own = self.stack().check_process(Step::Disconnect).is_ok();
        if !is_own || self.is_surely_unconnected() {
            return;
        }
        let said = &self.farewell.0;
        said.store(ASKED, Ordering::Release);
        self.stack().wake();
        let started = Instant::now();
        while said.load(Ordering::Acquire) != SAID && started.elapsed() < WAIT_MAX {
            sleep(LOOK_AGAIN);
        }
    }

    fn is_surely_unconnected(&self) -> bool {
        self.try_state()
            .is_some_and(|state| !state.cm.listing().any(|id| id.state == State::Established))
    }

    /// Disconnects whatever is connected.
    pub(super) fn say_farewell(&self) {
        let started = Instant::now();
        let listing = self.listing().into_iter();
        let connected = listing.filter(|id| id.state == State::Established);
        for id in connected.take_while(|_| started.elapsed() < SEND_MAX) {
            // It may be gone since.
            let _ = self.run(|cm, now| cm.disconnect(now, id.id));
        }
        self.farewell.0.store(SAID, Ordering::Release);
    }
}

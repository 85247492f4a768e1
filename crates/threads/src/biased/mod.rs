//! Biased locks: a thread that takes one again and again needs no atomic instruction for it.
//!
//! A locked instruction takes some 20 cycles on current processors. A thread that polls takes half a dozen locks for each
//! message, and hardly any other thread takes them. After a number of acquisitions in a row (`run`) such a lock belongs to
//! that thread, its *owner*, which then enters and leaves it by plain loads and stores (`bias`). Another thread that wants
//! it takes the ownership away by membarrier(2). That takes up to 10 µs, so the next run has to be twice as long, up to a limit.
//!
//! Without membarrier(2) they are ordinary locks. As those of [`lock`](crate::lock), they stay usable after a panic.

mod bias;
mod mutex;
mod run;
mod rw_lock;
mod sync;
mod word;

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

pub use mutex::{MendingMutex, Mutex, MutexGuard};
pub use rw_lock::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::fork::generation;
use crate::{fence, sys};

/// Whether locks may have owners: one of the following.
static STATE: AtomicU8 = AtomicU8::new(UNASKED);
const UNASKED: u8 = 0;
/// A lock would have an owner.
const WANTED: u8 = 1;
/// A thread asks the kernel.
const ASKING: u8 = 2;
const POSSIBLE: u8 = 3;
const IMPOSSIBLE: u8 = 4;

/// The sleep in place of a barrier that the kernel refuses. No processor keeps a store to itself for this long.
const INSTEAD_OF_BARRIER: Duration = Duration::from_millis(5);

/// The [process](generation) whose thread asks the kernel. A child that is forked meanwhile has no such thread.
static ASKED_BY: AtomicU32 = AtomicU32::new(0);

/// Lets locks have owners, once one would have one. Call it now and then. It starts a thread for a moment, because the
/// kernel may take a tenth of a second.
#[inline]
pub fn prepare_if_wanted() {
    if matches!(STATE.load(Ordering::Relaxed), WANTED | ASKING) {
        prepare();
    }
}

/// As [`prepare_if_wanted`], before any lock would have an owner. Does nothing if the kernel was asked already.
#[cold]
pub fn prepare() {
    let (by, own) = (ASKED_BY.load(Ordering::Relaxed), generation());
    let relaxed = Ordering::Relaxed;
    let is_asked = STATE.load(relaxed) >= POSSIBLE || by == own;
    if is_asked
        || ASKED_BY
            .compare_exchange(by, own, relaxed, relaxed)
            .is_err()
    {
        return;
    }
    STATE.store(ASKING, Ordering::Relaxed);
    let ask = || {
        let state = match sys::register_membarrier() {
            true => POSSIBLE,
            false => IMPOSSIBLE,
        };
        STATE.store(state, Ordering::Release);
    };
    let thread = thread::Builder::new().name("portolan-ask".into());
    if sys::with_signals_blocked(|| thread.spawn(ask)).is_err() {
        STATE.store(IMPOSSIBLE, Ordering::Relaxed);
    }
}

/// Whether a lock may get an owner. The first call makes [`prepare_if_wanted`] ask the kernel.
fn is_possible() -> bool {
    let state = STATE.load(Ordering::Relaxed);
    if state == UNASKED {
        let relaxed = Ordering::Relaxed;
        let _ = STATE.compare_exchange(UNASKED, WANTED, relaxed, relaxed);
    }
    state == POSSIBLE
}

#[cold]
fn heavy_barrier() {
    if !sys::membarrier() {
        // The program has forbidden the call since. So this happens once for each lock that has an owner.
        STATE.store(IMPOSSIBLE, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        thread::sleep(INSTEAD_OF_BARRIER);
    }
}

#[cfg(test)]
mod tests;

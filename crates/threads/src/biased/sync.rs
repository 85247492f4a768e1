//! What [`bias`](super::bias) is built of. Its model checker replaces it.

use std::time::Duration;

pub(super) use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::sys;

/// Looks at a word before the thread sleeps.
const LOOKS: u32 = 100;
/// The longest sleep. A limit only: who leaves wakes the sleeper.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// The owner's half of the barrier: it only stops the compiler from moving accesses across it.
#[inline(always)]
pub(super) fn light_barrier() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// The other half. Every other thread of the process executes a full barrier meanwhile.
pub(super) fn heavy_barrier() {
    super::heavy_barrier();
}

/// Waits until the word is 0.
pub(super) fn wait_for_zero(word: &AtomicU32) {
    let mut looks = 0;
    loop {
        match word.load(Ordering::Acquire) {
            0 => return,
            _ if looks < LOOKS => {
                looks += 1;
                std::hint::spin_loop();
            }
            value => sys::futex_wait(word, value, SLEEP_MAX),
        }
    }
}

/// Wakes the thread that waits for the word to be 0.
pub(super) fn wake(word: &AtomicU32) {
    sys::futex_wake(word);
}

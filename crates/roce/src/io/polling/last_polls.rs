//! Whether a poll may be a program's last one before it sleeps.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::attendance::this_thread;

/// A program polls its queues once after it has armed one of them, or a few times, and then sleeps. If it polls more often, it
/// does not sleep: some programs (UCX) arm a queue for solicited completions and go on polling.
const LAST_POLLS: u32 = 4;

#[derive(Debug, Default)]
pub(crate) struct LastPolls {
    left: AtomicU32,
    /// The thread that armed a queue last.
    thread: AtomicUsize,
}

impl LastPolls {
    /// A queue was armed: its owner is about to sleep, but may poll before.
    pub(crate) fn begin(&self) {
        self.thread.store(this_thread(), Ordering::Relaxed);
        self.left.store(LAST_POLLS, Ordering::Relaxed);
    }

    /// Whether a poll that has found nothing may be the last one: of an armed queue, or of another one by the thread that
    /// armed a queue last. A stream that sleeps until it receives polls the queue of its sends last. Threads that poll at the
    /// same time may share one.
    pub(crate) fn is_one(&self, is_armed: bool) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        let counts = left > 0 && (is_armed || self.thread.load(Ordering::Relaxed) == this_thread());
        if counts {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_polls_after_arming_may_be_the_last_ones() {
        let polls = LastPolls::default();
        for is_armed in [false, true] {
            assert!(!polls.is_one(is_armed), "nothing was armed");
            polls.begin();
            let last = (0..100).filter(|_| polls.is_one(is_armed)).count();
            assert_eq!(last, LAST_POLLS as usize);
        }
    }

    #[test]
    fn a_poll_of_another_threads_queue_is_not_the_last_one_and_leaves_the_count() {
        let polls = LastPolls::default();
        polls.begin();
        let others = std::thread::scope(|scope| {
            let polling = scope.spawn(|| (0..100).filter(|_| polls.is_one(false)).count());
            polling.join().unwrap()
        });
        assert_eq!(others, 0);
        assert!(polls.is_one(false));
    }
}

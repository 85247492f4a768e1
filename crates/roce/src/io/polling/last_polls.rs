//! Whether a poll may be a program's last one before it sleeps.

use std::sync::atomic::{AtomicU32, Ordering};

/// A program polls its queues once after it has armed one of them, or a few times, and then sleeps. If it polls more often, it
/// does not sleep: some programs (UCX) arm a queue for solicited completions and go on polling.
const LAST_POLLS: u32 = 4;

#[derive(Debug, Default)]
pub(crate) struct LastPolls {
    left: AtomicU32,
}

impl LastPolls {
    /// A queue was armed: its owner is about to sleep, but may poll before.
    pub(crate) fn begin(&self) {
        self.left.store(LAST_POLLS, Ordering::Relaxed);
    }

    /// Whether a poll that has found nothing may be the last one. Threads that poll at the same time may share one.
    pub(crate) fn is_one(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_polls_after_arming_may_be_the_last_ones() {
        let polls = LastPolls::default();
        assert!(!polls.is_one(), "nothing was armed");
        for _ in 0..2 {
            polls.begin();
            let last = (0..100).filter(|_| polls.is_one()).count();
            assert_eq!(last, LAST_POLLS as usize);
        }
    }
}

//! When a lock gets an owner.

/// Acquisitions before a lock gets its first owner: so many cost about as much as taking the ownership away.
pub(super) const START: u32 = 1024;
/// The longest run. Taking the ownership away costs less for each acquisition than an ordinary lock would, even if it happens
/// after every such run.
const MAX: u32 = 1 << 12;

/// The acquisitions of one thread in a row.
#[derive(Debug)]
pub(super) struct Run {
    thread: usize,
    left: u32,
    /// The length of a run.
    wanted: u32,
}

impl Run {
    pub(super) const fn new() -> Self {
        Self {
            thread: 0,
            left: START,
            wanted: START,
        }
    }

    /// Counts an acquisition. Returns whether the run is long enough.
    #[inline]
    pub(super) fn count(&mut self, thread: usize) -> bool {
        if self.thread != thread {
            (self.thread, self.left) = (thread, self.wanted);
        }
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// The ownership was taken away.
    pub(super) fn end(&mut self) {
        self.wanted = next_length(self.wanted);
        self.thread = 0;
    }
}

/// The length of a run after one of this length.
pub(super) fn next_length(wanted: u32) -> u32 {
    (wanted * 2).min(MAX)
}

//! The memory of the peer that placed writes have filled whose records are not acknowledged.
//!
//! Such a write may still have no receive. A later one that overlaps it would replace bytes that the peer's program has
//! not been told of, so it uses packets, which the peer executes in order.

use alloc::collections::VecDeque;

/// Maximum of runs. Beyond it, the last one grows over whatever lies between.
const RUNS_MAX: usize = 16;
/// A write belongs to the run that ends less than this before it: a line of the caches, to which programs align.
const GAP_MAX: u64 = 64;

/// Bytes of writes that were placed one after the other.
#[derive(Debug)]
struct Run {
    start: u64,
    end: u64,
    /// Number of the packet after the last write's.
    until: u64,
    /// Each of its writes begins after the end of the one before.
    ascends: bool,
}

/// Runs of unacknowledged placed writes, oldest first. A stream that fills a ring has at most two.
#[derive(Debug, Default)]
pub(super) struct PlacedRuns(VecDeque<Run>);

impl PlacedRuns {
    /// Adds a write: its place, and the number of the packet after its last. All before packet `una` is acknowledged.
    pub(super) fn add(&mut self, una: u64, until: u64, (start, len): (u64, u32)) {
        while self.0.front().is_some_and(|run| run.until <= una) {
            self.0.pop_front();
        }
        let is_full = self.0.len() == RUNS_MAX;
        let end = start.saturating_add(len.into());
        if let Some(last) = self.0.back_mut() {
            let gap = start.checked_sub(last.end);
            let follows = gap.is_some_and(|gap| gap < GAP_MAX);
            if follows || is_full {
                last.ascends &= follows;
                (last.start, last.end) = (last.start.min(start), last.end.max(end));
                last.until = until;
                return;
            }
        }
        self.0.push_back(Run {
            start,
            end,
            until,
            ascends: true,
        });
    }

    /// Whether no unacknowledged write is in a place. `oldest`: where the first of them begins, if known.
    pub(super) fn is_free(&self, una: u64, mut oldest: Option<u64>, (at, len): (u64, u32)) -> bool {
        let end = at.saturating_add(len.into());
        let mut unacknowledged = self.0.iter().filter(|run| run.until > una);
        unacknowledged.all(|run| {
            // What the first run has before the oldest write is acknowledged.
            let start = oldest.take().filter(|_| run.ascends).unwrap_or(run.start);
            end <= start || run.end <= at
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_free_up_to_the_oldest_unacknowledged_write() {
        let mut runs = PlacedRuns::default();
        // Eight writes of 100 bytes, one packet each, and two more from the start on.
        for number in 0..8 {
            runs.add(0, number + 1, (number * 100, 100));
        }
        assert_eq!(runs.0.len(), 1);
        assert!(!runs.is_free(0, Some(0), (0, 1)));
        assert!(runs.is_free(0, Some(0), (800, 100)));
        assert!(runs.is_free(3, Some(300), (0, 300)));
        assert!(!runs.is_free(3, Some(300), (0, 301)));
        assert!(!runs.is_free(3, None, (0, 100)), "it is not known");
        runs.add(3, 9, (0, 100));
        runs.add(3, 10, (100, 100));
        assert_eq!(runs.0.len(), 2);
        assert!(runs.is_free(3, Some(300), (200, 100)));
        assert!(!runs.is_free(3, Some(300), (150, 100)));
        assert!(!runs.is_free(3, Some(300), (250, 100)));
        assert!(runs.is_free(8, Some(0), (200, 1000)));
        assert!(runs.is_free(10, None, (0, 1000)));
    }

    #[test]
    fn many_places_are_kept_apart_as_far_as_there_is_room_and_none_is_forgotten() {
        let mut runs = PlacedRuns::default();
        let places: Vec<u64> = (0..30).map(|number| number * 7 % 30 * 4096).collect();
        for (until, at) in (1..).zip(&places) {
            assert!(until > RUNS_MAX as u64 || runs.is_free(0, Some(0), (*at, 100)));
            runs.add(0, until, (*at, 100));
            assert!(runs.0.len() <= RUNS_MAX);
        }
        for una in 0..30 {
            for at in &places[una..] {
                let oldest = Some(places[una]);
                assert!(!runs.is_free(una as u64, oldest, (at + 99, 1)));
            }
        }
    }
}

//! How far it is, on standard error, while there are several targets.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often progress is printed: on a terminal, where the line is overwritten, and elsewhere.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(100);
const INTERVAL: Duration = Duration::from_secs(5);

/// A line that counts targets. One target has none.
#[derive(Debug)]
pub(crate) struct Progress {
    targets: usize,
    /// What is counted, and what those that failed are.
    words: (&'static str, &'static str),
    done: usize,
    failed: usize,
    is_terminal: bool,
    told: Instant,
    /// Whether the terminal's line is not empty.
    is_drawn: bool,
}

impl Progress {
    pub(crate) fn new(targets: usize, what: &'static str, failed: &'static str) -> Self {
        Self {
            targets,
            words: (what, failed),
            done: 0,
            failed: 0,
            is_terminal: io::stderr().is_terminal(),
            told: Instant::now(),
            is_drawn: false,
        }
    }

    /// Counts a target.
    pub(crate) fn count(&mut self, found: bool) {
        self.done += 1;
        self.failed += usize::from(!found);
    }

    /// Tells how far it is, if it is time to and there is something to wait for.
    pub(crate) fn tell(&mut self) {
        let interval = if self.is_terminal {
            TERMINAL_INTERVAL
        } else {
            INTERVAL
        };
        if self.targets < 2 || self.done == self.targets || self.told.elapsed() < interval {
            return;
        }
        self.told = Instant::now();
        let text = self.text();
        // If progress cannot be shown, the results suffice.
        let _ = if self.is_terminal {
            self.is_drawn = true;
            write!(io::stderr(), "\r\x1b[K{text}")
        } else {
            writeln!(io::stderr(), "{text}")
        };
    }

    /// Takes the line away, so that something else may be written there.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// How long to wait before it is to be told again.
    pub(crate) fn interval(&self) -> Duration {
        TERMINAL_INTERVAL
    }

    fn text(&self) -> String {
        let Self {
            targets,
            words: (what, failure),
            done,
            failed,
            ..
        } = self;
        match failed {
            0 => format!("{done}/{targets} {what}"),
            _ => format!("{done}/{targets} {what}, {failed} of them {failure}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_counts_what_is_done_and_what_failed() {
        let mut progress = Progress::new(3, "targets resolved", "not found");
        assert_eq!(progress.text(), "0/3 targets resolved");
        progress.count(true);
        progress.count(false);
        assert_eq!(progress.text(), "2/3 targets resolved, 1 of them not found");
    }
}

//! Progress on stderr, for several targets.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Interval between prints: on a terminal, which overwrites the line, and otherwise.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(100);
const INTERVAL: Duration = Duration::from_secs(5);

/// A line that counts targets; not printed for a single target.
#[derive(Debug)]
pub(crate) struct Progress {
    targets: usize,
    /// What is counted, and the word for failures.
    words: (&'static str, &'static str),
    done: usize,
    failed: usize,
    is_terminal: bool,
    told: Instant,
    /// Whether the terminal shows the line.
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

    /// Prints the progress, if it is due and work remains.
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
        // Ignore errors, because the results suffice.
        let _ = if self.is_terminal {
            self.is_drawn = true;
            write!(io::stderr(), "\r\x1b[K{text}")
        } else {
            writeln!(io::stderr(), "{text}")
        };
    }

    /// Clears the line for other output.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    /// Time until the next print.
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

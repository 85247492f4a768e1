//! Putting rows into the order of time.
//!
//! Rows come from several threads and processes, each in order, and may overtake each other on the
//! way. A window of the latest rows is held back and given on oldest first.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Row;

/// Rows that are held back: one that comes later than this many younger ones is drawn late.
const WINDOW: usize = 256;

/// The window.
#[derive(Debug)]
pub(super) struct Order {
    rows: BTreeMap<(Duration, u64), Row>,
    /// Keeps rows of the same time in the order they came in.
    pushed: u64,
}

impl Order {
    pub(super) fn new() -> Order {
        Order {
            rows: BTreeMap::new(),
            pushed: 0,
        }
    }

    /// Takes a row; gives the oldest one once the window is full.
    pub(super) fn push(&mut self, row: Row) -> Option<Row> {
        self.rows.insert((row.at(), self.pushed), row);
        self.pushed += 1;
        if self.rows.len() <= WINDOW {
            return None;
        }
        self.rows.pop_first().map(|(_, row)| row)
    }

    /// Gives the rest, oldest first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Row> + use<> {
        std::mem::take(&mut self.rows).into_values()
    }
}

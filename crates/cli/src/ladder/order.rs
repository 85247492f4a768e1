//! Sorts rows by time.
//!
//! Rows come from several threads and processes, each in order, and may overtake each other. A window holds the latest
//! rows and releases the oldest first.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Row;

/// Size of the window. A row that arrives after more than this many later ones is drawn out of order.
const WINDOW: usize = 256;

/// The window.
#[derive(Debug)]
pub(super) struct Order {
    rows: BTreeMap<(Duration, u64), Row>,
    /// Keeps rows of the same time in order of arrival.
    pushed: u64,
}

impl Order {
    pub(super) fn new() -> Order {
        Order {
            rows: BTreeMap::new(),
            pushed: 0,
        }
    }

    /// Accepts a row; returns the oldest one if the window is full.
    pub(super) fn push(&mut self, row: Row) -> Option<Row> {
        self.rows.insert((row.at(), self.pushed), row);
        self.pushed += 1;
        if self.rows.len() <= WINDOW {
            return None;
        }
        self.rows.pop_first().map(|(_, row)| row)
    }

    /// Returns the remaining rows, oldest first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Row> + use<> {
        std::mem::take(&mut self.rows).into_values()
    }
}

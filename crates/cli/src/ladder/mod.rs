//! Ladder diagrams: hosts as columns, messages as arrows between them, time downwards.
//!
//! Pure: takes rows in approximate time order and returns lines of text. Long runs of data packets are folded as they
//! arrive, so memory use is bounded.

mod canvas;
mod draw;
mod fold;
mod order;

use std::time::Duration;

use fold::Folder;
use order::Order;

use crate::terminal::{Paint, Theme};

/// Maximum number of columns; further hosts share the last one.
const MAX_LANES: usize = 12;
/// Maximum number of rows after folding; further rows are only counted.
const MAX_ROWS: usize = 10_000;
/// Name of the column that hosts share when there are too many.
const OTHERS: &str = "others";

/// A column's index, from [`Ladder::lane`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Lane(usize);

/// The contents of an arrow, which determine its colour and whether runs are folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Connection management.
    Handshake,
    /// Application data.
    Data,
    /// An acknowledgement.
    Ack,
    /// A refusal, a NAK or a broken packet.
    Failure,
}

impl From<Kind> for Paint {
    fn from(kind: Kind) -> Paint {
        match kind {
            Kind::Handshake => Paint::Handshake,
            Kind::Data => Paint::Data,
            Kind::Ack => Paint::Dim,
            Kind::Failure => Paint::Bad,
        }
    }
}

/// A message from one host to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Arrow {
    /// Time since the ladder's beginning.
    pub(crate) at: Duration,
    /// Sender.
    pub(crate) from: Lane,
    /// Receiver.
    pub(crate) to: Lane,
    /// Text on the arrow.
    pub(crate) label: String,
    /// Its contents.
    pub(crate) kind: Kind,
    /// Bytes of payload, for the sums of folded runs.
    pub(crate) payload_len: u64,
}

/// An event inside a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Local {
    /// Time since the ladder's beginning.
    pub(crate) at: Duration,
    /// Where.
    pub(crate) lane: Lane,
    /// Text beside the lane.
    pub(crate) label: String,
}

/// A row of the diagram.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Row {
    Arrow(Arrow),
    Local(Local),
    Fold(fold::Fold),
}

impl Row {
    fn at(&self) -> Duration {
        match self {
            Row::Arrow(arrow) => arrow.at,
            Row::Local(local) => local.at,
            Row::Fold(fold) => fold.at,
        }
    }
}

/// A diagram under construction.
#[derive(Debug)]
pub(crate) struct Ladder {
    lanes: Vec<String>,
    order: Order,
    folder: Folder,
    rows: Vec<Row>,
    omitted: u64,
}

impl Ladder {
    /// An empty diagram.
    pub(crate) fn new() -> Ladder {
        Ladder {
            lanes: Vec::new(),
            order: Order::new(),
            folder: Folder::new(),
            rows: Vec::new(),
            omitted: 0,
        }
    }

    /// The column with this name; a new one is added on the right.
    pub(crate) fn lane(&mut self, name: &str) -> Lane {
        if let Some(known) = self.lanes.iter().position(|lane| lane == name) {
            return Lane(known);
        }
        if self.lanes.len() < MAX_LANES {
            self.lanes.push(name.to_owned());
        } else if let Some(last) = self.lanes.last_mut() {
            *last = OTHERS.to_owned();
        }
        Lane(self.lanes.len() - 1)
    }

    /// Adds a message.
    pub(crate) fn arrow(&mut self, arrow: Arrow) {
        self.push(Row::Arrow(arrow));
    }

    /// Adds an event inside a host.
    pub(crate) fn local(&mut self, local: Local) {
        self.push(Row::Local(local));
    }

    fn push(&mut self, row: Row) {
        if let Some(row) = self.order.push(row) {
            let (rows, omitted) = (&mut self.rows, &mut self.omitted);
            self.folder.push(row, &mut |row| keep(rows, omitted, row));
        }
    }

    /// Draws the diagram; one string per line.
    pub(crate) fn finish(mut self, theme: &Theme) -> Vec<String> {
        let (rows, omitted) = (&mut self.rows, &mut self.omitted);
        for row in self.order.drain() {
            self.folder.push(row, &mut |row| keep(rows, omitted, row));
        }
        self.folder.finish(&mut |row| keep(rows, omitted, row));
        let mut lines = draw::draw(&self.lanes, &self.rows, theme);
        if self.omitted > 0 {
            lines.push(format!("{} more rows are not drawn", self.omitted));
        }
        lines
    }
}

/// Keeps a row if there is room for it, otherwise counts it.
fn keep(rows: &mut Vec<Row>, omitted: &mut u64, row: Row) {
    if rows.len() < MAX_ROWS {
        rows.push(row);
    } else {
        *omitted += 1;
    }
}

#[cfg(test)]
mod tests;

//! Folding long runs of traffic into one row each.
//!
//! Two stages in sequence. The first folds packets that go in one direction without interruption, such as the middle of
//! a large write. The second folds traffic back and forth between two hosts, such as a thousand pings, after showing
//! its pattern once.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Arrow, Kind, Lane, Row};

/// Rows shown before and after a folded one-way run.
const ONE_WAY: Keep = Keep { head: 2, tail: 1 };
/// Rows shown before and after a folded two-way run. One rping iteration has twelve rows.
const TWO_WAY: Keep = Keep { head: 12, tail: 3 };

#[derive(Debug, Clone, Copy)]
struct Keep {
    head: usize,
    tail: usize,
}

/// Packets in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) packets: u64,
    pub(super) payload_len: u64,
}

/// A run of packets, shown as one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fold {
    /// Time of the first packet.
    pub(super) at: Duration,
    /// The two lanes, left one first.
    pub(super) lanes: (Lane, Lane),
    /// From left to right.
    pub(super) forward: Count,
    /// From right to left.
    pub(super) backward: Count,
}

impl Fold {
    fn new(at: Duration, lanes: (Lane, Lane)) -> Fold {
        Fold {
            at,
            lanes,
            forward: Count::default(),
            backward: Count::default(),
        }
    }

    fn add(&mut self, row: &Row) {
        let (forward, backward) = match row {
            Row::Arrow(arrow) => {
                let count = Count {
                    packets: 1,
                    payload_len: arrow.payload_len,
                };
                if arrow.from <= arrow.to {
                    (count, Count::default())
                } else {
                    (Count::default(), count)
                }
            }
            Row::Fold(fold) => (fold.forward, fold.backward),
            Row::Local(_) => return,
        };
        for (sum, more) in [(&mut self.forward, forward), (&mut self.backward, backward)] {
            sum.packets = sum.packets.saturating_add(more.packets);
            sum.payload_len = sum.payload_len.saturating_add(more.payload_len);
        }
    }
}

/// Both stages.
#[derive(Debug)]
pub(super) struct Folder {
    one_way: Stage,
    two_way: Stage,
}

impl Folder {
    pub(super) fn new() -> Folder {
        Folder {
            one_way: Stage::new(ONE_WAY, one_way_key),
            two_way: Stage::new(TWO_WAY, two_way_key),
        }
    }

    /// Accepts a row and passes the final rows to `out`.
    pub(super) fn push(&mut self, row: Row, out: &mut dyn FnMut(Row)) {
        let two_way = &mut self.two_way;
        self.one_way.push(row, &mut |row| two_way.push(row, out));
    }

    /// Returns the rest.
    pub(super) fn finish(&mut self, out: &mut dyn FnMut(Row)) {
        let two_way = &mut self.two_way;
        self.one_way.end_run(&mut |row| two_way.push(row, out));
        self.two_way.end_run(out);
    }
}

/// The run that a row may belong to; `None` if it is always shown separately.
type Key = Option<(Lane, Lane)>;

fn one_way_key(row: &Row) -> Key {
    match row {
        Row::Arrow(arrow) if arrow.kind == Kind::Data => Some((arrow.from, arrow.to)),
        _ => None,
    }
}

fn two_way_key(row: &Row) -> Key {
    match row {
        Row::Arrow(arrow) if matches!(arrow.kind, Kind::Data | Kind::Ack) => Some(ordered(arrow)),
        Row::Fold(fold) => Some(fold.lanes),
        _ => None,
    }
}

fn ordered(arrow: &Arrow) -> (Lane, Lane) {
    (arrow.from.min(arrow.to), arrow.from.max(arrow.to))
}

/// Shows a run's first rows, folds the middle, and shows its last rows.
#[derive(Debug)]
struct Stage {
    keep: Keep,
    key: fn(&Row) -> Key,
    run: Key,
    seen: usize,
    /// Candidates for the run's last rows; never more than `keep.tail`.
    tail: VecDeque<Row>,
    /// The first row to drop out of the tail; shown if it stays the only one.
    first_hidden: Option<Row>,
    fold: Option<Fold>,
}

impl Stage {
    fn new(keep: Keep, key: fn(&Row) -> Key) -> Stage {
        Stage {
            keep,
            key,
            run: None,
            seen: 0,
            tail: VecDeque::with_capacity(keep.tail + 1),
            first_hidden: None,
            fold: None,
        }
    }

    fn push(&mut self, row: Row, out: &mut dyn FnMut(Row)) {
        let key = (self.key)(&row);
        if key != self.run {
            self.end_run(out);
            self.run = key;
        }
        let Some(lanes) = key else {
            return out(row);
        };
        if self.seen < self.keep.head {
            self.seen += 1;
            return out(row);
        }
        self.tail.push_back(row);
        if self.tail.len() > self.keep.tail
            && let Some(row) = self.tail.pop_front()
        {
            self.hide(row, lanes);
        }
    }

    fn hide(&mut self, row: Row, lanes: (Lane, Lane)) {
        match (&mut self.fold, self.first_hidden.take()) {
            (Some(fold), _) => fold.add(&row),
            (None, None) => self.first_hidden = Some(row),
            (None, Some(first)) => {
                let lanes = (lanes.0.min(lanes.1), lanes.0.max(lanes.1));
                let mut fold = Fold::new(first.at(), lanes);
                fold.add(&first);
                fold.add(&row);
                self.fold = Some(fold);
            }
        }
    }

    fn end_run(&mut self, out: &mut dyn FnMut(Row)) {
        if let Some(row) = self.first_hidden.take() {
            out(row);
        }
        if let Some(fold) = self.fold.take() {
            out(Row::Fold(fold));
        }
        for row in self.tail.drain(..) {
            out(row);
        }
        self.run = None;
        self.seen = 0;
    }
}

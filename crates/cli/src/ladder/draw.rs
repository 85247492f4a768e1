//! Draws rows: positions of lanes, and the shapes of arrows, events and folds.

use std::time::Duration;

use super::canvas::{Canvas, fit};
use super::fold::{Count, Fold};
use super::{Arrow, Lane, Local, Row};
use crate::terminal::{Paint, Theme};
use crate::text::bytes;

/// Columns before the first lane, for the time in seconds.
const TIME_WIDTH: usize = 12;
/// Minimum columns between lanes, even if that exceeds a narrow terminal.
const MIN_SPACING: usize = 26;
/// Minimum columns of an arrow's shaft beside the label.
const SHAFT: usize = 6;

/// Draws the lanes' names and the rows; one string per line.
pub(super) fn draw(lanes: &[String], rows: &[Row], theme: &Theme) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let layout = Layout::new(lanes.len(), theme);
    let mut lines = vec![layout.heading(lanes)];
    lines.extend(rows.iter().map(|row| layout.row(row)));
    lines
}

struct Layout<'a> {
    lanes: usize,
    spacing: usize,
    glyphs: Glyphs,
    theme: &'a Theme,
}

struct Glyphs {
    lane: char,
    shaft: char,
    crossing: char,
    folded: char,
    right: char,
    left: char,
    event: char,
    to_right: &'static str,
    to_left: &'static str,
    self_arrow: &'static str,
}

const UNICODE: Glyphs = Glyphs {
    lane: '│',
    shaft: '─',
    crossing: '┼',
    folded: '┄',
    right: '▶',
    left: '◀',
    event: '●',
    to_right: "→",
    to_left: "←",
    self_arrow: "↺",
};

const ASCII: Glyphs = Glyphs {
    lane: '|',
    shaft: '-',
    crossing: '+',
    folded: '.',
    right: '>',
    left: '<',
    event: '*',
    to_right: "->",
    to_left: "<-",
    self_arrow: "<>",
};

impl Layout<'_> {
    fn new(lanes: usize, theme: &Theme) -> Layout<'_> {
        let room = theme.width.saturating_sub(TIME_WIDTH + 1);
        let spacing = room / lanes.saturating_sub(1).max(1);
        Layout {
            lanes,
            spacing: spacing.max(MIN_SPACING),
            glyphs: if theme.unicode { UNICODE } else { ASCII },
            theme,
        }
    }

    fn column(&self, lane: Lane) -> usize {
        TIME_WIDTH + lane.0 * self.spacing
    }

    fn is_last(&self, lane: Lane) -> bool {
        lane.0 > 0 && lane.0 + 1 == self.lanes
    }

    /// Names above their lanes: the first is left-aligned, the last right-aligned, others centred.
    fn heading(&self, names: &[String]) -> String {
        let mut canvas = Canvas::default();
        canvas.put(0, Paint::Dim, &format!("{:>10}", "seconds"));
        for (i, name) in names.iter().enumerate() {
            let lane = Lane(i);
            // A name may extend to half the distance to its neighbour.
            let name = fit(name, self.spacing / 2 - 1, self.theme);
            let len = name.chars().count();
            let column = self.column(lane);
            let start = if i == 0 {
                column
            } else if self.is_last(lane) {
                (column + 1).saturating_sub(len)
            } else {
                column.saturating_sub(len / 2)
            };
            canvas.put(start, Paint::Bold, &name);
        }
        canvas.finish(self.theme)
    }

    fn row(&self, row: &Row) -> String {
        match row {
            Row::Arrow(arrow) if arrow.from == arrow.to => self.event(
                arrow.at,
                arrow.from,
                &format!("{} {}", self.glyphs.self_arrow, arrow.label),
                arrow.kind.into(),
            ),
            Row::Arrow(arrow) => self.arrow(arrow),
            Row::Local(Local { at, lane, label }) => self.event(*at, *lane, label, Paint::Event),
            Row::Fold(fold) => self.fold(fold),
        }
    }

    /// A line with the time and empty lanes.
    fn blank(&self, at: Duration) -> Canvas {
        let mut canvas = Canvas::default();
        let time = format!("{:>3}.{:06}", at.as_secs(), at.subsec_micros());
        canvas.put(0, Paint::Dim, &time);
        for lane in 0..self.lanes {
            canvas.cell(self.column(Lane(lane)), Paint::Dim, self.glyphs.lane);
        }
        canvas
    }

    fn arrow(&self, arrow: &Arrow) -> String {
        let mut canvas = self.blank(arrow.at);
        let paint = Paint::from(arrow.kind);
        let left = self.column(arrow.from.min(arrow.to));
        let right = self.column(arrow.from.max(arrow.to));
        self.shaft(&mut canvas, left, right, paint, self.glyphs.shaft);
        let label = fit(&arrow.label, right - left - 1 - SHAFT, self.theme);
        let label = format!(" {label} ");
        if arrow.from < arrow.to {
            canvas.cell(right - 1, paint, self.glyphs.right);
            canvas.put(left + 3, paint, &label);
        } else {
            canvas.cell(left + 1, paint, self.glyphs.left);
            canvas.put(right - 2 - label.chars().count(), paint, &label);
        }
        canvas.finish(self.theme)
    }

    fn shaft(&self, canvas: &mut Canvas, left: usize, right: usize, paint: Paint, glyph: char) {
        for column in left + 1..right {
            canvas.cell(column, paint, glyph);
        }
        for lane in 0..self.lanes {
            let column = self.column(Lane(lane));
            if left < column && column < right {
                canvas.cell(column, paint, self.glyphs.crossing);
            }
        }
    }

    fn event(&self, at: Duration, lane: Lane, label: &str, paint: Paint) -> String {
        let mut canvas = self.blank(at);
        let column = self.column(lane);
        canvas.cell(column, paint, self.glyphs.event);
        let label = fit(label, self.spacing - 4, self.theme);
        if self.is_last(lane) {
            canvas.put(column - 1 - label.chars().count(), paint, &label);
        } else {
            canvas.put(column + 2, paint, &label);
        }
        canvas.finish(self.theme)
    }

    fn fold(&self, fold: &Fold) -> String {
        let mut canvas = self.blank(fold.at);
        let (left, right) = (self.column(fold.lanes.0), self.column(fold.lanes.1));
        if left < right {
            self.shaft(&mut canvas, left, right, Paint::Dim, self.glyphs.folded);
        }
        let room = right.saturating_sub(left).max(self.spacing) - 1 - SHAFT;
        let long = self.fold_label(fold, |count, arrow| {
            format!(
                "{} packets, {} {arrow}",
                count.packets,
                bytes(count.payload_len)
            )
        });
        let label = if long.chars().count() <= room {
            long
        } else {
            self.fold_label(fold, |count, arrow| {
                format!("{arrow} {}, {}", count.packets, bytes(count.payload_len))
            })
        };
        let label = format!(" {} ", fit(&label, room, self.theme));
        canvas.put(left + 3, Paint::Plain, &label);
        canvas.finish(self.theme)
    }

    /// The label of a fold, with each direction that has packets.
    fn fold_label(&self, fold: &Fold, text: impl Fn(Count, &str) -> String) -> String {
        let ways = [
            (fold.forward, self.glyphs.to_right),
            (fold.backward, self.glyphs.to_left),
        ];
        let texts: Vec<_> = ways
            .into_iter()
            .filter(|(count, _)| count.packets > 0)
            .map(|(count, arrow)| text(count, arrow))
            .collect();
        format!("{} {}", self.theme.pick("…", "..."), texts.join(", "))
    }
}

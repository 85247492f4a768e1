//! One line of characters, each with its colour.

use crate::terminal::{Paint, Theme};

/// A line that can be written at any column. Every character counts as one column.
#[derive(Debug, Default)]
pub(super) struct Canvas {
    cells: Vec<(char, Paint)>,
}

impl Canvas {
    pub(super) fn put(&mut self, column: usize, paint: Paint, text: &str) {
        for (i, character) in text.chars().enumerate() {
            self.cell(column + i, paint, character);
        }
    }

    pub(super) fn cell(&mut self, column: usize, paint: Paint, character: char) {
        if self.cells.len() <= column {
            self.cells.resize(column + 1, (' ', Paint::Plain));
        }
        if let Some(cell) = self.cells.get_mut(column) {
            *cell = (character, paint);
        }
    }

    /// The line, without trailing spaces.
    pub(super) fn finish(self, theme: &Theme) -> String {
        let mut line = String::new();
        let mut span = String::new();
        let mut span_paint = Paint::Plain;
        let used = self
            .cells
            .iter()
            .rposition(|cell| cell.0 != ' ')
            .map_or(0, |last| last + 1);
        for (character, paint) in self.cells.into_iter().take(used) {
            if paint != span_paint {
                line.push_str(&theme.paint(span_paint, &span));
                span.clear();
                span_paint = paint;
            }
            span.push(character);
        }
        line.push_str(&theme.paint(span_paint, &span));
        line
    }
}

/// Fits `text` into `width` columns: makes control characters visible and marks a truncated end.
pub(super) fn fit(text: &str, width: usize, theme: &Theme) -> String {
    let mut fitted: String = text
        .chars()
        .map(|c| match c {
            c if c.is_control() => '.',
            c if !theme.unicode && !c.is_ascii() => '?',
            c => c,
        })
        .collect();
    if fitted.chars().count() > width {
        let mark = theme.pick("…", "~");
        fitted = fitted.chars().take(width.saturating_sub(1)).collect();
        if width > 0 {
            fitted.push_str(mark);
        }
    }
    fitted
}

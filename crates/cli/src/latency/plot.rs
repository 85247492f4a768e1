//! A histogram for the terminal.

use super::{Latencies, time};
use crate::terminal::{Paint, Theme};

/// Maximum number of rows of a plot.
const MAX_ROWS: usize = 12;
/// The longest bar, in columns.
const BAR_WIDTH: usize = 50;
/// Columns beside the bar: two times, a lane and the count.
const LABEL_WIDTH: usize = 40;
/// Percentile at which the last row starts; it combines all slower times, so that one outlier does not stretch the
/// axis.
const TAIL_PERCENTILE: f64 = 99.9;

/// The times as bars. Each row is a range, and the bounds grow by a constant factor.
pub(crate) fn plot(latencies: &Latencies, theme: &Theme) -> Vec<String> {
    let ns = &latencies.ns;
    if ns.len() < 2 {
        return Vec::new();
    }
    let (min, max) = (ns.min().max(1), ns.max());
    let rows = rows(min, ns.value_at_percentile(TAIL_PERCENTILE).max(min));
    let mut bounds: Vec<u64> = rows.into_iter().collect();
    if bounds.last().is_none_or(|&last| last <= max) {
        bounds.push(max + 1);
    }
    let counts: Vec<u64> = bounds
        .windows(2)
        .map(|pair| match pair {
            // Our ranges are half open; the histogram's are closed.
            &[low, high] => ns.count_between(low, high - 1),
            _ => 0,
        })
        .collect();
    let most = counts.iter().copied().max().unwrap_or(1).max(1);
    let width = BAR_WIDTH
        .min(theme.width.saturating_sub(LABEL_WIDTH))
        .max(1);
    bounds
        .windows(2)
        .zip(&counts)
        .map(|(pair, &count)| {
            let (low, high) = match pair {
                &[low, high] => (low, high),
                _ => (0, 0),
            };
            let range = format!(
                "{:>9} {} {:>9}",
                time(low as f64),
                theme.pick("–", "-"),
                time(high as f64)
            );
            let bar = theme.paint(Paint::Data, &bar(count, most, width, theme));
            format!(
                "{} {}{bar} {count}",
                theme.paint(Paint::Dim, &range),
                theme.pick("│", "|")
            )
        })
        .collect()
}

/// Bounds starting at `min`, growing by a constant factor, the last above `end`.
fn rows(min: u64, end: u64) -> Vec<u64> {
    let ratio = (end as f64 + 1.0) / min as f64;
    let factor = ratio.powf(1.0 / (MAX_ROWS - 1) as f64);
    let mut bounds = vec![min];
    for row in 1..MAX_ROWS {
        let bound = (min as f64 * factor.powi(row as i32)).ceil() as u64;
        if bounds.last().is_none_or(|&last| bound > last) {
            bounds.push(bound);
        }
    }
    bounds
}

/// A bar in eighths of a column, or in whole columns without Unicode; never empty for a nonzero count.
fn bar(count: u64, most: u64, width: usize, theme: &Theme) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    if count == 0 {
        return String::new();
    }
    let share = count as f64 / most as f64;
    if !theme.unicode {
        return "#".repeat(((share * width as f64).round() as usize).max(1));
    }
    let eighths = ((share * (width * 8) as f64).round() as usize).max(1);
    let mut bar = "█".repeat(eighths / 8);
    if let Some(&part) = EIGHTHS.get(eighths % 8).filter(|&&part| part != ' ') {
        bar.push(part);
    }
    bar
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const THEME: Theme = Theme {
        width: 80,
        color: false,
        unicode: false,
    };

    fn counts(lines: &[String]) -> Vec<u64> {
        lines
            .iter()
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect()
    }

    #[test]
    fn the_fullest_row_has_the_longest_bar() {
        let mut latencies = Latencies::new();
        for us in [10, 11, 100, 100, 100, 100, 1000] {
            latencies.record(Duration::from_micros(us));
        }
        let lines = plot(&latencies, &THEME);
        let longest = lines
            .iter()
            .max_by_key(|line| line.matches('#').count())
            .unwrap();
        assert!(longest.ends_with(" 4"), "{lines:#?}");
        assert!(lines.iter().all(|line| line.chars().count() <= THEME.width));
    }

    #[test]
    fn a_single_time_is_not_a_distribution() {
        let mut latencies = Latencies::new();
        latencies.record(Duration::from_micros(1));
        assert!(plot(&latencies, &THEME).is_empty());
    }

    proptest! {
        #[test]
        fn every_time_is_in_one_row(times in prop::collection::vec(0_u64..2_000_000_000, 2..300)) {
            let mut latencies = Latencies::new();
            for &ns in &times {
                latencies.record(Duration::from_nanos(ns));
            }
            let lines = plot(&latencies, &THEME);
            // Times that agree in three digits share a histogram cell, which may span a bound.
            prop_assert!(counts(&lines).iter().sum::<u64>() >= times.len() as u64);
            prop_assert!(lines.len() <= MAX_ROWS + 1);
        }
    }
}

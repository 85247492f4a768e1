//! Compares a subject with its yardstick, round by round.

use std::io;

use serde_json::{Value, json};

use crate::latency::{Latencies, plot, time};
use crate::output::Output;
use crate::terminal::Paint;

/// A subject and its yardstick, measured in turns, so that disturbances affect both.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) subject: String,
    pub(super) yardstick: String,
    /// Both results of each round, in the same unit.
    rounds: Vec<(f64, f64)>,
}

impl Comparison {
    pub(super) fn new(subject: &str, yardstick: &str) -> Comparison {
        Comparison {
            subject: subject.to_owned(),
            yardstick: yardstick.to_owned(),
            rounds: Vec::new(),
        }
    }

    /// Adds a round and returns its ratio.
    pub(super) fn add(&mut self, subject: f64, yardstick: f64) -> f64 {
        self.rounds.push((subject, yardstick));
        subject / yardstick
    }

    /// The median of the rounds' ratios.
    pub(super) fn ratio(&self) -> f64 {
        median(self.rounds.iter().map(|(a, b)| a / b))
    }

    /// The median of the subject's results.
    pub(super) fn subject_median(&self) -> f64 {
        median(self.rounds.iter().map(|(subject, _)| *subject))
    }

    /// The median of the yardstick's results.
    pub(super) fn yardstick_median(&self) -> f64 {
        median(self.rounds.iter().map(|(_, yardstick)| *yardstick))
    }

    /// Prints the ratio.
    ///
    /// # Errors
    ///
    /// Errors of the output.
    pub(super) fn tell(&self, output: &mut Output) -> io::Result<()> {
        if output.json {
            return output.object(&self.json());
        }
        let (ratio, times) = (self.ratio(), output.theme.pick("×", "x"));
        let text = format!(
            "  {:<24} {ratio:>6.2} {times} {}",
            self.subject, self.yardstick
        );
        output.line(&text)
    }

    fn json(&self) -> Value {
        let each = self.rounds.iter().map(|(subject, yardstick)| {
            json!({
                "subject": rounded(*subject),
                "yardstick": rounded(*yardstick),
                "ratio": rounded(subject / yardstick),
            })
        });
        json!({
            "type": "ratio",
            "subject": self.subject,
            "yardstick": self.yardstick,
            "ratio": rounded(self.ratio()),
            "rounds": each.collect::<Vec<_>>(),
        })
    }
}

/// Prints a distribution of times: its percentiles and, for people, its shape.
pub(super) fn tell_latencies(
    name: &str,
    latencies: &Latencies,
    shape: bool,
    output: &mut Output,
) -> io::Result<()> {
    if output.json {
        return output.object(&json!({
            "type": "times",
            "of": name,
            "times": latencies.json(),
        }));
    }
    let name = output.theme.paint(Paint::Bold, name);
    output.line(&format!("\n{name}"))?;
    if let Some(summary) = latencies.summary() {
        output.line(&format!("  {summary}"))?;
    }
    let theme = output.theme;
    for line in plot(latencies, &theme).into_iter().filter(|_| shape) {
        output.line(&line)?;
    }
    Ok(())
}

/// Prints the times of a round while others follow.
pub(super) fn tell_round(
    round: u32,
    rounds: u32,
    measured: &[(&str, f64)],
    output: &mut Output,
) -> io::Result<()> {
    let parts = measured.iter().map(|(name, value)| {
        if name.starts_with("ratio") {
            format!("{name} {value:.2}")
        } else {
            format!("{name} {}", time(*value))
        }
    });
    let text = parts.collect::<Vec<_>>().join(", ");
    progress(&format!("round {}/{rounds}: {text}", round + 1), output)
}

/// Prints progress immediately.
pub(super) fn progress(text: &str, output: &mut Output) -> io::Result<()> {
    if output.json {
        output.object(&json!({ "type": "progress", "text": text }))?;
    } else {
        let text = output.theme.paint(Paint::Dim, text);
        output.line(&text)?;
    }
    output.flush()
}

/// The median; the lower of the two middle values for an even number; 0 for none.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len().saturating_sub(1) / 2;
    values.get(middle).copied().unwrap_or_default()
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_not_the_ratio_of_medians() {
        let mut comparison = Comparison::new("a", "b");
        // A disturbed round is slow on both sides.
        for (subject, yardstick) in [(20.0, 10.0), (2000.0, 500.0), (22.0, 10.0)] {
            comparison.add(subject, yardstick);
        }
        assert_eq!(comparison.ratio(), 2.2);
    }

    #[test]
    fn the_median_of_nothing_is_zero() {
        assert_eq!(median([].into_iter()), 0.0);
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
    }
}

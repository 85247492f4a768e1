//! Round-trip times: collected in bounded memory, printed as percentiles.

mod plot;

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

pub(crate) use plot::plot;

/// Maximum time recorded; longer ones count as this.
const MAX_NS: u64 = 600_000_000_000;
/// Significant decimal digits of a recorded time.
const SIGNIFICANT_DIGITS: u8 = 3;
/// The percentiles to print, with their names in text and JSON.
const PERCENTILES: [(f64, &str, &str); 4] = [
    (50.0, "p50", "p50_us"),
    (90.0, "p90", "p90_us"),
    (99.0, "p99", "p99_us"),
    (99.9, "p99.9", "p99_9_us"),
];

/// A histogram of measured times.
#[derive(Debug, Clone)]
pub(crate) struct Latencies {
    ns: Histogram<u64>,
}

impl Latencies {
    /// Creates an empty histogram.
    pub(crate) fn new() -> Latencies {
        let ns = Histogram::new_with_bounds(1, MAX_NS, SIGNIFICANT_DIGITS);
        Latencies {
            // The bounds are constants, and valid: 1 ≤ low, 2·low ≤ high, digits ≤ 5.
            ns: ns.expect("the histogram's bounds are valid"),
        }
    }

    /// Adds a time; one beyond ten minutes counts as ten minutes.
    pub(crate) fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.ns.saturating_record(ns.clamp(1, MAX_NS));
    }

    /// Adds the times of another.
    pub(crate) fn merge(&mut self, other: &Latencies) {
        // Both have the same bounds, so this cannot fail.
        let _ = self.ns.add(&other.ns);
    }

    /// The percentile, in nanoseconds; 0 without times.
    pub(crate) fn at(&self, percent: f64) -> f64 {
        self.ns.value_at_percentile(percent) as f64
    }

    /// The median, in nanoseconds; 0 without times.
    pub(crate) fn median_ns(&self) -> f64 {
        self.at(50.0)
    }

    /// Number of times added.
    pub(crate) fn count(&self) -> u64 {
        self.ns.len()
    }

    /// One line of text: `min 9.1 µs, p50 …, max …, mean …`; `None` without times.
    pub(crate) fn summary(&self) -> Option<String> {
        if self.ns.is_empty() {
            return None;
        }
        let mut parts = vec![format!("min {}", time(self.ns.min() as f64))];
        for (percentile, name, _) in PERCENTILES {
            let ns = self.ns.value_at_percentile(percentile);
            parts.push(format!("{name} {}", time(ns as f64)));
        }
        parts.push(format!("max {}", time(self.ns.max() as f64)));
        parts.push(format!("mean {}", time(self.ns.mean())));
        Some(parts.join(", "))
    }

    /// The same as a JSON object, in microseconds; all values are null without times.
    pub(crate) fn json(&self) -> Value {
        let us = |ns: f64| (!self.ns.is_empty()).then_some((ns / 10.0).round() / 100.0);
        let mut object = json!({
            "count": self.ns.len(),
            "min_us": us(self.ns.min() as f64),
            "max_us": us(self.ns.max() as f64),
            "mean_us": us(self.ns.mean()),
        });
        for (percentile, _, name) in PERCENTILES {
            object[name] = json!(us(self.ns.value_at_percentile(percentile) as f64));
        }
        object
    }
}

/// A time in microseconds, milliseconds or seconds, with about three digits.
pub(crate) fn time(ns: f64) -> String {
    let (value, unit) = if ns < 1e6 {
        (ns / 1e3, "µs")
    } else if ns < 1e9 {
        (ns / 1e6, "ms")
    } else {
        (ns / 1e9, "s")
    };
    let digits = match value {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(us: impl IntoIterator<Item = u64>) -> Latencies {
        let mut latencies = Latencies::new();
        for us in us {
            latencies.record(Duration::from_micros(us));
        }
        latencies
    }

    #[test]
    fn percentiles_of_a_thousand_known_times_are_right_to_three_digits() {
        let json = of(1..=1000).json();
        assert_eq!(json["count"], 1000);
        for (name, expected) in [
            ("min_us", 1.0),
            ("p50_us", 500.0),
            ("p90_us", 900.0),
            ("p99_us", 990.0),
            ("p99_9_us", 999.0),
            ("max_us", 1000.0),
            ("mean_us", 500.5),
        ] {
            let got = json[name].as_f64().unwrap();
            assert!((got / expected - 1.0).abs() < 2e-3, "{name}: {got}");
        }
    }

    #[test]
    fn the_summary_names_every_figure_with_its_unit() {
        let summary = of([5, 5, 5, 20_000]).summary().unwrap();
        assert!(
            summary.starts_with("min 5.00 µs, p50 5.00 µs, "),
            "{summary}"
        );
        assert!(summary.contains("max 20.0 ms"), "{summary}");
    }

    #[test]
    fn an_empty_measurement_is_reported_as_empty() {
        assert_eq!(of([]).summary(), None);
        assert!(of([]).json()["p50_us"].is_null());
    }

    #[test]
    fn absurd_times_are_clamped_to_the_bounds() {
        let mut latencies = of([]);
        latencies.record(Duration::MAX);
        latencies.record(Duration::ZERO);
        assert_eq!(latencies.count(), 2);
    }

    #[test]
    fn times_take_the_unit_that_suits_them() {
        assert_eq!(time(9_123.0), "9.12 µs");
        assert_eq!(time(123_456.0), "123 µs");
        assert_eq!(time(12_345_678.0), "12.3 ms");
        assert_eq!(time(2_000_000_000.0), "2.00 s");
    }
}

//! Plots as SVG files, made only of lines, rectangles and text.

use std::fmt::Write;

use crate::latency::{Latencies, time};

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 420.0;
/// Where the axes meet the border.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 50.0;
/// Colours of successive series, distinguishable for colour-blind readers.
const COLORS: [&str; 5] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"];
/// Percentiles at which a distribution is drawn.
const STEPS: u32 = 400;
/// Ticks of a logarithmic axis, from a microsecond to ten seconds.
const TICKS: [f64; 22] = [
    1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8, 2e8, 5e8, 1e9,
    2e9, 5e9, 1e10,
];

/// Cumulative distributions of times, on a logarithmic axis.
pub(super) fn distributions(title: &str, series: &[(&str, &Latencies)]) -> String {
    let ends = series.iter().flat_map(|(_, of)| [of.at(0.0), of.at(99.9)]);
    let (low, high) = ends.fold((f64::MAX, 1.0_f64), |(low, high), ns| {
        (low.min(ns), high.max(ns))
    });
    let (low, high) = (low.clamp(1.0, high) * 0.9, high * 1.1);
    let across = |ns: f64| {
        let share = (ns.clamp(low, high) / low).ln() / (high / low).ln();
        LEFT + share * (WIDTH - LEFT - RIGHT)
    };
    let up = |share: f64| HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
    let mut svg = Svg::new(title);
    for tick in TICKS.into_iter().filter(|tick| (low..=high).contains(tick)) {
        svg.line((across(tick), up(0.0)), (across(tick), up(1.0)), "#ddd");
        svg.text(
            (across(tick), HEIGHT - BOTTOM + 18.0),
            "middle",
            &time(tick),
        );
    }
    for percent in [0.0, 50.0, 90.0, 99.0] {
        let height = up(percent / 100.0);
        svg.line((LEFT, height), (WIDTH - RIGHT, height), "#ddd");
        let label = format!("{percent:.0} %");
        svg.text((LEFT - 8.0, height + 4.0), "end", &label);
    }
    for (row, ((name, of), color)) in series.iter().zip(COLORS.iter().cycle()).enumerate() {
        let points = (0..=STEPS).map(|step| {
            let percent = 99.9 * f64::from(step) / f64::from(STEPS);
            (across(of.at(percent)), up(percent / 100.0))
        });
        svg.path(points, color);
        svg.legend(row, name, color);
    }
    svg.finish()
}

/// Horizontal bars, each with its name and its value in the unit of `scale`.
pub(super) fn bars(title: &str, bars: &[(String, f64)], scale: impl Fn(f64) -> f64) -> String {
    const LABEL: f64 = 180.0;
    const VALUE: f64 = 80.0;
    let most = bars.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let room = WIDTH - LEFT - LABEL - VALUE;
    let step = (HEIGHT - TOP - BOTTOM) / bars.len().max(1) as f64;
    let mut svg = Svg::new(title);
    for (row, ((name, value), color)) in bars.iter().zip(COLORS.iter().cycle()).enumerate() {
        let top = TOP + row as f64 * step;
        let width = value / most.max(f64::MIN_POSITIVE) * room;
        let middle = top + step / 2.0;
        svg.text((LEFT + LABEL - 10.0, middle + 4.0), "end", name);
        svg.rectangle(
            (LEFT + LABEL, top + step * 0.15),
            (width, step * 0.7),
            color,
        );
        let value = format!("{:.2}", scale(*value));
        svg.text((LEFT + LABEL + width + 6.0, middle + 4.0), "start", &value);
    }
    svg.finish()
}

/// A picture under construction. Writing to a string cannot fail.
struct Svg {
    text: String,
}

impl Svg {
    fn new(title: &str) -> Svg {
        let mut svg = Svg {
            text: format!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
                 font-family=\"sans-serif\" font-size=\"12\">\n\
                 <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
            ),
        };
        svg.text((WIDTH / 2.0, 24.0), "middle", title);
        svg
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), color: &str) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.text,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{color}\"/>"
        );
    }

    fn path(&mut self, points: impl Iterator<Item = (f64, f64)>, color: &str) {
        let points = points.fold(String::new(), |mut text, (x, y)| {
            let _ = write!(text, "{x:.1},{y:.1} ");
            text
        });
        let points = points.trim_end();
        let _ = writeln!(
            self.text,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>"
        );
    }

    fn rectangle(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), color: &str) {
        let _ = writeln!(
            self.text,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{color}\"/>"
        );
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            self.text,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn legend(&mut self, row: usize, name: &str, color: &str) {
        let (x, y) = (
            WIDTH - RIGHT - 180.0,
            HEIGHT - BOTTOM - 20.0 - 18.0 * row as f64,
        );
        self.rectangle((x, y - 9.0), (10.0, 10.0), color);
        self.text((x + 16.0, y), "start", name);
    }

    fn finish(mut self) -> String {
        self.text += "</svg>\n";
        self.text
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn numbers<'a>(svg: &'a str, attribute: &str) -> Vec<f64> {
        let pieces: Vec<&'a str> = svg.split(&format!(" {attribute}=\"")).skip(1).collect();
        pieces
            .iter()
            .filter_map(|piece| piece.split('"').next()?.parse().ok())
            .collect()
    }

    #[test]
    fn a_distribution_rises_to_the_right_and_stays_inside() {
        let mut latencies = Latencies::new();
        for us in 1..=1000 {
            latencies.record(Duration::from_micros(us));
        }
        let svg = distributions("a & b", &[("series", &latencies)]);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &amp; b"), "{svg}");
        let points = svg.split("points=\"").nth(1).unwrap();
        let points: Vec<(f64, f64)> = points
            .split('"')
            .next()
            .unwrap()
            .split(' ')
            .map(|point| {
                let (x, y) = point.split_once(',').unwrap();
                (x.parse().unwrap(), y.parse().unwrap())
            })
            .collect();
        assert_eq!(points.len(), STEPS as usize + 1);
        for pair in points.windows(2) {
            assert!(pair[1].0 >= pair[0].0 && pair[1].1 <= pair[0].1, "{pair:?}");
        }
        for (x, y) in points {
            assert!((LEFT..=WIDTH).contains(&x) && (0.0..=HEIGHT).contains(&y));
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let values = [("one".to_owned(), 1.0), ("four".to_owned(), 4.0)];
        let svg = bars("bars", &values, |value| value * 2.0);
        let widths = numbers(&svg, "width");
        // The first one is the background.
        assert!((widths[2] / widths[1] - 4.0).abs() < 0.01, "{widths:?}");
        assert!(svg.contains(">8.00<"), "the value is scaled: {svg}");
    }

    #[test]
    fn an_empty_measurement_is_drawn_without_invalid_numbers() {
        let empty = Latencies::new();
        let svg = distributions("empty", &[("empty", &empty)]) + &bars("empty", &[], |v| v);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

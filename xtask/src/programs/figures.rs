//! What programs measure, from their output.

use std::fmt;

/// A time or a rate that a program has measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    /// What it is of: a size, a test, or a statistic. Empty if the program measures one thing.
    pub(super) what: String,
    pub(super) value: f64,
    pub(super) unit: Unit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Microseconds,
    /// 10^6 bytes a second, or 2^20 bytes a second for programs that call these MB/s.
    MegabytesPerSecond,
}

impl Unit {
    const ALL: [Self; 2] = [Self::Microseconds, Self::MegabytesPerSecond];

    fn text(self) -> &'static str {
        match self {
            Self::Microseconds => "µs",
            Self::MegabytesPerSecond => "MB/s",
        }
    }

    pub(super) fn of(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.text() == text)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.text())
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.value < 10.0 { 2 } else { 0 };
        write!(formatter, "{:.digits$} {}", self.value, self.unit)?;
        match self.what.as_str() {
            "" => Ok(()),
            what => write!(formatter, " ({what})"),
        }
    }
}

impl Figure {
    fn new(what: &str, value: f64, unit: Unit) -> Self {
        let what = what.to_owned();
        Self { what, value, unit }
    }

    /// How much worse this is than the same figure of another: times as slow.
    pub(super) fn ratio(&self, other: &Self) -> f64 {
        match self.unit {
            Unit::Microseconds => self.value / other.value,
            Unit::MegabytesPerSecond => other.value / self.value,
        }
    }
}

/// What a program has measured. Empty if it measures nothing that is known here.
pub(super) fn of(said: &str) -> Vec<Figure> {
    let all = [ucx, libfabric, perftest, qperf, fio];
    let mut found = all.iter().map(|read| read(said));
    found.find(|found| !found.is_empty()).unwrap_or_default()
}

/// The last line of `ucx_perftest`: iterations; the time of an operation, as median, average and overall average;
/// MB/s and messages/s, each as average and overall average.
fn ucx(said: &str) -> Vec<Figure> {
    let mut lines = said.lines().map(numbers);
    let Some(line) = lines.find(|line| line.first() == Some(&"Final:")) else {
        return Vec::new();
    };
    let columns = [
        ("median", 2, Unit::Microseconds),
        ("mean", 4, Unit::Microseconds),
        ("", 6, Unit::MegabytesPerSecond),
    ];
    let read = |(what, at, unit): (&str, usize, Unit)| {
        Some(Figure::new(what, line.get(at)?.parse().ok()?, unit))
    };
    columns.into_iter().filter_map(read).collect()
}

/// The lines of `fi_pingpong` for the smallest and the largest size.
fn libfabric(said: &str) -> Vec<Figure> {
    if !said.contains("usec/xfer") {
        return Vec::new();
    }
    let line = |line: &str| {
        let words = numbers(line);
        let time = words.get(6)?.parse().ok()?;
        Some(Figure::new(words.first()?, time, Unit::Microseconds))
    };
    let mut results: Vec<Figure> = said.lines().filter_map(line).collect();
    if results.len() > 2 {
        results.drain(1..results.len() - 1);
    }
    results
}

/// The last line of perftest's table: the typical time, or the average rate.
fn perftest(said: &str) -> Vec<Figure> {
    let (column, unit) = match said {
        said if said.contains("t_typical[usec]") => (4, Unit::Microseconds),
        said if said.contains("BW average[MB/sec]") => (3, Unit::MegabytesPerSecond),
        _ => return Vec::new(),
    };
    let line = |line: &str| {
        let words = numbers(line);
        words.first()?.parse::<u64>().ok()?;
        Some(Figure::new("", words.get(column)?.parse().ok()?, unit))
    };
    said.lines().rev().find_map(line).into_iter().collect()
}

/// Each test of qperf: its name and a colon, then a line `latency = 24.1 us` or `bw = 3.08 GB/sec`.
fn qperf(said: &str) -> Vec<Figure> {
    let mut test = "";
    let mut figures = Vec::new();
    for line in said.lines() {
        match numbers(line).as_slice() {
            [name] if name.ends_with(':') => test = name.trim_end_matches(':'),
            ["latency" | "bw", "=", value, unit] => {
                let scaled = |unit: &str| match unit {
                    "ns" => Some((1e-3, Unit::Microseconds)),
                    "us" => Some((1.0, Unit::Microseconds)),
                    "ms" => Some((1e3, Unit::Microseconds)),
                    "bytes/sec" => Some((1e-6, Unit::MegabytesPerSecond)),
                    "KB/sec" => Some((1e-3, Unit::MegabytesPerSecond)),
                    "MB/sec" => Some((1.0, Unit::MegabytesPerSecond)),
                    "GB/sec" => Some((1e3, Unit::MegabytesPerSecond)),
                    _ => None,
                };
                if let (Ok(value), Some((scale, unit))) = (value.parse::<f64>(), scaled(unit)) {
                    figures.push(Figure::new(test, value * scale, unit));
                }
            }
            _ => {}
        }
    }
    figures
}

/// fio's bandwidth, in powers of ten: `WRITE: bw=66.1MiB/s (69.3MB/s)`.
fn fio(said: &str) -> Vec<Figure> {
    let rate = || {
        let line = said.lines().find(|line| line.contains("WRITE: bw="))?;
        let (_, rest) = line.split_once('(')?;
        let rate = rest.split(')').next()?;
        let number = rate.trim_end_matches(|letter: char| !letter.is_ascii_digit());
        let scale = match &rate[number.len()..] {
            "kB/s" => 1e-3,
            "MB/s" => 1.0,
            "GB/s" => 1e3,
            _ => return None,
        };
        let value: f64 = number.parse().ok()?;
        Some(Figure::new("", value * scale, Unit::MegabytesPerSecond))
    };
    rate().into_iter().collect()
}

fn numbers(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(said: &str) -> String {
        let all: Vec<String> = of(said).iter().map(Figure::to_string).collect();
        all.join(", ")
    }

    #[test]
    fn figures_are_found_in_the_output_of_each_program() {
        let ucx = "Final:  500  3.312  8.100  8.101  7.62  7.60  999  998\n";
        assert_eq!(text(ucx), "3.31 µs (median), 8.10 µs (mean), 7.60 MB/s");
        let libfabric = "bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec\n\
            64 10 =10 1.2k 0.00s 16.00 4.00 0.25\n\
            256 10 =10 5k 0.00s 51.20 5.00 0.20\n\
            1m 10 =10 20m 0.01s 1000.00 1048.58 0.00\n";
        assert_eq!(text(libfabric), "4.00 µs (64), 1049 µs (1m)");
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
            2       1000          0.68           1048.99      0.95     	       1.94\n-----\n";
        assert_eq!(text(latency), "0.95 µs");
        let rate = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
            65536      1000             782.1              479.2   		   0.007\n----\n";
        assert_eq!(text(rate), "479 MB/s");
        let qperf = "rc_lat:\n    latency  =  24.1 us\nrc_bw:\n    bw  =  3.08 GB/sec\n";
        assert_eq!(text(qperf), "24 µs (rc_lat), 3080 MB/s (rc_bw)");
        let fio = "  WRITE: bw=66.1MiB/s (69.3MB/s), 66.1MiB/s-66.1MiB/s, io=16.0MiB\n";
        assert_eq!(text(fio), "69 MB/s");
        assert_eq!(text("ring: right\n"), "");
    }

    #[test]
    fn a_ratio_above_one_is_slower_for_times_and_for_rates() {
        let time = |value| Figure::new("", value, Unit::Microseconds);
        let rate = |value| Figure::new("", value, Unit::MegabytesPerSecond);
        assert!((time(3.0).ratio(&time(2.0)) - 1.5).abs() < 1e-9);
        assert!((rate(3.0).ratio(&rate(6.0)) - 2.0).abs() < 1e-9);
    }
}

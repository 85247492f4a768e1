//! Writes the matrix as a section of a document.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

use super::matrix::{Family, Kind, LOSSY_READ_BYTES_MAX, Network};
use super::{Interop, Played};

/// Formats the results of all kernels. The whole run took `elapsed`.
#[must_use]
pub fn section(results: &[Interop], elapsed: Duration) -> String {
    let mut text = String::new();
    let minutes = elapsed.as_secs().div_ceil(60);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "Each row is an exchange, each column a network. A cell has the number of its operations that were right, of \
         those that were done,\nand the time of the slowest, verification included; for programs, how long they ran. All \
         of it took {minutes} minutes on\nemulated processors: the times compare with each other and with nothing else.\n"
    );
    for result in results {
        let _ = writeln!(text, "### Linux {}\n", result.report.kernel_release);
        text.push_str(&table(&result.plays));
        text.push('\n');
    }
    text
}

fn table(plays: &[Played]) -> String {
    let mut networks: Vec<Network> = Vec::new();
    for played in plays {
        if !networks.contains(&played.network) {
            networks.push(played.network);
        }
    }
    let mut rows: Vec<(String, BTreeMap<Network, String>)> = Vec::new();
    for family in [Family::V4, Family::V6] {
        for played in plays.iter().filter(|played| played.play.family == family) {
            for (name, cell) in cells(played) {
                let name = format!("{name} | {family}");
                let row = match rows.iter_mut().find(|(row, _)| *row == name) {
                    Some(row) => row,
                    None => {
                        rows.push((name, BTreeMap::new()));
                        let last = rows.len() - 1;
                        &mut rows[last]
                    }
                };
                row.1.insert(played.network, cell);
            }
        }
    }
    let mut text = String::from("| exchange | |");
    networks
        .iter()
        .for_each(|network| text.push_str(&format!(" {network} |")));
    text.push_str("\n|---|---|");
    networks.iter().for_each(|_| text.push_str("---|"));
    text.push('\n');
    for (name, cells) in rows {
        text.push_str(&format!("| {name} |"));
        for network in &networks {
            let cell = cells.get(network).map_or("", String::as_str);
            text.push_str(&format!(" {cell} |"));
        }
        text.push('\n');
    }
    text
}

/// The rows of the table that an exchange contributes to.
fn cells(played: &Played) -> Vec<(String, String)> {
    if played.play.kind != Kind::Verify {
        let word = if played.has_passed {
            "right"
        } else {
            "**failed**"
        };
        let cell = format!("{word}, {:.1} s", played.time.as_secs_f64());
        return vec![(played.play.kind.to_string(), cell)];
    }
    let mut rows: Vec<(String, Tally)> = Vec::new();
    for line in played.told.lines() {
        let Ok(case) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if case["type"] != "case" {
            continue;
        }
        let by = if case["by_peer"] == true {
            "the kernel's"
        } else {
            "ours"
        };
        let name = format!("{} by {by}", case["operation"].as_str().unwrap_or_default());
        let at = rows
            .iter()
            .position(|(row, _)| *row == name)
            .unwrap_or_else(|| {
                rows.push((name, Tally::default()));
                rows.len() - 1
            });
        rows[at].1.add(&case);
    }
    let mut cells: Vec<_> = rows
        .into_iter()
        .map(|(name, tally)| (name, tally.cell()))
        .collect();
    // An exchange that ended without a report has failed.
    if !played.has_passed {
        cells.push((played.play.kind.to_string(), "**failed**".to_owned()));
    }
    cells
}

/// The cases of one operation by one end.
#[derive(Debug, Default)]
struct Tally {
    cases: u32,
    right: u32,
    bytes_max: u64,
    ms_max: f64,
}

impl Tally {
    fn add(&mut self, case: &Value) {
        self.cases += 1;
        self.right += u32::from(case["right"] == true);
        self.bytes_max = self
            .bytes_max
            .max(case["bytes"].as_u64().unwrap_or_default());
        self.ms_max = self.ms_max.max(case["ms"].as_f64().unwrap_or_default());
    }

    fn cell(&self) -> String {
        let (right, seconds) = (self.right, self.ms_max / 1e3);
        let of = match self.right == self.cases {
            true => format!("{right}"),
            false => format!("**{right} of {}**", self.cases),
        };
        let up_to = match self.bytes_max {
            ..=8 => String::new(),
            bytes if bytes >= 1 << 20 => format!(" up to {} MiB", bytes >> 20),
            bytes if bytes > u64::from(LOSSY_READ_BYTES_MAX) => format!(" up to {bytes} B"),
            bytes => format!(" up to {} KiB", bytes >> 10),
        };
        format!("{of}{up_to}, {seconds:.2} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_case_is_seen_in_its_cell() {
        let case = |right| serde_json::json!({ "bytes": 8 << 20, "ms": 1500.0, "right": right });
        let mut tally = Tally::default();
        tally.add(&case(true));
        assert_eq!(tally.cell(), "1 up to 8 MiB, 1.50 s");
        tally.add(&case(false));
        assert_eq!(tally.cell(), "**1 of 2** up to 8 MiB, 1.50 s");
    }
}

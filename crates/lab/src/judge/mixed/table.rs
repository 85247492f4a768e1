//! Writes the results of the rows as a section of a document.

use std::fmt::Write;
use std::time::Duration;

use super::rows::{Ends, Shows};
use super::{Mixed, Played};

/// Formats the results of all kernels. The whole run took `elapsed`.
#[must_use]
pub fn mixed_section(results: &[Mixed], elapsed: Duration) -> String {
    let mut text = String::new();
    let minutes = elapsed.as_secs().div_ceil(60);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "All of it took {minutes} minutes on emulated processors: the times compare with each other and with nothing else.\n"
    );
    for result in results {
        let _ = writeln!(
            text,
            "### {}, Linux {}\n",
            result.group, result.report.kernel_release
        );
        text.push_str(&table(&result.plays));
        text.push('\n');
    }
    text
}

fn table(plays: &[Played]) -> String {
    let columns: Vec<Ends> = Ends::ALL
        .into_iter()
        .filter(|ends| plays.iter().any(|played| played.ends == *ends))
        .collect();
    let mut names: Vec<&str> = plays
        .iter()
        .map(|played| played.row.name.as_str())
        .collect();
    names.dedup();
    let mut text = String::from("| programs |");
    for ends in &columns {
        let _ = write!(text, " {ends} |");
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(columns.len()));
    for name in names {
        let _ = write!(text, "| {name} |");
        for ends in &columns {
            let is_it = |played: &&Played| played.row.name == name && played.ends == *ends;
            let cell = plays.iter().find(is_it).map(cell).unwrap_or_default();
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text
}

fn cell(played: &Played) -> String {
    let word = match (played.has_passed, played.row.shows) {
        (false, _) => "**failed**",
        (true, Shows::Data) => "data",
        (true, Shows::End) => "ended",
        (true, Shows::Refusal) => "refused",
    };
    format!("{word}, {:.1} s", played.time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;

    #[test]
    fn the_table_has_every_row_once_and_a_play_that_failed_is_seen_in_its_cell() {
        let rows = rows::all();
        let plays: Vec<_> = rows
            .iter()
            .flat_map(|row| {
                row.ends().map(|ends| Played {
                    row: row.clone(),
                    ends,
                    has_passed: row.name != "ucmatose" || ends != Ends::OursServes,
                    time: Duration::from_millis(1200),
                })
            })
            .collect();
        let text = table(&plays);
        assert_eq!(text.lines().count(), rows.len() + 2, "{text}");
        let line = "| ucmatose | ended, 1.2 s | ended, 1.2 s | **failed**, 1.2 s | ended, 1.2 s |";
        assert!(text.lines().any(|each| each == line), "{text}");
        assert_eq!(text.matches("**failed**").count(), 1, "{text}");
        // These programs do not use librdmacm.
        let line = "| ibv_ud_pingpong -g -c | data, 1.2 s |  | data, 1.2 s | data, 1.2 s |";
        assert!(text.lines().any(|each| each == line), "{text}");
    }
}

//! Writes the results as a section of a document.

use std::fmt::Write;
use std::time::Duration;

use super::{EverySize, Ours, PROGRAMS, Played};

/// Formats the results of all kernels. The run took `elapsed`.
#[must_use]
pub fn every_size_section(results: &[EverySize], elapsed: Duration) -> String {
    let mut plays = results.iter().flat_map(|result| &result.plays);
    let took = match plays.any(|played| played.is_kept) {
        true => "It was played in several runs of the same build".to_owned(),
        false => format!("All of it took {} minutes", elapsed.as_secs().div_ceil(60)),
    };
    let mut text = format!(
        "{took}, with Debian's end on an emulated processor: the times compare with each other and with nothing else.\n\n"
    );
    let kernels: Vec<_> = results
        .iter()
        .map(|result| (result.report.kernel_release.as_str(), &result.plays[..]))
        .collect();
    text.push_str(&table(&kernels));
    text
}

fn table(kernels: &[(&str, &[Played])]) -> String {
    let mut text = String::from("| programs | Linux |");
    for ours in Ours::BOTH {
        let _ = write!(text, " {ours} |");
    }
    text.push_str("\n|---|---|---|---|\n");
    for program in PROGRAMS {
        for (release, plays) in kernels {
            let _ = write!(text, "| {program} -S all | {release} |");
            for ours in Ours::BOTH {
                let is_it =
                    |played: &&Played| played.play.program == program && played.play.ours == ours;
                let cell = plays.iter().find(is_it).map(cell).unwrap_or_default();
                let _ = write!(text, " {cell} |");
            }
            text.push('\n');
        }
    }
    text
}

fn cell(played: &Played) -> String {
    let word = if played.has_passed {
        "data"
    } else {
        "**failed**"
    };
    format!("{word}, {:.0} s", played.time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::super::plays;
    use super::*;

    #[test]
    fn the_table_has_each_program_on_each_kernel_and_a_pair_that_failed_is_seen_in_its_cell() {
        let played = |failed: &str| -> Vec<Played> {
            let played = plays(None).into_iter().map(|play| Played {
                play,
                has_passed: play.to_string() != failed,
                is_kept: false,
                time: Duration::from_millis(1_200_400),
            });
            played.collect()
        };
        let (first, second) = (played(""), played("riostream -S all: ours calls"));
        assert_eq!(
            table(&[("6.1", &first), ("7.3", &second)]),
            "| programs | Linux | ours serves | ours calls |\n\
             |---|---|---|---|\n\
             | rstream -S all | 6.1 | data, 1200 s | data, 1200 s |\n\
             | rstream -S all | 7.3 | data, 1200 s | data, 1200 s |\n\
             | riostream -S all | 6.1 | data, 1200 s | data, 1200 s |\n\
             | riostream -S all | 7.3 | data, 1200 s | **failed**, 1200 s |\n"
        );
    }
}

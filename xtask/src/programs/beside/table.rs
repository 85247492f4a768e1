//! The tables of a comparison, and its verdict.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Case, Figure, NOT_PLAYED, Played, Results, Way};

/// Letters of what a failed program has said.
const SAID_MAX: usize = 300;

/// The section of the document. `took` is `None` for a run that was continued.
pub(super) fn section(
    release: &str,
    cases: &[Case],
    results: &Results,
    took: Option<Duration>,
) -> String {
    let took = took.map_or_else(
        || "in parts".to_owned(),
        |took| format!("{:.0} minutes", took.as_secs_f64() / 60.0),
    );
    let mut text = format!("\nLinux {release}, {took} on emulated processors.\n\n");
    let failures = rows(&mut text, cases, results);
    figures(&mut text, cases, results);
    if !failures.is_empty() {
        text.push_str("\nWhat failed:\n\n");
        text.push_str(&failures);
    }
    text.push('\n');
    text
}

/// Whether every row was played, and every row that succeeds on rdma_rxe also succeeds with ours.
pub(super) fn is_right(results: &Results) -> bool {
    results.iter().all(|((row, _), played)| {
        let Err(why) = &played.result else {
            return true;
        };
        let kernel = results.get(&(*row, Way::Kernel));
        why != NOT_PLAYED && kernel.is_some_and(|kernel| kernel.result.is_err())
    })
}

/// Writes the table of rows. Returns a list of what failed.
fn rows(text: &mut String, cases: &[Case], results: &Results) -> String {
    text.push_str(
        "| program | rdma_rxe | Portolan | Portolan serves rdma_rxe | Portolan calls rdma_rxe |\n|---|---|---|---|---|\n",
    );
    let mut failures = String::new();
    for (row, case) in cases.iter().enumerate() {
        let cells = Way::ALL.map(|way| results.get(&(row, way)).map_or(String::new(), cell));
        if cells.iter().all(String::is_empty) {
            continue;
        }
        let program = case.client_text();
        writeln!(text, "| `{program}` | {} |", cells.join(" | ")).expect("text takes text");
        for way in Way::ALL {
            if let Some(Played {
                result: Err(why),
                seconds,
                ..
            }) = results.get(&(row, way))
            {
                let (way, why) = (way.name(), shortened(why));
                writeln!(failures, "* `{program}`, {way}, {seconds:.0} s: {why}")
                    .expect("text takes text");
            }
        }
    }
    failures
}

/// The start and the end of what a program has said.
fn shortened(why: &str) -> String {
    let letters: Vec<char> = why.replace('|', "/").chars().collect();
    match letters.len() {
        0..=SAID_MAX => letters.into_iter().collect(),
        len => {
            let start: String = letters[..SAID_MAX / 3].iter().collect();
            let end: String = letters[len - SAID_MAX * 2 / 3..].iter().collect();
            format!("{start} ... {end}")
        }
    }
}

fn cell(played: &Played) -> String {
    match played.result {
        Ok(()) => format!("right, {:.1} s", played.seconds),
        Err(_) => "**failed**".to_owned(),
    }
}

/// Writes the figures that both ways have.
fn figures(text: &mut String, cases: &[Case], results: &Results) {
    let mut lines = String::new();
    for (row, case) in cases.iter().enumerate() {
        let [kernel, ours] = Way::WHOLE.map(|way| results.get(&(row, way)));
        let (Some(kernel), Some(ours)) = (kernel, ours) else {
            continue;
        };
        for kernel in &kernel.figures {
            let same = |ours: &&Figure| (&ours.what, ours.unit) == (&kernel.what, kernel.unit);
            let compared = match ours.figures.iter().find(same) {
                Some(ours) => format!("{kernel} | {ours} | {}", times(ours.ratio(kernel))),
                None => format!("{kernel} | | "),
            };
            let program = case.client_text();
            writeln!(lines, "| `{program}` | {compared} |").expect("text takes text");
        }
    }
    if !lines.is_empty() {
        text.push_str("\n| program | rdma_rxe | Portolan | times as slow |\n|---|---|---|---|\n");
        text.push_str(&lines);
    }
}

/// A ratio of figures. A figure of 0 means that the program counted nothing.
fn times(ratio: f64) -> String {
    match ratio.is_finite() {
        true => format!("{ratio:.2}"),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::case::c;
    use super::super::super::figures;
    use super::*;

    fn played(result: Result<(), &str>, said: &str) -> Played {
        Played {
            result: result.map_err(str::to_owned),
            figures: figures::of(said),
            seconds: 1.0,
        }
    }

    #[test]
    fn a_row_that_fails_where_the_kernels_is_right_is_found() {
        let cases = [Case::alone("", c("rping"))];
        let mut results = Results::new();
        results.insert((0, Way::Ours), played(Err("broken"), ""));
        results.insert((0, Way::Kernel), played(Err("broken"), ""));
        assert!(is_right(&results));
        results.insert((0, Way::Kernel), Played::missing());
        assert!(
            !is_right(&results),
            "a row that was not played excuses nothing"
        );
        results.insert((0, Way::Kernel), played(Ok(()), ""));
        assert!(!is_right(&results));
        let text = section("6.1", &cases, &results, None);
        assert!(text.contains("| `rping` | right, 1.0 s | **failed** |"));
        assert!(text.contains("ours, 1 s: broken"));
    }

    #[test]
    fn figures_that_both_have_are_compared() {
        let cases = [Case::alone("", c("qperf"))];
        let mut results = Results::new();
        results.insert(
            (0, Way::Kernel),
            played(Ok(()), "rc_lat:\n latency = 40 us\n"),
        );
        results.insert(
            (0, Way::Ours),
            played(Ok(()), "rc_lat:\n latency = 10 us\n"),
        );
        let text = section("6.1", &cases, &results, None);
        assert!(text.contains("| `qperf` | 40 µs (rc_lat) | 10 µs (rc_lat) | 0.25 |"));
    }
}

//! The tables of a comparison, and its verdict.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Case, Figure, NOT_PLAYED, Played, Results, Way};

/// Precedes the list of tests that have failed, in what `fabtests.sh` says.
const FAILED_TESTS: &str = " passed, failed tests: ";
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
        let kernel = kernel.and_then(|kernel| kernel.result.as_ref().err());
        why != NOT_PLAYED && kernel.is_some_and(|kernel| is_excused(why, kernel))
    })
}

/// Whether a failure on rdma_rxe excuses ours. In a row of many tests, it does so only for the same tests.
fn is_excused(ours: &str, kernel: &str) -> bool {
    match (failed_tests(ours), failed_tests(kernel)) {
        (Some(ours), Some(kernel)) => ours.iter().all(|test| kernel.contains(test)),
        (None, Some(_)) => false,
        (_, None) => true,
    }
}

/// The tests that have failed, in the last line of a row of many tests.
fn failed_tests(why: &str) -> Option<Vec<&str>> {
    let (_, tests) = why.rsplit_once(FAILED_TESTS)?;
    Some(tests.trim().split("; ").collect())
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

/// How many tests have passed, in the last line of a row of many tests.
fn passed_tests(why: &str) -> Option<&str> {
    let (before, _) = why.rsplit_once(FAILED_TESTS)?;
    before.rsplit(' ').next()
}

/// Why a row failed: the tests that did, or the start and the end of what a program has said.
fn shortened(why: &str) -> String {
    if let Some(tests) = failed_tests(why) {
        return tests.join("; ").replace('|', "/");
    }
    let words: Vec<_> = why.split(' ').map(without_registry).collect();
    let letters: Vec<char> = words.join(" ").replace('|', "/").chars().collect();
    match letters.len() {
        0..=SAID_MAX => letters.into_iter().collect(),
        len => {
            let start: String = letters[..SAID_MAX / 3].iter().collect();
            let end: String = letters[len - SAID_MAX * 2 / 3..].iter().collect();
            format!("{start} ... {end}")
        }
    }
}

/// A word, or the part of a path that is the same on each machine: within the sources of a crate.
fn without_registry(word: &str) -> &str {
    let source = word.split_once("/registry/src/");
    let within = source.and_then(|(_, source)| source.split_once('/'));
    within.map_or(word, |(_, within)| within)
}

fn cell(played: &Played) -> String {
    match &played.result {
        Ok(()) => format!("right, {:.1} s", played.seconds),
        Err(why) => match (failed_tests(why), passed_tests(why)) {
            (Some(failed), Some(passed)) => {
                format!("**{} failed**, {passed} passed", failed.len())
            }
            _ => "**failed**".to_owned(),
        },
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
    fn where_this_machine_keeps_a_crate_is_not_told() {
        let said =
            "panicked at /home/a/.cargo/registry/src/index-1949/sideway-0.4.3/main.rs:155 | here";
        assert_eq!(
            shortened(said),
            "panicked at sideway-0.4.3/main.rs:155 / here"
        );
    }

    #[test]
    fn in_a_row_of_many_tests_only_the_same_tests_are_excused() {
        let said = |tests: &str| format!("... 8 passed, failed tests: {tests}");
        let is_right_with = |ours: &str, kernel: &str| {
            let mut results = Results::new();
            results.insert((0, Way::Ours), played(Err(ours), ""));
            results.insert((0, Way::Kernel), played(Err(kernel), ""));
            is_right(&results)
        };
        let (one, two) = (said("fi_cq_test"), said("fi_cq_test; fi_bw -v"));
        assert!(is_right_with(&one, &two));
        assert!(!is_right_with(&two, &one));
        assert!(!is_right_with("did not end in time", &two));
        assert!(is_right_with(&one, "did not end in time"));

        let cases = [Case::alone("", c("fabtests"))];
        let mut results = Results::new();
        results.insert((0, Way::Ours), played(Err(&two), ""));
        let text = section("6.1", &cases, &results, None);
        assert!(text.contains("| **2 failed**, 8 passed |"), "{text}");
        assert!(text.contains("ours, 1 s: fi_cq_test; fi_bw -v\n"));
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

//! Reports of parts.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::{Outcome, Part, Workspace, processor_time};

/// The result of a part.
pub(super) struct Report {
    name: &'static str,
    took: Duration,
    /// Its processor time.
    processors: Duration,
    verdict: Verdict,
    /// Why it failed in parallel with others, if it was repeated alone.
    disturbed: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Passed(String),
    LeftOut(String),
    Failed(String),
}

/// Runs a part on its own thread. A network namespace that it enters ends with the thread, so that the next
/// part is on the host's network again.
fn on_its_own_thread(part: &Part, workspace: &Workspace) -> Result<Outcome> {
    std::thread::scope(|scope| scope.spawn(|| (part.run)(workspace)).join())
        .unwrap_or_else(|_| bail!("the part panicked, see above"))
}

impl Report {
    /// Runs the part.
    pub(super) fn of(part: &Part, workspace: &Workspace) -> Self {
        let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
        let started = Instant::now();
        let before = processor_time::so_far();
        let verdict = match on_its_own_thread(part, workspace) {
            Ok(Outcome::Passed(what)) => Verdict::Passed(what),
            Ok(Outcome::LeftOut(why)) if ci => {
                Verdict::Failed(format!("cannot run, and CI=true: {why}"))
            }
            Ok(Outcome::LeftOut(why)) => Verdict::LeftOut(why),
            Err(error) => Verdict::Failed(format!("{error:#}")),
        };
        Self {
            name: part.name,
            took: started.elapsed(),
            processors: processor_time::so_far().saturating_sub(before),
            verdict,
            disturbed: None,
        }
    }

    /// Writes the report for [`Report::read`].
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let mut value = self.verdict.to_json();
        value["processors_s"] = json!(self.processors.as_secs_f64());
        std::fs::write(path, value.to_string())
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads another process's report of a part. A missing report is a failure.
    pub(super) fn read(part: &Part, took: Duration, path: &Path) -> Self {
        let value = std::fs::read_to_string(path)
            .ok()
            .and_then(|text| serde_json::from_str::<Value>(&text).ok())
            .unwrap_or_default();
        let verdict = Verdict::from_json(&value);
        Self {
            name: part.name,
            took,
            processors: seconds(&value["processors_s"]),
            verdict: verdict.unwrap_or_else(|| Verdict::Failed("ended without a verdict".into())),
            disturbed: None,
        }
    }

    pub(super) fn failure(part: &Part, took: Duration, why: String) -> Self {
        Self {
            name: part.name,
            took,
            processors: Duration::ZERO,
            verdict: Verdict::Failed(why),
            disturbed: None,
        }
    }

    /// Returns this report of a part that ran in parallel with others. If it failed, repeats the part alone.
    pub(super) fn or_alone(self, part: &Part, workspace: &Workspace) -> Self {
        let Verdict::Failed(why) = self.verdict else {
            return self;
        };
        println!("\n==> {}: again, by itself", part.name);
        Self {
            disturbed: Some(why),
            ..Self::of(part, workspace)
        }
    }

    /// The result in one word, with the time.
    pub(super) fn word(&self) -> String {
        let (word, _) = self.verdict.parts();
        format!("{word} after {:.1} s", self.took.as_secs_f64())
    }
}

impl Verdict {
    fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Passed(note) => ("passed", note),
            Self::LeftOut(note) => ("LEFT OUT", note),
            Self::Failed(note) => ("FAILED", note),
        }
    }

    fn to_json(&self) -> Value {
        let (word, note) = self.parts();
        json!({ "verdict": word, "note": note })
    }

    fn from_json(value: &Value) -> Option<Self> {
        let note = value["note"].as_str()?.to_owned();
        match value["verdict"].as_str()? {
            "passed" => Some(Self::Passed(note)),
            "LEFT OUT" => Some(Self::LeftOut(note)),
            "FAILED" => Some(Self::Failed(note)),
            _ => None,
        }
    }
}

/// Zero for a text that is not a time.
fn seconds(value: &Value) -> Duration {
    let seconds = value.as_f64().unwrap_or_default();
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

pub(super) fn summarize(reports: &[Report], took: Duration) -> ExitCode {
    println!(
        "\n{:<16} {:>8} {:>10}  result",
        "part", "time", "processors"
    );
    let (mut passed, mut failed, mut left_out) = (0, 0, 0);
    for report in reports {
        match report.verdict {
            Verdict::Passed(_) => passed += 1,
            Verdict::LeftOut(_) => left_out += 1,
            Verdict::Failed(_) => failed += 1,
        }
        let (word, note) = report.verdict.parts();
        let separator = if note.is_empty() { "" } else { ": " };
        let seconds = report.took.as_secs_f64();
        let processors = report.processors.as_secs_f64();
        println!(
            "{:<16} {seconds:>7.1}s {processors:>9.1}s  {word}{separator}{note}",
            report.name
        );
        if let Some(why) = &report.disturbed {
            println!(
                "{:<16} {:>8} {:>10}  second run; in parallel with others it FAILED: {why}",
                "", "", ""
            );
        }
    }
    let processors: Duration = reports.iter().map(|report| report.processors).sum();
    println!(
        "{:<16} {:>7.1}s {:>9.1}s",
        "total",
        took.as_secs_f64(),
        processors.as_secs_f64()
    );
    println!("\nparts: {passed} passed, {failed} failed, {left_out} skipped");
    let disturbed = reports.iter().filter(|report| report.disturbed.is_some());
    match disturbed.count() {
        0 => {}
        count => println!("repeated alone: {count}"),
    }
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_read_as_it_was_written() {
        for verdict in [Verdict::Passed, Verdict::LeftOut, Verdict::Failed] {
            let verdict = verdict("a \"note\"\nof two lines".to_owned());
            assert_eq!(Verdict::from_json(&verdict.to_json()), Some(verdict));
        }
    }

    #[test]
    fn a_part_that_fails_in_parallel_is_repeated_and_both_runs_are_reported() {
        let workspace = Workspace::here().unwrap();
        let beside_others = |part| Report::failure(part, Duration::ZERO, "late".into());

        let good = Part::that(|_| Ok(Outcome::Passed("fine".into())));
        let report = beside_others(&good).or_alone(&good, &workspace);
        assert_eq!(report.verdict, Verdict::Passed("fine".into()));
        assert_eq!(report.disturbed.as_deref(), Some("late"));

        let bad = Part::that(|_| anyhow::bail!("wrong"));
        let report = beside_others(&bad).or_alone(&bad, &workspace);
        assert_eq!(report.verdict, Verdict::Failed("wrong".into()));

        let never = Part::that(|_| panic!("it has already passed"));
        let passed = Report::of(&good, &workspace).or_alone(&never, &workspace);
        assert_eq!(passed.disturbed, None);
    }

    #[test]
    fn a_parts_thread_keeps_its_changes_and_its_panic_to_itself() {
        let workspace = Workspace::here().unwrap();
        let here = |_: &Workspace| {
            let thread = std::thread::current().id();
            Ok(Outcome::Passed(format!("{thread:?}")))
        };
        let report = Report::of(&Part::that(here), &workspace);
        let own = format!("{:?}", std::thread::current().id());
        assert_ne!(report.verdict, Verdict::Passed(own));

        let report = Report::of(&Part::that(|_| panic!("on purpose")), &workspace);
        assert!(matches!(report.verdict, Verdict::Failed(_)));
    }

    #[test]
    fn a_part_whose_process_wrote_no_verdict_has_failed() {
        let part = &super::super::PARTS[0];
        let nowhere = Path::new("/nonexistent/verdict");
        let report = Report::read(part, Duration::ZERO, nowhere);
        assert!(matches!(report.verdict, Verdict::Failed(_)));
    }
}

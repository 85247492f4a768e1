//! The judge's findings, part by part.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::machine::Outcome;

/// How many of the last lines of a failed part are shown.
const REASON_LINES_MAX: usize = 30;

/// The judge's findings.
#[derive(Clone, Debug)]
pub struct Report {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel_release: String,
    /// The parts in order.
    pub parts: Vec<Part>,
    /// Time from power-on to the first part.
    pub boot: Duration,
    /// Duration of the machine's whole run.
    pub elapsed: Duration,
    /// Folder with the machine's results and captures, kept if a part failed.
    pub kept: Option<PathBuf>,
}

/// One checked item.
#[derive(Clone, Debug)]
pub struct Part {
    /// The property that it shows.
    pub name: String,
    /// A short finding, or why the part failed.
    pub verdict: Result<String, String>,
    /// Duration: by the machine's clock for parts inside it, otherwise by the host's.
    pub elapsed: Duration,
}

impl Report {
    /// Whether there are parts and all of them passed.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.parts.is_empty() && self.parts.iter().all(|part| part.verdict.is_ok())
    }

    /// Reports the steps that ran. Expected steps that did not run count as failed.
    pub(super) fn new<'a>(
        kernel_release: &str,
        outcome: &Outcome,
        expected: impl Iterator<Item = &'a str>,
    ) -> Self {
        let mut parts: Vec<_> = outcome
            .steps
            .iter()
            .map(|step| Part {
                name: step.name.clone(),
                verdict: if step.passed() {
                    Ok(String::new())
                } else {
                    Err(step.output.clone())
                },
                elapsed: step.elapsed,
            })
            .collect();
        parts.extend(expected.skip(parts.len()).map(|name| Part {
            name: name.to_owned(),
            verdict: Err("did not run because an earlier step failed".to_owned()),
            elapsed: Duration::ZERO,
        }));
        Self {
            kernel_release: kernel_release.to_owned(),
            parts,
            boot: outcome.boot,
            elapsed: outcome.elapsed,
            kept: None,
        }
    }

    pub(super) fn add(&mut self, part: Part) {
        self.parts.push(part);
    }

    /// Keeps the machine's results if a part failed.
    pub(super) fn keep_if_failed(mut self, mut outcome: Outcome) -> Self {
        if !self.passed() {
            self.kept = Some(outcome.keep().to_owned());
        }
        self
    }
}

impl Part {
    /// Runs `judge` and measures its time.
    pub(super) fn measure(name: String, judge: impl FnOnce() -> Result<String, String>) -> Self {
        let started = Instant::now();
        let verdict = judge();
        Self {
            name,
            verdict,
            elapsed: started.elapsed(),
        }
    }
}

impl fmt::Display for Report {
    /// Prints a line for each part, followed by the reason if it failed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "judged by Linux {} (booted in {:.1?})",
            self.kernel_release, self.boot
        )?;
        for part in &self.parts {
            let word = if part.verdict.is_ok() { "ok" } else { "FAILED" };
            write!(
                f,
                "{word:>6} {:>7.2} s  {}",
                part.elapsed.as_secs_f64(),
                part.name
            )?;
            match &part.verdict {
                Ok(note) if note.is_empty() => writeln!(f)?,
                Ok(note) => writeln!(f, " ({note})")?,
                Err(reason) => {
                    writeln!(f)?;
                    let lines: Vec<_> = reason.trim().lines().collect();
                    for line in &lines[lines.len().saturating_sub(REASON_LINES_MAX)..] {
                        writeln!(f, "       | {line}")?;
                    }
                }
            }
        }
        let passed = self
            .parts
            .iter()
            .filter(|part| part.verdict.is_ok())
            .count();
        write!(
            f,
            "{passed} of {} parts passed; machine {:.1?}",
            self.parts.len(),
            self.elapsed
        )?;
        if let Some(kept) = &self.kept {
            write!(f, "; results kept in {}", kept.display())?;
        }
        Ok(())
    }
}

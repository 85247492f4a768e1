//! What connections cost beside librdmacm and rdma_rxe: the part that holds the promise, and the task that writes
//! the figures into the documentation.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use portolan_lab::judge::{self, Figures, Subject};
use portolan_lab::machine::{Cache, MachineError, Suite};

use crate::test::{Outcome, Workspace, cargo};

/// Connections at once.
const CONNECTIONS: u32 = 1000;
/// Rounds of the part; their median is the middle one.
const ROUNDS: u32 = 3;
/// What is promised of all steps together beside librdmacm over rdma_rxe.
const PROMISED: f64 = 1.0;
/// How much more the part lets pass: two processors are emulated by two that have other parts of the tests to run, and
/// a round's ratio was seen to be off by as much. docs/performance.md has what was measured with more rounds.
const TOLERANCE: f64 = 0.25;
/// Has the figures, below the workspace's root, between the marks.
const DOCUMENT: &str = "docs/performance.md";
const BEGIN: &str = "<!-- begin: `cargo xtask figures` writes this -->\n";
const END: &str = "<!-- end: `cargo xtask figures` -->\n";

/// Measures connections beside librdmacm's in a kernel machine, and writes the figures into docs/performance.md.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Rounds, in which librdmacm, the kernel provider and the software device take turns.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Connections at once.
    #[arg(long, value_name = "N", default_value_t = CONNECTIONS,
          value_parser = clap::value_parser!(u32).range(1..=5000))]
    connections: u32,
    /// Print the figures and write nothing.
    #[arg(long)]
    print: bool,
}

pub(crate) fn write(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    let build = ["build", "--quiet", "--release", "--package", "portolan-cli"];
    workspace.run(&cargo(), &[&build[..], &["--bin", "portolan"]].concat())?;
    let figures = measure(&workspace, arguments.connections, arguments.rounds)?;
    let text = figures.markdown();
    println!("{text}");
    if !arguments.print {
        let path = workspace.root.join(DOCUMENT);
        let document = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let written = with_section(&document, &text)?;
        std::fs::write(&path, written)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The part: fails if what is promised is missed by more than the tolerance.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    if !workspace.is_root {
        let why = "it boots a kernel machine whose packages root installs";
        return Ok(Outcome::LeftOut(why.into()));
    }
    let figures = match measure(workspace, CONNECTIONS, ROUNDS) {
        Ok(figures) => figures,
        Err(error) => match error.downcast::<MachineError>()? {
            MachineError::Unavailable(unavailable) => {
                return Ok(Outcome::LeftOut(unavailable.to_string()));
            }
            error => return Err(error.into()),
        },
    };
    println!("{}", figures.markdown());
    let told = judge_ratios(
        [Subject::KernelProvider, Subject::SoftwareDevice]
            .map(|subject| (subject.name(), figures.ratio(subject))),
    )?;
    Ok(Outcome::Passed(told))
}

/// What was measured, as one line; an error for what is above the promise by more than the tolerance.
fn judge_ratios(ratios: [(&str, f64); 2]) -> Result<String> {
    let told = ratios
        .map(|(name, ratio)| format!("{name} {ratio:.2}"))
        .join(", ");
    let is_kept = |ratio: f64| ratio <= PROMISED + TOLERANCE;
    if !ratios.iter().all(|(_, ratio)| is_kept(*ratio)) {
        let most = PROMISED + TOLERANCE;
        bail!("at most {most} times librdmacm over rdma_rxe was held, found: {told}");
    }
    Ok(told)
}

fn measure(workspace: &Workspace, connections: u32, rounds: u32) -> Result<Figures> {
    let cache = Cache::locate()?;
    let command = &workspace.portolan;
    let (report, figures) = judge::figures(&cache, Suite::Bookworm, command, connections, rounds)?;
    println!("{report}");
    ensure!(report.passed(), "what failed is above");
    figures.context("a round is missing")
}

/// The document with this between the marks, each of which it has once.
fn with_section(document: &str, text: &str) -> Result<String> {
    let document_path = Path::new(DOCUMENT).display();
    let parts = document.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) = parts.with_context(|| format!("{document_path} lacks its marks"))?;
    Ok(format!("{before}{BEGIN}\n{text}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_written_anew() {
        let document = format!("above\n{BEGIN}old\n{END}below\n");
        let written = with_section(&document, "new\n").unwrap();
        assert_eq!(written, format!("above\n{BEGIN}\nnew\n\n{END}below\n"));
        assert_eq!(with_section(&written, "new\n").unwrap(), written);
        assert!(with_section("no marks", "new").is_err());
        assert!(with_section(&format!("{END}{BEGIN}"), "new").is_err());
    }

    #[test]
    fn the_document_has_the_marks() {
        let workspace = Workspace::here().unwrap();
        let document = std::fs::read_to_string(workspace.root.join(DOCUMENT)).unwrap();
        with_section(&document, "").unwrap();
    }

    #[test]
    fn a_promise_that_is_missed_by_more_than_the_tolerance_fails() {
        let judged = |kernel, software| judge_ratios([("kernel", kernel), ("software", software)]);
        assert_eq!(judged(0.9, 0.25).unwrap(), "kernel 0.90, software 0.25");
        assert!(judged(1.2, 1.0).is_ok());
        assert!(judged(1.3, 0.5).is_err());
        assert!(judged(0.5, 1.3).is_err());
        assert!(judged(f64::INFINITY, 0.5).is_err());
        assert!(judged(f64::NAN, 0.5).is_err());
    }
}

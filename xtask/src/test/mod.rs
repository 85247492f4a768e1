//! `cargo xtask test`: all checks of the project, part by part, with the elapsed time and the processor time of
//! each.
//!
//! First the building parts run, with the two profiles in parallel; then the timing tests, one after the other.
//! Then parts run in parallel lanes: one for parts that use this host's UDP port 4791, two for parts that have
//! their own machine, and one, of low priority, for parts that only compute. A part that fails there is repeated
//! alone, because two processors under these lanes can delay a packet for longer than a test permits. The
//! summary reports both runs.

mod binaries;
#[cfg(test)]
mod features;
mod lane;
mod outcome;
mod parts;
pub(crate) mod processor_time;
mod report;
mod steps;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use parts::{PARTS, Part, Place};
use report::Report;

pub(crate) use binaries::{NoteRunArguments, note_run};
pub(crate) use outcome::Outcome;
pub(crate) use workspace::{Workspace, cargo, lab_program, test_program};

/// Arguments of `test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run only the parts whose names contain this text.
    #[arg(long)]
    only: Option<String>,
    /// List the parts and stop.
    #[arg(long)]
    list: bool,
}

/// Arguments of `part`, with which a lane runs each part.
#[derive(Debug, clap::Args)]
pub(crate) struct PartArguments {
    /// The part's name.
    name: String,
    /// File to write the result to.
    verdict: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    let parts = parts::chosen(arguments.only.as_deref());
    if parts.is_empty() {
        bail!("no part's name contains this; --list shows them");
    }
    if arguments.list {
        parts
            .iter()
            .for_each(|part| println!("{:<16} {}", part.name, part.what));
        return Ok(ExitCode::SUCCESS);
    }
    let started = Instant::now();
    let of_kind = |kind: fn(Place) -> bool| -> Vec<&Part> {
        let parts = parts.iter().copied();
        parts.filter(|part| kind(part.place)).collect()
    };
    let building = of_kind(|place| matches!(place, Place::Building(_)));
    let alone = of_kind(|place| place == Place::Alone);
    let parallel = of_kind(Place::runs_in_parallel);
    let mut reports = lane::build(&building, &workspace);
    for part in &alone {
        println!("\n==> {}: {}", part.name, part.what);
        reports.push(Report::of(part, &workspace));
    }
    reports.extend(match parallel.as_slice() {
        [part] => {
            println!("\n==> {}: {}", part.name, part.what);
            vec![Report::of(part, &workspace)]
        }
        _ => {
            let beside_others = lane::run(&parallel, &workspace);
            let again = |(report, part): (Report, &&Part)| report.or_alone(part, &workspace);
            beside_others
                .into_iter()
                .zip(&parallel)
                .map(again)
                .collect()
        }
    });
    Ok(report::summarize(&reports, started.elapsed()))
}

/// Runs one part and writes its result.
pub(crate) fn run_part(arguments: &PartArguments) -> Result<ExitCode> {
    let part = PARTS
        .iter()
        .find(|part| part.name == arguments.name)
        .context("no part has this name")?;
    let report = Report::of(part, &Workspace::here()?);
    report.write(&arguments.verdict)?;
    Ok(ExitCode::SUCCESS)
}

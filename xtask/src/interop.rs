//! Our software device and the rdma_rxe of both kernels, each pair in two machines.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use portolan_lab::judge::{self, Extent, Interop};
use portolan_lab::machine::{Cache, MachineError};

use crate::kernels;
use crate::test::{Outcome, Workspace, cargo};

/// Has the matrix of a whole run, below the workspace's root.
const DOCUMENT: &str = "docs/interop.md";

/// Play everything that Linux's rdma_rxe and our software device can have with each other, and write
/// what came of it to docs/interop.md.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Play what the tests play, and write nothing
    #[arg(long)]
    selected: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    let command = ["--package", "portolan-cli", "--bins", "--examples"];
    workspace.run(
        &cargo(),
        &[&["build", "--quiet", "--release"], &command[..]].concat(),
    )?;
    let extent = match arguments.selected {
        true => Extent::Selected,
        false => Extent::Whole,
    };
    let started = Instant::now();
    let results = play(&workspace, extent)?;
    results
        .iter()
        .for_each(|result| println!("{}", result.report));
    if extent == Extent::Whole {
        let path = workspace.root.join(DOCUMENT);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {DOCUMENT}"))?;
        let section = judge::section(&results, started.elapsed());
        std::fs::write(&path, judge::document(&text, &section))
            .with_context(|| format!("cannot write {DOCUMENT}"))?;
        println!("{DOCUMENT} is written");
    }
    Ok(match results.iter().all(|result| result.report.passed()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// The part of the tests: a selection.
pub(crate) fn test(workspace: &Workspace) -> Result<Outcome> {
    if !workspace.is_root {
        let why = "it boots kernel machines whose packages root installs";
        return Ok(Outcome::LeftOut(why.into()));
    }
    let results = match play(workspace, Extent::Selected) {
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        played => played?,
    };
    results
        .iter()
        .for_each(|result| println!("{}", result.report));
    let all_passed = results.iter().all(|result| result.report.passed());
    ensure!(all_passed, "what failed is above");
    let judges = results
        .iter()
        .map(|result| format!("Linux {}", result.report.kernel_release));
    let judges: Vec<_> = judges.collect();
    Ok(Outcome::Passed(judges.join(", ")))
}

fn play(workspace: &Workspace, extent: Extent) -> Result<Vec<Interop>, MachineError> {
    let cache = Cache::locate()?;
    let peer = judge::verify_peer(&cache)?;
    kernels::on_each(|debian| judge::interop(&cache, debian, &workspace.portolan, &peer, extent))
}

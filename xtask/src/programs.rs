//! C programs of Debian's, unmodified, on our libraries and software devices: `portolan exec`, both ends, and with one end
//! of ours where the protocol is shared.

mod cases;
mod document;
mod pair;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use portolan_lab::machine::{MachineError, Package, ensure_installed};

use crate::install;
use crate::test::{Outcome, Workspace};
use cases::Case;
use document::Row;

/// Whose programs are run.
const PACKAGES: [Package; 3] = [
    Package {
        name: "rdmacm-utils",
        purpose: "rping and the other programs of librdmacm",
    },
    Package {
        name: "ibverbs-utils",
        purpose: "the ping-pongs of libibverbs",
    },
    Package {
        name: "perftest",
        purpose: "latency and bandwidth by every operation",
    },
];

/// Arguments of `programs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run only the rows whose names contain this, and write no document
    #[arg(long)]
    only: Option<String>,
}

/// Runs every row and writes the document.
pub(crate) fn run_all(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    ensure_installed(&PACKAGES)?;
    let targets = ["--lib", "--bins"];
    let release = ["build", "--release"];
    workspace.cargo(&[&release[..], &install::PACKAGES, &targets].concat())?;
    let started = Instant::now();
    let chosen = |case: &Case| {
        let only = arguments.only.as_deref();
        only.is_none_or(|only| case.name.contains(only))
    };
    let rows = play(&workspace, cases::all().into_iter().filter(chosen));
    if arguments.only.is_none() {
        document::write(&workspace.root, &rows, started.elapsed())?;
    }
    let failed = rows.iter().filter(|row| row.result.is_err()).count();
    println!("{} rows, {failed} failed", rows.len());
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The selection that the tests run.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    match ensure_installed(&PACKAGES) {
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        installed => installed?,
    }
    let rows = play(
        workspace,
        cases::all().into_iter().filter(|case| case.is_quick),
    );
    let failed = rows.iter().filter(|row| row.result.is_err()).count();
    ensure!(
        failed == 0,
        "{failed} of {} rows failed, see above",
        rows.len()
    );
    Ok(Outcome::Passed(format!("{} rows", rows.len())))
}

/// Plays rows one after the other: all of them want the same port.
fn play(workspace: &Workspace, cases: impl Iterator<Item = Case>) -> Vec<Row> {
    cases
        .map(|case| {
            let started = Instant::now();
            let result =
                pair::play(&workspace.portolan, &case).map_err(|error| format!("{error:#}"));
            let took = started.elapsed();
            let word = match &result {
                Ok(()) => "passed".to_owned(),
                Err(why) => format!("FAILED: {why}"),
            };
            println!("{:<52} {:5.1} s  {word}", case.name, took.as_secs_f64());
            Row { case, result, took }
        })
        .collect()
}

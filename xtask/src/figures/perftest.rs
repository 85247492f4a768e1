//! `cargo xtask figures perftest`.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use portolan_lab::judge;
use portolan_lab::machine::{Cache, Suite};

use super::{Marks, document};
use crate::install;
use crate::test::Workspace;

pub(super) const MARKS: Marks = Marks {
    begin: "<!-- begin: `cargo xtask figures perftest` writes this -->\n",
    end: "<!-- end: `cargo xtask figures perftest` -->\n",
};

/// Measures Debian's perftest on the software device and on rdma_rxe in a kernel machine, and writes the
/// figures.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Number of rounds, in which rdma_rxe and the software device take turns.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Only print the figures.
    #[arg(long)]
    print: bool,
}

pub(super) fn write(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    let built = install::build(&workspace, &install::PACKAGES)?;
    let cache = Cache::locate()?;
    let (report, figures) = judge::perftest(&cache, Suite::Bookworm, &built, arguments.rounds)?;
    println!("{report}");
    ensure!(report.passed(), "the measurement failed, see above");
    let text = figures.context("a round has no figures")?.markdown();
    println!("{text}");
    if !arguments.print {
        document(&workspace, MARKS, &text)?;
    }
    Ok(ExitCode::SUCCESS)
}

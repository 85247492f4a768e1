//! Our software device with the rdma_rxe of both kernels, each pair in two machines. C programs with one end on
//! each run in one machine.

use std::fs;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use portolan_lab::judge::{self, Extent, Group, Interop, Report};
use portolan_lab::machine::{Cache, MachineError};

use crate::kernels;
use crate::test::{Outcome, Workspace};

/// The document with the results of the whole matrix, below the workspace's root.
const DOCUMENT: &str = "docs/interop.md";

/// The task named in its section. Sections of C programs name it with their option.
const TASK: &str = "interop";

/// Play all exchanges between Linux's rdma_rxe and our software device, and write the results to
/// docs/interop.md.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Play only the tests' selection, and write nothing
    #[arg(long, conflicts_with = "programs")]
    selected: bool,
    /// Play Debian's C programs instead, with one end on our libraries and the other on Debian's, and write
    /// their section
    #[arg(long, value_name = "WHOSE")]
    programs: Option<Programs>,
    /// Play only the rows that contain this, and write nothing
    #[arg(long, value_name = "TEXT", requires = "programs")]
    only: Option<String>,
    /// Continue a run of every size that was cut off: what the same build has passed is not played again
    #[arg(long, requires = "programs")]
    resume: bool,
}

/// The C programs, in groups of similar duration.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Programs {
    /// Of rdmacm-utils
    Librdmacm,
    /// Of rdmacm-utils, over rsockets
    Rsockets,
    /// rstream and riostream with every size: about two hours
    EverySize,
    /// Of ibverbs-utils
    PingPongs,
    /// Of perftest
    Perftest,
}

impl Programs {
    /// The group that plays in one machine; `None` for every size.
    fn group(self) -> Option<Group> {
        match self {
            Self::Librdmacm => Some(Group::Librdmacm),
            Self::Rsockets => Some(Group::Rsockets),
            Self::EverySize => None,
            Self::PingPongs => Some(Group::PingPongs),
            Self::Perftest => Some(Group::Perftest),
        }
    }

    fn task(self) -> &'static str {
        match self {
            Self::Librdmacm => "interop --programs librdmacm",
            Self::Rsockets => "interop --programs rsockets",
            Self::EverySize => "interop --programs every-size",
            Self::PingPongs => "interop --programs ping-pongs",
            Self::Perftest => "interop --programs perftest",
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    if let Some(programs) = arguments.programs {
        return run_programs(&workspace, programs, arguments);
    }
    let command = [
        "--package",
        "portolan-cli",
        "--package",
        "portolan-cli-examples",
        "--bins",
    ];
    workspace.cargo(&[&["build", "--quiet", "--release"], &command[..]].concat())?;
    let extent = match arguments.selected {
        true => Extent::Selected,
        false => Extent::Whole,
    };
    let started = Instant::now();
    let results = play(&workspace, extent)?;
    let section = judge::section(&results, started.elapsed());
    if extent == Extent::Whole {
        write(&workspace, TASK, &section)?;
    }
    Ok(told(results.iter().map(|result| &result.report)))
}

fn run_programs(
    workspace: &Workspace,
    programs: Programs,
    arguments: &Arguments,
) -> Result<ExitCode> {
    let only = arguments.only.as_deref();
    ensure!(
        !arguments.resume || programs.group().is_none(),
        "--resume is for --programs every-size"
    );
    workspace.cargo(&["shipped"])?;
    let cache = Cache::locate()?;
    let started = Instant::now();
    let (section, reports) = match programs.group() {
        Some(group) => {
            let results = kernels::on_each_in_turn(|debian| {
                judge::mixed(&cache, debian, &workspace.portolan, group, only)
            })?;
            let section = judge::mixed_section(&results, started.elapsed());
            let reports = results.into_iter().map(|result| result.report);
            (section, reports.collect::<Vec<_>>())
        }
        None => {
            let results = kernels::on_each(|debian| {
                let tell = |line: &str| println!("{line}");
                judge::every_size(
                    &cache,
                    debian,
                    &workspace.portolan,
                    only,
                    arguments.resume,
                    &tell,
                )
            })?;
            let section = judge::every_size_section(&results, started.elapsed());
            let reports = results.into_iter().map(|result| result.report);
            (section, reports.collect())
        }
    };
    match only {
        Some(_) => println!("{section}"),
        None => write(workspace, programs.task(), &section)?,
    }
    Ok(told(reports.iter()))
}

/// Writes a section of [`DOCUMENT`].
fn write(workspace: &Workspace, task: &str, section: &str) -> Result<()> {
    let path = workspace.root.join(DOCUMENT);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {DOCUMENT}"))?;
    fs::write(&path, judge::document(task, &text, section))
        .with_context(|| format!("cannot write {DOCUMENT}"))?;
    println!("{DOCUMENT} is written");
    Ok(())
}

/// Prints the reports of all kernels.
fn told<'a>(reports: impl Iterator<Item = &'a Report>) -> ExitCode {
    let mut all_passed = true;
    for report in reports {
        println!("{report}");
        all_passed &= report.passed();
    }
    match all_passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// The selection for the tests.
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
    ensure!(all_passed, "exchanges failed, see above");
    let judges = results
        .iter()
        .map(|result| format!("Linux {}", result.report.kernel_release));
    let judges: Vec<_> = judges.collect();
    Ok(Outcome::Passed(judges.join(", ")))
}

fn play(workspace: &Workspace, extent: Extent) -> Result<Vec<Interop>, MachineError> {
    let cache = Cache::locate()?;
    let peer = judge::verify_peer(&cache)?;
    let verify = workspace.target.join("release/portolan-verify");
    kernels::on_each(|debian| {
        judge::interop(&cache, debian, &workspace.portolan, &verify, &peer, extent)
    })
}

//! Debian's unmodified C programs on our libraries and software devices, through `portolan exec`. They run at both
//! ends, or against our command if it speaks their protocol.

mod benchmarks;
mod beside;
mod case;
mod cases;
pub(crate) mod crates;
mod document;
mod fabtests;
mod figures;
pub(crate) mod packages;
mod pair;
mod ready;
mod running;
mod side;
mod valgrind;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use portolan_lab::machine::{MachineError, ensure_installed};

use crate::namespace::{self, Namespace};
use crate::parallel::side_by_side;
use crate::test::{Outcome, Workspace};
use case::{Case, Network};
use document::Row;
use side::{Files, Side, Sides};

/// Time limit of a row.
const ROW_TIME_MAX: Duration = Duration::from_secs(180);

/// Arguments of `programs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Play only the rows whose clients' command lines contain this, and write no document
    #[arg(long)]
    only: Option<String>,
    /// Play only programs of sockets, and write their section
    #[arg(long, conflicts_with_all = ["only", "beside"])]
    sockets: bool,
    /// Play the stacks that stand on verbs in two kernel machines of 4 GiB, on our libraries and on rdma_rxe, instead
    #[arg(long)]
    beside: bool,
    #[command(flatten)]
    choice: beside::Choice,
    /// Hide rdma-core's configuration and drivers and udev's data from the programs, as containers lack them, and write
    /// no document
    #[arg(long, conflicts_with = "beside")]
    bare: bool,
    /// Play a selection under valgrind, and look for invalid accesses of our libraries; write no document
    #[arg(long, conflicts_with_all = ["beside", "bare"])]
    valgrind: bool,
    /// Play what is built already, for users who may not build; write no document
    #[arg(long)]
    no_build: bool,
    /// In such a machine, which has no cargo: play the rows this way
    #[arg(long, hide = true)]
    in_machine: Option<beside::Way>,
    /// The numbers of these rows
    #[arg(long, hide = true, value_delimiter = ',')]
    rows: Vec<usize>,
}

/// Plays every row and writes the document.
pub(crate) fn run_all(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    if let Some(way) = arguments.in_machine {
        return beside::play(&workspace, way, &arguments.rows);
    }
    ensure_installed(&packages::all())?;
    if !arguments.no_build {
        workspace.cargo(&["shipped"])?;
        crates::ensure_all_built(&workspace)?;
        fabtests::ensure_built(&workspace)?;
        benchmarks::ensure_there(&workspace)?;
    }
    ensure!(
        Namespace::is_possible(workspace.is_root)?,
        "{}",
        namespace::UNAVAILABLE
    );
    if arguments.beside {
        return beside::run(&workspace, arguments.only.as_deref(), &arguments.choice);
    }
    let started = Instant::now();
    let chosen = |case: &Case| {
        let only = arguments.only.as_deref();
        let is_chosen = only.is_none_or(|only| case.client_text().contains(only));
        is_chosen
            && (case.is_of_sockets() || !arguments.sockets)
            && (!arguments.valgrind || valgrind::is_checked(case))
    };
    let chosen: Vec<Case> = cases::all().into_iter().filter(chosen).collect();
    let manner = match (arguments.bare, arguments.valgrind) {
        (true, _) => Manner::Bare,
        (_, true) => {
            ensure_installed(&[valgrind::PACKAGE])?;
            Manner::Checked
        }
        _ => Manner::Plain,
    };
    let rows = side_by_side(&chosen, |case| play(&workspace, manner, case));
    ensure!(!rows.is_empty(), "no row has this in its client's command");
    let failed = rows.iter().filter(|row| row.result.is_err()).count();
    println!("{} rows, {failed} failed", rows.len());
    if arguments.only.is_none() && manner == Manner::Plain && !arguments.no_build {
        document::write(&workspace.root, rows, started.elapsed())?;
    }
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Plays the tests' selection.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    match ensure_installed(&packages::OF_TESTS) {
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        installed => installed?,
    }
    if !Namespace::is_possible(workspace.is_root)? {
        return Ok(Outcome::LeftOut(namespace::UNAVAILABLE.into()));
    }
    crates::ensure_selection_built(workspace)?;
    let quick = cases::all().into_iter().filter(|case| case.is_quick);
    let quick: Vec<Case> = quick.collect();
    let rows = side_by_side(&quick, |case| play(workspace, Manner::Plain, case));
    let failed = rows.iter().filter(|row| row.result.is_err()).count();
    ensure!(
        failed == 0,
        "{failed} of {} rows failed, see above",
        rows.len()
    );
    Ok(Outcome::Passed(format!("{} rows", rows.len())))
}

/// How rows are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Plain,
    /// Without rdma-core's files.
    Bare,
    /// Under valgrind.
    Checked,
}

/// Plays a row in its own network namespace. Rows run in parallel, because some sleep for seconds.
fn play(workspace: &Workspace, manner: Manner, case: &Case) -> Row {
    let started = Instant::now();
    let namespace = match case.network {
        Network::Loopback => Namespace::new(workspace.is_root),
        Network::Ethernet => Namespace::with_ethernet(workspace.is_root),
    };
    let played = namespace.and_then(|namespace| {
        let checked_in = match manner {
            Manner::Checked => Some(namespace.new_folder("valgrind")?),
            _ => None,
        };
        let side = Side::Ours {
            portolan: &workspace.portolan,
            namespace: &namespace,
            files: match manner {
                Manner::Bare => Files::Bare,
                _ => Files::Whole,
            },
            checked_in: checked_in.as_deref(),
            is_link_local: false,
        };
        let sides = Sides {
            server: side,
            client: side,
            row_time_max: ROW_TIME_MAX,
        };
        pair::play(&sides, case)?;
        checked_in.as_deref().map_or(Ok(()), valgrind::judge)
    });
    let result = played.map_err(|error| format!("{error:#}"));
    let took = started.elapsed();
    let word = match &result {
        Ok(()) => "passed".to_owned(),
        Err(why) => format!("FAILED: {why}"),
    };
    let client = case.client_text();
    println!("{:5.1} s  {client}  {word}", took.as_secs_f64());
    Row {
        case: case.clone(),
        result,
        took,
    }
}

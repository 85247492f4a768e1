//! Debian's unmodified C programs on our libraries and software devices, through `portolan exec`: at both ends,
//! or with our command at one end where the protocol is shared.

mod case;
mod cases;
mod document;
mod pair;
mod ready;
mod running;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use portolan_lab::machine::{MachineError, Package, ensure_installed};

use crate::install;
use crate::namespace::{self, Namespace};
use crate::parallel::side_by_side;
use crate::test::{Outcome, Workspace};
use case::{Case, Network};
use document::Row;

/// The programs' packages, and what their namespace needs.
const PACKAGES: [Package; 11] = [
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
    Package {
        name: "python3-pyverbs",
        purpose: "rdma-core's own tests",
    },
    Package {
        name: "libfabric-bin",
        purpose: "messages by libfabric",
    },
    Package {
        name: "ucx-utils",
        purpose: "messages, memory operations and streams by UCX",
    },
    Package {
        name: "openmpi-bin",
        purpose: "MPI on UCX and on libfabric",
    },
    Package {
        name: "libopenmpi-dev",
        purpose: "the compiler of Open MPI",
    },
    Package {
        name: "mpich",
        purpose: "another MPI on UCX",
    },
    Package {
        name: "libmpich-dev",
        purpose: "the compiler of MPICH",
    },
    Package {
        name: "iproute2",
        purpose: "the interfaces of a network namespace",
    },
];

/// Arguments of `programs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Play only the rows whose clients' command lines contain this, and write no document
    #[arg(long)]
    only: Option<String>,
}

/// Plays every row and writes the document.
pub(crate) fn run_all(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    ensure_installed(&PACKAGES)?;
    let targets = ["--lib", "--bins"];
    let release = ["build", "--release"];
    workspace.cargo(&[&release[..], &install::PACKAGES, &targets].concat())?;
    ensure!(
        Namespace::is_possible(workspace.is_root)?,
        "{}",
        namespace::UNAVAILABLE
    );
    let started = Instant::now();
    let chosen = |case: &Case| {
        let only = arguments.only.as_deref();
        only.is_none_or(|only| case.client_text().contains(only))
    };
    let chosen: Vec<Case> = cases::all().into_iter().filter(chosen).collect();
    let rows = side_by_side(&chosen, |case| play(&workspace, case));
    ensure!(!rows.is_empty(), "no row's client command contains this");
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

/// Plays the tests' selection.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    match ensure_installed(&PACKAGES) {
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        installed => installed?,
    }
    if !Namespace::is_possible(workspace.is_root)? {
        return Ok(Outcome::LeftOut(namespace::UNAVAILABLE.into()));
    }
    let quick = cases::all().into_iter().filter(|case| case.is_quick);
    let quick: Vec<Case> = quick.collect();
    let rows = side_by_side(&quick, |case| play(workspace, case));
    let failed = rows.iter().filter(|row| row.result.is_err()).count();
    ensure!(
        failed == 0,
        "{failed} of {} rows failed, see above",
        rows.len()
    );
    Ok(Outcome::Passed(format!("{} rows", rows.len())))
}

/// Plays a row in a network namespace of its own. Rows run in parallel, because some sleep for seconds.
fn play(workspace: &Workspace, case: &Case) -> Row {
    let started = Instant::now();
    let namespace = match case.network {
        Network::Loopback => Namespace::new(workspace.is_root),
        Network::Ethernet => Namespace::with_ethernet(workspace.is_root),
    };
    let played = namespace.and_then(|namespace| pair::play(&workspace.portolan, &namespace, case));
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

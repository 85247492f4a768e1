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
mod pair;
mod ready;
mod running;
mod side;
mod valgrind;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use portolan_lab::machine::{MachineError, Package, ensure_installed};

use crate::namespace::{self, Namespace};
use crate::parallel::side_by_side;
use crate::test::{Outcome, Workspace};
use case::{Case, Network};
use document::Row;
use side::{Files, Side, Sides};

/// The packages of the programs and of the namespace setup.
const PACKAGES: [Package; 35] = [
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
        name: "qperf",
        purpose: "another measurement of operations",
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
        name: "netpipe-openmpi",
        purpose: "messages of every size by Open MPI",
    },
    Package {
        name: "netpipe-mpich2",
        purpose: "messages of every size by MPICH",
    },
    Package {
        name: "fio",
        purpose: "its engine of RDMA",
    },
    Package {
        name: "tgt",
        purpose: "a target of iSER",
    },
    Package {
        name: "libiscsi-bin",
        purpose: "an initiator of iSER",
    },
    Package {
        name: "iperf3",
        purpose: "a throughput of sockets",
    },
    Package {
        name: "redis-server",
        purpose: "a server of sockets",
    },
    Package {
        name: "redis-tools",
        purpose: "its client and its benchmark",
    },
    Package {
        name: "memcached",
        purpose: "another server of sockets",
    },
    Package {
        name: "libmemcached-tools",
        purpose: "its tests",
    },
    Package {
        name: "nginx-light",
        purpose: "a web server",
    },
    Package {
        name: "apache2-utils",
        purpose: "many requests to it",
    },
    Package {
        name: "curl",
        purpose: "files from it",
    },
    Package {
        name: "rsync",
        purpose: "copies of trees by its daemon",
    },
    Package {
        name: "postgresql",
        purpose: "a server that forks for each connection",
    },
    Package {
        name: "openssh-server",
        purpose: "a server that forks and executes itself",
    },
    Package {
        name: "openssh-client",
        purpose: "its client",
    },
    Package {
        name: "socat",
        purpose: "a server that executes a program",
    },
    Package {
        name: "netcat-openbsd",
        purpose: "a file by a bare socket",
    },
    Package {
        name: "libboost-dev",
        purpose: "Boost.Asio",
    },
    Package {
        name: "g++",
        purpose: "its compiler",
    },
    Package {
        name: "python3",
        purpose: "its http.server and asyncio",
    },
    Package {
        name: "nodejs",
        purpose: "its net and http",
    },
    Package {
        name: "iproute2",
        purpose: "the interfaces of a network namespace",
    },
];

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
    ensure_installed(&PACKAGES)?;
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
    match ensure_installed(&PACKAGES) {
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

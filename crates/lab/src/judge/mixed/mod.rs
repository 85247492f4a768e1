//! Pairs of Debian's programs, one end on our libraries and the software device, the other on
//! Debian's libraries and rdma_rxe. They run in one kernel machine, each end in its own network
//! namespace. For comparison the same pairs run with Debian's libraries at both ends, and with our
//! librdmacm over rdma_rxe at both ends.

mod rows;
mod table;

use std::io;
use std::path::Path;
use std::time::Duration;

use super::{Report, step, topology};
use crate::machine::{
    Cache, Job, Machine, MachineError, OnFailure, Package, Step, Suite, ensure_installed,
};
pub use rows::Group;
use rows::{Ends, Row};
pub use table::mixed_section;

const SCRIPT: &str = include_str!("../guest/mixed.sh");
/// Guest path of [`SCRIPT`].
const SCRIPT_PATH: &str = "/job/mixed.sh";
/// Packages that the base machine lacks.
const PACKAGES: &[Package] = &[Package {
    name: "perftest",
    purpose: "latency and bandwidth by every operation",
}];
/// Perftest's programs, and their folder in Debian.
const PERFTEST: [&str; 8] = [
    "/usr/bin/ib_atomic_bw",
    "/usr/bin/ib_atomic_lat",
    "/usr/bin/ib_read_bw",
    "/usr/bin/ib_read_lat",
    "/usr/bin/ib_send_bw",
    "/usr/bin/ib_send_lat",
    "/usr/bin/ib_write_bw",
    "/usr/bin/ib_write_lat",
];
/// The command that lowers the priority of perftest's clients, see `guest/mixed.sh`. It is in
/// coreutils, which every Debian system has.
const NICE: &str = "/usr/bin/nice";
/// Our libraries, which are beside the command.
const LIBRARIES: [&str; 2] = ["libibverbs.so", "librdmacm.so"];
/// The name of our librdmacm for programs that keep Debian's libibverbs.
const LIBRDMACM: &str = "librdmacm.so.1";
/// Far longer than everything takes on a slow host.
const DEADLINE: Duration = Duration::from_secs(3 * 3600);
/// A step's time limit, above those of its programs.
const STEP_LIMIT: Duration = Duration::from_secs(900);

/// The results of the programs on one kernel.
#[derive(Debug)]
pub struct Mixed {
    /// Failures and times.
    pub report: Report,
    group: Group,
    plays: Vec<Played>,
}

/// A row of the table with its ends.
#[derive(Debug)]
struct Played {
    row: Row,
    ends: Ends,
    has_passed: bool,
    time: Duration,
}

/// Plays the rows of `group`, optionally only those whose names contain `only`, between the
/// libraries beside the command `portolan` and Debian's over the rdma_rxe of the kernel of
/// `debian`.
///
/// # Errors
/// [`MachineError::Unavailable`] if this host cannot provide the machine or perftest; other
/// variants if the machine failed. Failures in it are in the report.
pub fn mixed(
    cache: &Cache,
    debian: Suite,
    portolan: &Path,
    group: Group,
    only: Option<&str>,
) -> Result<Mixed, MachineError> {
    ensure_installed(PACKAGES)?;
    let machine = Machine::prepare(cache, debian)?;
    let plays: Vec<(Row, Ends)> = rows::all()
        .into_iter()
        .filter(|row| row.group == group && only.is_none_or(|only| row.name.contains(only)))
        .flat_map(|row| {
            row.ends()
                .map(|ends| (row.clone(), ends))
                .collect::<Vec<_>>()
        })
        .collect();
    let mut job = with_programs(topology(), portolan)
        .program(LIBRDMACM, portolan.with_file_name(LIBRARIES[1]))
        .program("portolan", portolan)
        .program("nice", NICE)
        .deadline(DEADLINE);
    for program in PERFTEST {
        job = job.program(program.trim_start_matches("/usr/bin/"), program);
    }
    for (row, ends) in &plays {
        job = job.step(play(row, *ends).limit(STEP_LIMIT));
    }
    job = job.step(step(
        "the kernel logs no bug or warning".to_owned(),
        "no_fault_of_the_kernels",
    ));
    let outcome = machine.run(&job, &mut io::sink())?;
    let report = Report::new(machine.kernel_release(), &outcome, job.step_names());
    let plays = plays
        .into_iter()
        .map(|(row, ends)| {
            let step = outcome.step(&row.step(ends));
            Played {
                has_passed: step.is_some_and(|step| step.passed()),
                time: step.map(|step| step.elapsed).unwrap_or_default(),
                row,
                ends,
            }
        })
        .collect();
    let report = report.keep_if_failed(outcome);
    Ok(Mixed {
        report,
        group,
        plays,
    })
}

/// Adds the files of the steps of [`selected`] to the job, except the command and our librdmacm.
pub(super) fn with_programs(job: Job, portolan: &Path) -> Job {
    let job = job.file(SCRIPT_PATH, SCRIPT);
    LIBRARIES.iter().fold(job, |job, name| {
        job.program(*name, portolan.with_file_name(name))
    })
}

/// The rows that the tests play, in a machine prepared by [`with_programs`].
pub(super) fn selected() -> Vec<Step> {
    let rows = rows::all();
    rows.iter()
        .flat_map(|row| row.quick_ends().map(|ends| play(row, ends)))
        .collect()
}

fn play(row: &Row, ends: Ends) -> Step {
    let script = format!(". {SCRIPT_PATH}\n{}", row.script(ends));
    step(row.step(ends), &script).on_failure(OnFailure::Continue)
}

//! Our software device and Linux's rdma_rxe in two machines connected by a wire: Debian's programs
//! on one side, the `portolan` command on the other, and data that both ends check.
//!
//! Our machine leads: it sends commands to the other one over TCP (`guest/interop_kernel.sh`).

mod matrix;
mod table;

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{LIBRARY, LIBRARY_PATH, Part, Report, c_program, processors};
use crate::machine::{Cache, Job, Machine, MachineError, OnFailure, Step, Suite, Wire};
pub use matrix::Extent;
use matrix::{Network, Play};
pub use table::section;

const LEADER: &str = include_str!("../guest/interop.sh");
const LEADER_PATH: &str = "/job/interop.sh";
pub(super) const FOLLOWER: &str = include_str!("../guest/interop_kernel.sh");
pub(super) const FOLLOWER_PATH: &str = "/job/interop_kernel.sh";
/// The C program's source.
const VERIFY_SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/c/verify.c");
/// The program's name in the machines.
const VERIFY: &str = "verify-peer";
/// Time limit of a step, above those of its programs.
const STEP_LIMIT: Duration = Duration::from_secs(900);
/// Far longer than everything takes on a slow host.
const DEADLINE: Duration = Duration::from_secs(4 * 3600);

/// The results of the whole matrix on one kernel.
#[derive(Debug)]
pub struct Interop {
    /// Failures and times.
    pub report: Report,
    /// The exchanges in order, with their results.
    plays: Vec<Played>,
}

/// One play on one network.
#[derive(Debug)]
struct Played {
    play: Play,
    network: Network,
    has_passed: bool,
    time: Duration,
    /// `portolan-verify`'s report: a JSON object per case and line.
    told: String,
}

/// Compiles the C program for the other end of `portolan-verify`.
///
/// # Errors
/// [`MachineError::Unavailable`] if this host has no compiler and cannot install one.
pub fn verify_peer(cache: &Cache) -> Result<PathBuf, MachineError> {
    c_program::compile(cache, VERIFY, VERIFY_SOURCE)
}

/// Runs the matrix between the program `portolan` on a software device and the rdma_rxe of the
/// kernel of `debian`. `verify` is the program at our end, `verify_peer` the C program.
///
/// # Errors
/// [`MachineError::Unavailable`] if this host cannot provide the machines; other variants if the
/// machines failed. Failures in them are in the report.
pub fn interop(
    cache: &Cache,
    debian: Suite,
    portolan: &Path,
    verify: &Path,
    verify_peer: &Path,
    extent: Extent,
) -> Result<Interop, MachineError> {
    let machine = Machine::prepare(cache, debian)?;
    let job = || {
        Job::new()
            .deadline(DEADLINE)
            .processors(processors(debian))
            .file(LIBRARY_PATH, LIBRARY)
            .file(FOLLOWER_PATH, FOLLOWER)
            .program(VERIFY, verify_peer)
    };
    let follower = job()
        .step(Step::new("follow", script("set_up kernel; add_link; obey", &[])).limit(DEADLINE));
    let mut leader = job()
        .file(LEADER_PATH, LEADER)
        .program("portolan", portolan)
        .program("portolan-verify", verify)
        .step(step("two machines on a wire", "meet").on_failure(OnFailure::Stop));
    let plan = matrix::plan(extent);
    for (network, plays) in &plan {
        let set = format!("network {} {}", network.mtu, network.loss_percent);
        leader = leader.step(step(&network.to_string(), &set));
        for play in plays {
            let name = format!("{play}, {network}");
            leader = leader.step(step(&name, &play.script(*network)));
        }
        if network.is_lossy() {
            leader = leader.step(step(&format!("packets were lost, {network}"), "has_lost"));
        }
    }
    leader = leader.step(step("the kernel logs no bug or warning", "the_other_ends"));
    let (outcome, other) = match machine.run_pair([&leader, &follower], Wire::Plain)? {
        [Ok(outcome), other] => (outcome, other),
        // If both failed, the one that was left behind has less to say.
        [Err(MachineError::LeftBehind { .. }), Err(error)] | [Err(error), _] => return Err(error),
    };
    let mut report = Report::new(machine.kernel_release(), &outcome, leader.step_names());
    match other {
        Ok(mut other) if !report.passed() => {
            other.keep();
        }
        Ok(_) => {}
        // The leader's results are reported anyway.
        Err(error) => report.add(Part {
            name: "the other machine".to_owned(),
            verdict: Err(error.to_string()),
            elapsed: Duration::ZERO,
        }),
    }
    let told = |play: &Play, network| {
        let name = play.file_name(network);
        std::fs::read_to_string(outcome.files().join("verify").join(name)).unwrap_or_default()
    };
    let mut plays = Vec::new();
    for (network, each) in plan {
        for play in each {
            let name = format!("{play}, {network}");
            let step = outcome.step(&name);
            plays.push(Played {
                network,
                has_passed: step.is_some_and(|step| step.passed()),
                time: step.map(|step| step.elapsed).unwrap_or_default(),
                told: told(&play, network),
                play,
            });
        }
    }
    let report = report.keep_if_failed(outcome);
    Ok(Interop { report, plays })
}

fn step(name: &str, command: &str) -> Step {
    Step::new(name, script(command, &[LEADER_PATH]))
        .limit(STEP_LIMIT)
        .on_failure(OnFailure::Continue)
}

fn script(command: &str, more: &[&str]) -> String {
    let sources = [LIBRARY_PATH, FOLLOWER_PATH].iter().chain(more);
    let sources: String = sources.map(|path| format!(". {path}\n")).collect();
    format!("{sources}{command}\n")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_play_has_its_own_name_and_file() {
        for extent in [Extent::Whole, Extent::Selected] {
            let (mut names, mut files) = (HashSet::new(), HashSet::new());
            for (network, plays) in matrix::plan(extent) {
                for play in plays {
                    assert!(
                        names.insert(format!("{play}, {network}")),
                        "{play}, {network}"
                    );
                    assert!(files.insert(play.file_name(network)), "{play}, {network}");
                }
            }
        }
    }
}

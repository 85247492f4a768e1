//! The judge: Linux's own RoCE as our peer.
//!
//! One kernel machine holds two hosts: rdma_rxe on one end of a veth pair, and the `portolan`
//! command on the other end in its own network namespace. Debian's `rping` and our `listen` and
//! `ping` talk to each other in both directions. tcpdump captures the traffic. On this host tshark
//! checks the captures, and `portolan decode` checks every ICRC.

mod administrator;
mod bad_network;
mod c_library;
mod c_program;
mod capture;
mod doctor;
mod events;
mod every_size;
mod figures;
mod interop;
mod iwarp;
mod kernel_provider;
mod mixed;
mod perftest;
mod ptrace_scope;
mod report;
mod section;

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

pub use bad_network::bad_network;
pub use capture::{Dissection, dissect};
pub use events::{Difference, documented, events};
pub use every_size::{EverySize, every_size, every_size_section};
pub use figures::{Figures, Load, Subject, figures};
pub use interop::{Extent, Interop, interop, section, verify_peer};
pub use kernel_provider::{KernelPrograms, kernel_provider};
pub use mixed::{Group, Mixed, mixed, mixed_section};
pub use perftest::{Perftest, perftest};
pub use report::{Part, Report};
pub use section::document;

use crate::machine::{
    Cache, Job, Machine, MachineError, OnFailure, Outcome, Package, Step, Suite, ensure_installed,
};

const TOPOLOGY: &str = include_str!("guest/topology.sh");
const LIBRARY: &str = include_str!("guest/judge.sh");

/// Guest path of [`LIBRARY`].
const LIBRARY_PATH: &str = "/job/judge.sh";
/// Many times what everything takes on a slow host.
const DEADLINE: Duration = Duration::from_secs(2400);
/// Time limit of a step, above those of its three programs.
const STEP_LIMIT: Duration = Duration::from_secs(400);
/// Iterations of an exchange, as rping counts them.
const ITERATIONS: u32 = 100;
/// Iterations of the exchanges with different message sizes.
const SIZE_ITERATIONS: u32 = 5;
/// Iterations of exchanges in which every lost packet costs a timeout.
const LOSSY_ITERATIONS: u32 = 20;
/// Several packets each way at the path MTU of 1024 bytes, so that losses hit the middle too.
const LOSSY_SIZE: u32 = 5000;
/// The largest size of rping.
const MAX_SIZE: u32 = 65_535;
/// Sizes of our ping: one byte, around the path MTU, and the largest.
const PING_SIZES: [u32; 5] = [1, 1023, 1024, 1025, MAX_SIZE];
/// Sizes of rping, which refuses fewer than 23 bytes.
const RPING_SIZES: [u32; 5] = [23, 1023, 1024, 1025, MAX_SIZE];

/// The address families by their names in the guest's scripts.
const FAMILIES: [&str; 2] = ["4", "6"];
/// Datagrams of an exchange.
const DATAGRAMS: u32 = 10;
/// Sizes of a datagram in bytes: udaddy's default, and the largest that fits one packet.
const DATAGRAM_SIZES: [u32; 2] = [100, 1024];
/// Packages that this host needs to check captures.
const PACKAGES: &[Package] = &[Package {
    name: "tshark",
    purpose: "an independent dissector",
}];

/// Judges the program `portolan` (linked dynamically or statically) against rping on the rdma_rxe
/// of Linux 6.1. Every part runs, even after failures.
///
/// # Errors
/// [`MachineError::Unavailable`] if this host cannot provide the machine; other variants if the
/// machine failed. Errors of `portolan` are in the [`Report`].
pub fn linux_interop(cache: &Cache, portolan: &Path) -> Result<Report, MachineError> {
    judge(cache, portolan, exchanges())
}

fn judge(cache: &Cache, portolan: &Path, exchanges: Vec<Step>) -> Result<Report, MachineError> {
    let steps = baseline().into_iter().chain(exchanges);
    let job = steps
        .fold(topology(), Job::step)
        .processors(processors(Suite::Bookworm))
        .program("portolan", portolan);
    let (mut report, outcome) = run(cache, &job)?;
    for step in outcome.steps.iter().filter(|step| step.passed()) {
        let path = outcome
            .files()
            .join(format!("captures/{}.pcap", file_name(&step.name)));
        if path.exists() {
            report.add(judge_dissection(&step.name, &path));
            report.add(judge_decode(portolan, &step.name, &path));
        }
    }
    Ok(report.keep_if_failed(outcome))
}

/// Installs the packages that this host needs to check captures.
///
/// # Errors
/// [`MachineError::Unavailable`] if a package is missing and cannot be installed here.
pub fn prepare_host() -> Result<(), MachineError> {
    ensure_installed(PACKAGES)
}

fn run(cache: &Cache, job: &Job) -> Result<(Report, Outcome), MachineError> {
    prepare_host()?;
    let machine = Machine::prepare(cache, Suite::Bookworm)?;
    let outcome = machine.run(job, &mut io::sink())?;
    let report = Report::new(machine.kernel_release(), &outcome, job.step_names());
    Ok((report, outcome))
}

/// Processors of a test machine: one for Linux 6.1, which costs the host a quarter less; two for
/// Linux 7.
fn processors(debian: Suite) -> u32 {
    match debian {
        Suite::Bookworm => 1,
        Suite::TrixieBackports => 2,
    }
}

fn topology() -> Job {
    Job::new()
        .deadline(DEADLINE)
        .file(LIBRARY_PATH, LIBRARY)
        .step(Step::new(
            "rxe0 on a veth pair, both ends reachable",
            TOPOLOGY,
        ))
}

/// Rping, udaddy and mckey against themselves, to detect faults of the laboratory itself.
fn baseline() -> Vec<Step> {
    FAMILIES
        .iter()
        .map(|family| {
            let name = format!("rping with rping on rxe0, IPv{family}");
            step(name, &format!("kernel_alone {family} {ITERATIONS}"))
        })
        .chain(FAMILIES.iter().map(|family| {
            let name = format!("udaddy with udaddy on rxe0, IPv{family}");
            step(name, &format!("datagrams_alone {family}"))
        }))
        .chain([step(
            "mckey with mckey on rxe0, IPv4".to_owned(),
            "groups_alone",
        )])
        .collect()
}

/// Every exchange over IPv4 and IPv6. The many sizes test segmentation, which does not depend on
/// the address family, so IPv6 uses only the largest.
fn exchanges() -> Vec<Step> {
    let mut steps = exchanges_over("4", &PING_SIZES, &RPING_SIZES);
    steps.extend(exchanges_over("6", &[MAX_SIZE], &[MAX_SIZE]));
    for family in FAMILIES {
        steps.extend(datagrams_over(family));
    }
    steps.extend(groups());
    steps
}

/// Datagram services of each side with clients of the other.
fn datagrams_over(family: &str) -> Vec<Step> {
    let captured =
        |name: String, script: String| captured_step(format!("{name}, IPv{family}"), &script);
    let mut steps = vec![
        captured(
            "udaddy -s asks for a service that nobody offers".to_owned(),
            format!("kernel_asks_in_vain {family}"),
        ),
        captured(
            "our ping --ud asks for a service that nobody offers".to_owned(),
            format!("kernel_offers_nothing {family}"),
        ),
    ];
    for size in DATAGRAM_SIZES {
        steps.extend([
            captured(
                format!("our ping --ud, udaddy, {size} bytes"),
                format!("kernel_serves_datagrams {family} {size} {DATAGRAMS}"),
            ),
            captured(
                format!("udaddy -s, our listen --ud, {size} bytes"),
                format!("kernel_asks_for_datagrams {family} {size} {DATAGRAMS}"),
            ),
        ]);
    }
    steps
}

/// Groups with members on both sides. The kernel's rdma_cm refuses IPv6 groups over RoCEv2.
fn groups() -> Vec<Step> {
    let captured = |name: &str, script: String| captured_step(name.to_owned(), &script);
    vec![
        captured(
            "our mcast join, mckey -s",
            format!("kernel_sends_to_group {DATAGRAMS}"),
        ),
        captured(
            "mckey, our mcast send",
            format!("kernel_receives_from_group {DATAGRAMS}"),
        ),
        captured(
            "mckey, our mcast send --send-only",
            format!("kernel_receives_from_group {DATAGRAMS} --send-only"),
        ),
    ]
}

fn exchanges_over(family: &str, ping_sizes: &[u32], rping_sizes: &[u32]) -> Vec<Step> {
    let captured = |name: &str, script: &str| captured_step(format!("{name}, IPv{family}"), script);
    let plain = |name: &str, script: &str| step(format!("{name}, IPv{family}"), script);
    let mut steps = vec![
        captured(
            &format!("our ping, rping -s, {ITERATIONS} times"),
            &format!("kernel_serves {family} 64 {ITERATIONS}"),
        ),
        captured(
            &format!("rping -c, our listen, {ITERATIONS} times"),
            &format!("kernel_calls {family} 64 {ITERATIONS}"),
        ),
        captured(
            "rping -c to a port without listener gets reason 8",
            &format!("kernel_is_rejected {family}"),
        ),
        captured(
            "our ping to a port without listener reports the kernel's reason",
            &format!("kernel_rejects {family}"),
        ),
    ];
    steps.extend(ping_sizes.iter().map(|size| {
        captured(
            &format!("our ping, rping -s, {size} bytes"),
            &format!("kernel_serves {family} {size} {SIZE_ITERATIONS}"),
        )
    }));
    steps.extend(rping_sizes.iter().map(|size| {
        captured(
            &format!("rping -c, our listen, {size} bytes"),
            &format!("kernel_calls {family} {size} {SIZE_ITERATIONS}"),
        )
    }));
    steps.extend([
        captured(
            "our ping, rping -s, through loss and duplication",
            &format!("lossy kernel_serves {family} {LOSSY_SIZE} {LOSSY_ITERATIONS}"),
        ),
        captured(
            "rping -c, our listen, through loss and duplication",
            &format!("lossy kernel_calls {family} {LOSSY_SIZE} {LOSSY_ITERATIONS}"),
        ),
        captured(
            "three of our pings at once, rping -s -P",
            &format!("kernel_serves_many {family} 3 {SIZE_ITERATIONS}"),
        ),
        // Not captured: after a death, retransmissions continue past the end of the step.
        plain(
            "our ping reports in time that rping -s was killed",
            &format!("kernel_dies {family}"),
        ),
        plain(
            "our listen is killed, the next one serves rping -c",
            &format!("peer_dies {family}"),
        ),
    ]);
    steps
}

fn step(name: String, script: &str) -> Step {
    Step::new(name, format!(". {LIBRARY_PATH}\n{script}\n"))
        .limit(STEP_LIMIT)
        .on_failure(OnFailure::Continue)
}

fn captured_step(name: String, script: &str) -> Step {
    let script = format!("capture '{}'\n{script}\nend_capture", file_name(&name));
    step(name, &script)
}

/// A file name derived from the step's name.
fn file_name(step: &str) -> String {
    let word = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    step.chars().map(word).collect()
}

fn judge_dissection(step: &str, capture: &Path) -> Part {
    Part::measure(format!("tshark finds nothing malformed: {step}"), || {
        let dissection = dissect(capture).map_err(|error| error.to_string())?;
        dissection.check()?;
        Ok(format!("{} packets", dissection.packets))
    })
}

fn judge_decode(portolan: &Path, step: &str, capture: &Path) -> Part {
    Part::measure(format!("decode finds every ICRC valid: {step}"), || {
        let started = Instant::now();
        let output = std::process::Command::new(portolan)
            .arg("decode")
            .arg(capture)
            .output()
            .map_err(|error| format!("cannot run {}: {error}", portolan.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().unwrap_or_default().to_owned();
        if output.status.success() {
            Ok(format!("{last}, {:.2?}", started.elapsed()))
        } else {
            let errors = String::from_utf8_lossy(&output.stderr);
            Err(format!("{}: {last} {errors}", output.status))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Unavailable;

    /// Tests that boot machines. They are selected by the module's name.
    mod in_machines {
        use super::*;

        #[test]
        fn a_program_that_speaks_no_rdma_fails_every_exchange_and_only_those() {
            // One exchange of each kind.
            let kinds: Vec<_> = exchanges()
                .into_iter()
                .filter(|step| step.name().ends_with("IPv4") && !step.name().contains("bytes"))
                .collect();
            assert_eq!(kinds.len(), 11);
            let cache = Cache::locate().expect("the cache folder can be made");
            let report = match judge(&cache, Path::new("/bin/false"), kinds) {
                Err(MachineError::Unavailable(reason)) if !Unavailable::is_failure() => {
                    eprintln!("skipped: the judge of a program without RDMA: {reason}");
                    return;
                }
                other => other.unwrap(),
            };
            assert_eq!(report.parts.len(), 17, "{report}");
            for (number, part) in report.parts.iter().enumerate() {
                // The topology, rping and udaddy against themselves on both families, and mckey.
                assert_eq!(part.verdict.is_ok(), number < 6, "{}\n{report}", part.name);
            }
            assert!(!report.passed());
            let kept = report
                .kept
                .as_deref()
                .expect("the results of a failed run are kept");
            assert!(kept.is_dir());
            std::fs::remove_dir_all(kept).unwrap();
        }
    }

    #[test]
    fn steps_have_different_names_and_capture_files() {
        let mut names: Vec<_> = exchanges()
            .iter()
            .map(|step| file_name(step.name()))
            .collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

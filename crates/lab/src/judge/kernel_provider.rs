//! The library over the kernel's own devices: the conformance suite in a kernel machine.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::{
    Part, Report, administrator, c_library, c_program, doctor, events, iwarp, mixed, processors,
    ptrace_scope, step, topology,
};
use crate::machine::{Cache, Job, Machine, MachineError, Step, StepOutcome, Suite, kernel_headers};

/// A local address of rxe0 of each IP version, as `guest/topology.sh` gives it.
const ADDRESSES: [(&str, &str); 2] = [("IPv4", "10.7.0.1"), ("IPv6", "fd07::1")];
/// Time limit for one run of the suite. It takes a twentieth of that on a slow host.
const SUITE_LIMIT: Duration = Duration::from_secs(300);
const SCENES_SOURCE: &str = include_str!("guest/kernel_provider.sh");
/// Guest path of [`SCENES_SOURCE`].
const SCENES_PATH: &str = "/job/kernel_provider.sh";
/// Assertions about the kernel's header.
const ABI_SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/c/rdma_user_cm.c");
const ABI_PART: &str = "the newest commands are as the kernel's newest header has them";
/// Scenes played with the command after the suite, with their scripts.
const SCENES: [(&str, &str); 17] = [
    (
        "no id, queue pair or region is left in the kernel by the suite",
        "leaves_nothing",
    ),
    ("rping -c, our listen over rxe0, IPv4", "ours_serves 4 20"),
    ("rping -c, our listen over rxe0, IPv6", "ours_serves 6 20"),
    ("our ping over rxe0, rping -s, IPv4", "ours_calls 4 20"),
    ("our ping over rxe0, rping -s, IPv6", "ours_calls 6 20"),
    ("our ping and listen by route, IPv4", "ours_alone 4 20"),
    ("our ping and listen by route, IPv6", "ours_alone 6 20"),
    (
        "our datagrams and their service by route",
        "ours_alone 4 20 --ud",
    ),
    (
        "each destination goes to the provider of its route",
        "by_route",
    ),
    ("the peer is killed in mid-traffic", "peer_is_killed"),
    ("we are killed in mid-traffic", "we_are_killed"),
    (
        "the interface goes down in mid-traffic",
        "interface_goes_down",
    ),
    ("the link is deleted in mid-traffic", "link_goes"),
    (
        "the link is deleted under a listener that serves",
        "link_goes_under_listener",
    ),
    (
        "the link is deleted under a listener at every address",
        "link_goes_under_everywhere",
    ),
    (
        "no id, queue pair or region is left in the kernel by all that",
        "leaves_nothing",
    ),
    (
        "the kernel logs no bug or warning",
        "no_fault_of_the_kernels",
    ),
];

/// The programs to run in a machine over its kernel's devices.
#[derive(Clone, Copy, Debug)]
pub struct KernelPrograms<'a> {
    /// The conformance suite's test program.
    pub suite: &'a Path,
    /// Our librdmacm.
    pub library: &'a Path,
    /// A C program that makes every call of librdmacm, built with Debian's headers.
    pub calls: &'a Path,
    /// The same, built with our headers.
    pub calls_by_our_headers: &'a Path,
    /// The command. Our libraries are beside it.
    pub command: &'a Path,
    /// A subnet administrator and its client, for two of the kernel's ports.
    pub administrator: &'a Path,
    /// The player of scenarios.
    pub play: &'a Path,
}

/// Runs the conformance suite over the kernel provider on the rdma_rxe of the kernel of `debian`,
/// then Debian's programs on our librdmacm (both also over siw), then the command against rping and
/// through faults. At the end `portolan doctor` examines the machine, and two processes talk under Yama.
///
/// # Errors
/// [`MachineError::Unavailable`] if this host cannot provide the machine; other variants if the
/// machine failed. Failed tests are in the [`Report`].
pub fn kernel_provider(
    cache: &Cache,
    debian: Suite,
    programs: KernelPrograms<'_>,
) -> Result<Report, MachineError> {
    let machine = Machine::prepare_with_siw(cache, debian)?;
    let play_librdmacm = events::play_librdmacm(cache)?;
    let runs = ADDRESSES.map(|(family, address)| run_of_suite(family, address));
    let command = SCENES.iter().map(|(name, script)| {
        let script = format!(". {SCENES_PATH}\n{script}");
        step((*name).to_owned(), &script)
    });
    let job = runs
        .into_iter()
        .chain(c_library::steps())
        .chain(mixed::selected())
        .chain(administrator::steps())
        .chain(iwarp::steps(SCENES_PATH))
        .chain(command)
        .chain(doctor::steps(debian != Suite::Bookworm))
        .chain(ptrace_scope::steps())
        .fold(
            mixed::with_programs(topology(), programs.command),
            Job::step,
        )
        .processors(processors(debian))
        .file(SCENES_PATH, SCENES_SOURCE)
        .program("conformance", programs.suite)
        .program("portolan", programs.command)
        .program(administrator::PROGRAM, programs.administrator)
        .program(c_library::NAME, programs.library)
        .program("calls", programs.calls)
        .program("calls_by_our_headers", programs.calls_by_our_headers)
        .file(c_library::SCRIPT_PATH, c_library::SCRIPT);
    let job = iwarp::with_programs(job, [programs.play, &play_librdmacm]);
    let outcome = machine.run(&job, &mut io::sink())?;
    let mut report = Report::new(machine.kernel_release(), &outcome, job.step_names());
    for (part, step) in report.parts.iter_mut().zip(&outcome.steps) {
        if part.verdict.is_ok()
            && let Some(result) = result_of_suite(step)
        {
            part.verdict = result;
        }
    }
    iwarp::compare(&mut report, &outcome);
    if debian == Suite::TrixieBackports {
        report.add(Part::measure(ABI_PART.to_owned(), || {
            let headers = kernel_headers(cache, debian).map_err(|error| error.to_string())?;
            c_program::check(&headers, ABI_SOURCE).map_err(|error| error.to_string())?;
            Ok("rdma/rdma_user_cm.h".to_owned())
        }));
    }
    Ok(report.keep_if_failed(outcome))
}

fn run_of_suite(family: &str, address: &str) -> Step {
    let script = format!(
        "export PORTOLAN_PROVIDER=kernel PORTOLAN_TEST_ADDRESS={address}\n\
         conformance --test-threads 1"
    );
    let name = format!("conformance suite over the kernel provider, {family}");
    step(name, &script).limit(SUITE_LIMIT)
}

/// The result line of the test program, if the step runs the suite. A suite that ran no test, or
/// ignored one, has failed.
fn result_of_suite(step: &StepOutcome) -> Option<Result<String, String>> {
    if !step.name.starts_with("conformance") {
        return None;
    }
    let is_result = |line: &&str| line.starts_with("test result: ");
    let Some(line) = step.output.lines().find(is_result) else {
        return Some(Err(format!("no result of the tests:\n{}", step.output)));
    };
    let is_whole = line.contains(" 0 failed; 0 ignored; 0 measured; 0 filtered out")
        && !line.contains(" 0 passed;");
    Some(if is_whole {
        Ok(line.trim_start_matches("test result: ").to_owned())
    } else {
        Err(step.output.clone())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step_that_said(output: &str) -> StepOutcome {
        StepOutcome {
            name: "conformance suite".into(),
            status: 0,
            output: output.into(),
            elapsed: Duration::ZERO,
        }
    }

    #[test]
    fn only_a_suite_that_ran_whole_has_shown_something() {
        let whole =
            "test result: ok. 23 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; x";
        let verdict = |text: &str| result_of_suite(&step_that_said(text)).unwrap();
        assert!(verdict(whole).unwrap().starts_with("ok. 23 passed"));
        assert!(verdict(&whole.replace("23 passed", "0 passed")).is_err());
        assert!(verdict(&whole.replace("0 ignored", "1 ignored")).is_err());
        assert!(verdict(&whole.replace("0 filtered", "3 filtered")).is_err());
        assert!(verdict("Segmentation fault").is_err());
    }
}

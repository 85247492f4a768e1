//! The library over the kernel's own devices: the suite that every provider passes, in a kernel machine.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::{Report, step, topology};
use crate::machine::{Cache, Machine, MachineError, Step, StepOutcome, Suite};

/// A local address of rxe0 of each IP version, as `guest/topology.sh` gives it.
const ADDRESSES: [(&str, &str); 2] = [("IPv4", "10.7.0.1"), ("IPv6", "fd07::1")];
/// What one run of the suite may take; on a slow host it takes a twentieth.
const SUITE_LIMIT: Duration = Duration::from_secs(300);
/// Objects of the kernel's own on rxe0, for management datagrams: nothing else may stay.
const OWN_OBJECTS: &str = "pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0";

/// Runs the conformance suite over the kernel provider on the rdma_rxe of the kernel of `debian`; `suite` is
/// its test program.
///
/// # Errors
/// [`MachineError::Unavailable`] if this host cannot provide the machine; other variants if the
/// machine could not do its work. Tests that fail are in the [`Report`].
pub fn kernel_provider(cache: &Cache, debian: Suite, suite: &Path) -> Result<Report, MachineError> {
    let machine = Machine::prepare(cache, debian)?;
    let runs = ADDRESSES.map(|(family, address)| run_of_suite(family, address));
    let nothing_left = format!("rdma resource show\nrdma resource show | grep -q '{OWN_OBJECTS}'");
    let leaves_nothing = "no id, queue pair or region is left in the kernel";
    let job = runs
        .into_iter()
        .chain([step(leaves_nothing.to_owned(), &nothing_left)])
        .fold(topology(), crate::machine::Job::step)
        .program("conformance", suite);
    let outcome = machine.run(&job, &mut io::sink())?;
    let mut report = Report::new(machine.kernel_release(), &outcome, job.step_names());
    for (part, step) in report.parts.iter_mut().zip(&outcome.steps) {
        if part.verdict.is_ok()
            && let Some(result) = result_of_suite(step)
        {
            part.verdict = result;
        }
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

/// What the test program says at its end, if the step is a run of it: a suite that ran no test, or left one
/// out, has shown nothing.
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

//! Tests of the kernel machine: input, output, and the different ways to end.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portolan_lab::machine::{
    Cache, Job, Machine, MachineError, OnFailure, Step, Suite, Unavailable,
};

/// Serialises machines: several emulated ones on a small host would exceed their deadlines.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a machine, or `None` if this host cannot provide one. Then it prints the reason; under
/// continuous integration it fails.
fn machine(test: &str) -> Option<Machine> {
    let cache = Cache::locate().expect("the cache folder can be made");
    match Machine::prepare(&cache, Suite::Bookworm) {
        Ok(machine) => Some(machine),
        Err(MachineError::Unavailable(reason)) if !Unavailable::is_failure() => {
            eprintln!("left out: {test}: {reason}");
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

/// Tests that boot machines. They are selected by the module's name.
mod in_machines {
    use super::*;

    #[test]
    fn steps_run_in_order_and_bring_back_output_status_and_files() {
        let _turn = one_at_a_time();
        let Some(machine) = machine("steps_run_in_order_and_bring_back_output_status_and_files")
        else {
            return;
        };
        let job = Job::new()
            .file("/etc/greeting", "hello from the host\n")
            .program("say", "/bin/echo")
            .step(Step::new("kernel", "uname -r"))
            .step(Step::new(
                "file",
                "cat /etc/greeting; head -c 70000 /dev/zero > $RESULTS/zeros",
            ))
            .step(Step::new("program", "say -n one; say -n two >&2"))
            .step(Step::new(
                "real ip, not busybox's",
                "ip netns list && echo $?",
            ))
            .step(Step::new("fails", "echo before; exit 7").on_failure(OnFailure::Continue))
            .step(
                Step::new(
                    "leaves a child and overstays",
                    "sleep 1000 & echo here; sleep 1001",
                )
                .limit(Duration::from_secs(2))
                .on_failure(OnFailure::Continue),
            )
            .step(Step::new(
                "nothing is left running",
                "! pgrep -lf 'sleep 100[01]'",
            ))
            .step(Step::new("stops the job", "false"))
            .step(Step::new("never runs", "echo ran"));
        let mut live = Vec::new();
        let outcome = machine.run(&job, &mut live).unwrap();
        let step = |name: &str| {
            outcome
                .step(name)
                .unwrap_or_else(|| panic!("no step {name}\n{outcome}"))
        };

        assert_eq!(step("kernel").output.trim(), machine.kernel_release());
        assert_eq!(step("file").output, "hello from the host\n");
        assert_eq!(
            std::fs::read(outcome.files().join("zeros")).unwrap(),
            vec![0; 70000]
        );
        assert_eq!(step("program").output, "onetwo");
        assert_eq!(step("real ip, not busybox's").output, "0\n");
        assert_eq!(
            (step("fails").status, step("fails").output.as_str()),
            (7, "before\n")
        );
        let overstayed = step("leaves a child and overstays");
        assert_eq!(
            (overstayed.status, overstayed.output.as_str()),
            (137, "here\n")
        );
        assert!(
            overstayed.elapsed >= Duration::from_secs(2),
            "{:?}",
            overstayed.elapsed
        );
        assert!(
            step("nothing is left running").passed(),
            "{}",
            step("nothing is left running").output
        );
        assert_eq!(step("stops the job").status, 1);
        assert!(outcome.step("never runs").is_none());
        assert_eq!(
            outcome.status, 7,
            "the job's status is that of its first failed step"
        );
        let live = String::from_utf8_lossy(&live);
        assert!(live.contains("hello from the host\n"), "{live}");
        assert!(
            outcome.console().unwrap().contains("Linux version 6.1"),
            "the console is kept"
        );

        let files = outcome.files();
        drop(outcome);
        assert!(!files.exists(), "a run's files go with its outcome");
    }

    #[test]
    fn a_machine_that_outlives_its_deadline_is_stopped() {
        let _turn = one_at_a_time();
        let Some(machine) = machine("a_machine_that_outlives_its_deadline_is_stopped") else {
            return;
        };
        // A slow host may need longer to print anything at all.
        let tells_how_far_it_came = [20, 80, 240].into_iter().any(|deadline_s| {
            let deadline = Duration::from_secs(deadline_s);
            let job = Job::new()
                .deadline(deadline)
                .step(Step::new("sleeps", "sleep 600").limit(Duration::from_secs(600)));
            let error = machine.run(&job, &mut io::sink()).unwrap_err();
            assert!(
                matches!(error, MachineError::Deadline { deadline: told, .. } if told == deadline),
                "{error}"
            );
            // The kernel's messages begin with their time in brackets.
            let text = error.to_string();
            text.lines()
                .any(|line| line.starts_with('[') && line.contains("] "))
        });
        assert!(tells_how_far_it_came);
    }

    #[test]
    fn a_kernel_panic_is_distinguished_from_a_failing_script() {
        let _turn = one_at_a_time();
        let Some(machine) = machine("a_kernel_panic_is_distinguished_from_a_failing_script") else {
            return;
        };
        let job = Job::new().step(Step::new("panics", "echo c > /proc/sysrq-trigger"));
        let error = machine.run(&job, &mut io::sink()).unwrap_err();
        assert!(matches!(error, MachineError::Died { .. }), "{error}");
        assert!(error.to_string().contains("Kernel panic"), "{error}");
    }
}

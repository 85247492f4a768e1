//! The job of a machine: what one run has to do.

use std::path::PathBuf;
use std::time::Duration;

use super::MachineError;
use super::tree::Tree;

/// Default time limit of a run. Booting alone takes about ten seconds under emulation.
const DEADLINE_DEFAULT: Duration = Duration::from_secs(300);
/// Default time limit of a step.
const STEP_LIMIT_DEFAULT: Duration = Duration::from_secs(60);
/// One for the program under test, one for its peer.
const PROCESSORS_DEFAULT: u32 = 2;
/// Maximum number of steps of a job; their folders have three digits.
const STEPS_MAX: usize = 1000;

/// Programs, files and steps for one machine, with a time limit.
///
/// Steps run in order as root. Each is a separate shell script (`sh -eu`). Processes that it leaves
/// running are killed when it ends; its changes to the kernel's state remain. In the machine:
/// - the programs are in `PATH`;
/// - files that a step writes under `$RESULTS` are brought back ([`Outcome::files`](super::Outcome::files));
/// - `/bin/sh` is dash and the small tools are busybox's; `ip`, `rdma`, `tc`, `ping`, `ethtool`,
///   `tcpdump` and the programs of rdmacm-utils and ibverbs-utils are the real ones.
#[derive(Clone, Debug)]
pub struct Job {
    pub(crate) deadline: Duration,
    pub(crate) interactive: bool,
    pub(crate) clock: Clock,
    pub(crate) processors: u32,
    pub(crate) measures: bool,
    pub(crate) copies_in_order: bool,
    files: Vec<(String, String)>,
    programs: Vec<(String, PathBuf)>,
    pub(crate) steps: Vec<Step>,
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The host's clock.
    #[default]
    Host,
    /// One nanosecond per instruction.
    Instructions,
}

/// One script of a job.
#[derive(Clone, Debug)]
pub struct Step {
    pub(crate) name: String,
    script: String,
    limit: Duration,
    on_failure: OnFailure,
}

/// What happens to the steps after a failed one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// They are skipped, because they depend on it.
    #[default]
    Stop,
    /// They run, because they do not depend on it.
    Continue,
}

impl Step {
    /// A step that runs `script`, called `name` in reports.
    #[must_use]
    pub fn new(name: impl Into<String>, script: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            script: script.into(),
            limit: STEP_LIMIT_DEFAULT,
            on_failure: OnFailure::Stop,
        }
    }

    /// The step's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Kills the step after `limit` (whole seconds, at least one). Its status is then 137.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sets what happens to the following steps if this one fails.
    #[must_use]
    pub fn on_failure(mut self, on_failure: OnFailure) -> Self {
        self.on_failure = on_failure;
        self
    }
}

impl Default for Job {
    fn default() -> Self {
        Self {
            deadline: DEADLINE_DEFAULT,
            interactive: false,
            clock: Clock::default(),
            processors: PROCESSORS_DEFAULT,
            measures: false,
            copies_in_order: false,
            files: Vec::new(),
            programs: Vec::new(),
            steps: Vec::new(),
        }
    }
}

impl Job {
    /// A job without steps and a deadline of five minutes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops the machine after `deadline`, boot included.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the number of processors (default two, at least one). With one processor no thread
    /// wakes another, which is expensive under emulation; but nothing runs in parallel.
    #[must_use]
    pub fn processors(mut self, count: u32) -> Self {
        self.processors = count;
        self
    }

    /// Makes the machine's clock count instructions, one nanosecond each, on a single processor.
    /// While it is idle, time skips to the next event. So the host's load does not affect measured
    /// times. The deadline is still in the host's time.
    #[must_use]
    pub fn counting_instructions(mut self) -> Self {
        self.clock = Clock::Instructions;
        self
    }

    /// Opens a shell on this process's terminal after the steps.
    #[must_use]
    pub fn interactive(mut self) -> Self {
        self.interactive = true;
        self
    }

    /// Reduces the effect of reading the clock, which is far more expensive under emulation. The kernel's clock is the
    /// time-stamp counter, which programs can read directly, even if the host does not trust it.
    #[must_use]
    pub fn measuring(mut self) -> Self {
        self.measures = true;
        self
    }

    /// Makes the kernel copy memory from the first byte to the last, for programs that look at the last byte to know that all are
    /// there. By default its copies may begin at the end, and an interrupt may come amid one.
    #[must_use]
    pub fn copies_in_order(mut self) -> Self {
        self.copies_in_order = true;
        self
    }

    /// Puts a text file at the absolute path `guest_path`.
    #[must_use]
    pub fn file(mut self, guest_path: impl Into<String>, content: impl Into<String>) -> Self {
        self.files.push((guest_path.into(), content.into()));
        self
    }

    /// Puts the host's program `path` and its linked libraries into the machine's `PATH` as `name`.
    #[must_use]
    pub fn program(mut self, name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        self.programs.push((name.into(), path.into()));
        self
    }

    /// Adds a step.
    #[must_use]
    pub fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// The steps' names, in order.
    pub fn step_names(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|step| step.name.as_str())
    }

    /// Adds the job's files to the guest's tree, where `guest/init.sh` reads them.
    pub(crate) fn add_to(&self, tree: &mut Tree) -> Result<(), MachineError> {
        for (path, content) in &self.files {
            if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
                return Err(bad(
                    path,
                    "a file",
                    "the path must be absolute, without `..`",
                ));
            }
            tree.text(path, content);
        }
        for (name, path) in &self.programs {
            if name.is_empty() || name.contains('/') {
                return Err(bad(
                    name,
                    "a program",
                    "the name must be one path component",
                ));
            }
            // If one file is missing, ldd's error would not say which.
            if !path.is_file() {
                let path = path.display().to_string();
                return Err(bad(&path, "a program", "it does not exist on this host"));
            }
            tree.program(&format!("job/programs/{name}"), path)?;
        }
        if self.steps.len() > STEPS_MAX {
            return Err(bad(
                &self.steps.len().to_string(),
                "the number of steps",
                "too many",
            ));
        }
        tree.directory("job/steps");
        for (index, step) in self.steps.iter().enumerate() {
            let folder = step_folder(index);
            tree.text(&format!("job/{folder}/script"), &step.script);
            let limit_s = step.limit.as_secs().max(1);
            tree.text(&format!("job/{folder}/limit_s"), format!("{limit_s}\n"));
            if step.on_failure == OnFailure::Stop {
                tree.text(&format!("job/{folder}/stop_on_failure"), "");
            }
        }
        tree.text(
            "job/deadline_s",
            format!("{}\n", self.deadline.as_secs().max(1)),
        );
        if self.interactive {
            tree.text("job/interactive", "");
        }
        Ok(())
    }
}

/// Folder of step `index`, both in the guest's `/job` and in the results.
pub(crate) fn step_folder(index: usize) -> String {
    format!("steps/{index:03}")
}

fn bad(name: &str, role: &'static str, why: &'static str) -> MachineError {
    MachineError::BadJob {
        name: name.to_owned(),
        role,
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_their_folder_are_refused() {
        for job in [
            Job::new().file("relative", ""),
            Job::new().file("/a/../b", ""),
            Job::new().program("a/b", "/bin/sh"),
            Job::new().program("", "/bin/sh"),
        ] {
            let error = job.add_to(&mut Tree::new()).unwrap_err();
            assert!(matches!(error, MachineError::BadJob { .. }), "{error}");
        }
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let error = Job::new()
            .program("p", "/nonexistent/p")
            .add_to(&mut Tree::new())
            .unwrap_err();
        assert!(error.to_string().contains("/nonexistent/p"), "{error}");
    }
}

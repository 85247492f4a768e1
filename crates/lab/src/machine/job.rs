//! What one run of a machine is to do.

use std::path::PathBuf;
use std::time::Duration;

use super::MachineError;
use super::tree::Tree;

/// Time a run may take unless the job says otherwise. Booting alone takes about ten seconds
/// under emulation.
const DEADLINE_DEFAULT: Duration = Duration::from_secs(300);
/// Time a step may take unless it says otherwise.
const STEP_LIMIT_DEFAULT: Duration = Duration::from_secs(60);
/// One for the program under test, one for its peer.
const PROCESSORS_DEFAULT: u32 = 2;
/// Steps of one job; their folders have three digits.
const STEPS_MAX: usize = 1000;

/// Programs, files and steps for one machine, and the time it may take.
///
/// Steps run in order as root. Each is a shell script (`sh -eu`) of its own; what it leaves
/// running is killed when it ends, what it does to the kernel's state stays. In the machine:
/// - the programs are in `PATH`;
/// - what a step writes under `$RESULTS` is brought back ([`Outcome::files`](super::Outcome::files));
/// - `/bin/sh` is dash, the small tools are busybox's, `ip`, `rdma`, `tc`, `ping`, `ethtool` and
///   `tcpdump` are the real ones, as are the programs of rdmacm-utils and ibverbs-utils.
#[derive(Clone, Debug)]
pub struct Job {
    pub(crate) deadline: Duration,
    pub(crate) interactive: bool,
    pub(crate) clock: Clock,
    pub(crate) processors: u32,
    pub(crate) measures: bool,
    files: Vec<(String, String)>,
    programs: Vec<(String, PathBuf)>,
    pub(crate) steps: Vec<Step>,
}

/// What time is in the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The host's.
    #[default]
    Host,
    /// A nanosecond for each instruction.
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

/// What becomes of the steps after one that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// They are left out: they would be meaningless.
    #[default]
    Stop,
    /// They run: they do not depend on it.
    Continue,
}

impl Step {
    /// A step called `name` in reports, that runs `script`.
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

    /// Kills the step after `limit` (whole seconds, at least one); its status is then 137.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// What becomes of the steps after this one if it fails.
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
            files: Vec::new(),
            programs: Vec::new(),
            steps: Vec::new(),
        }
    }
}

impl Job {
    /// A job with no steps yet and five minutes to finish.
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

    /// Gives the machine so many processors, at least one, instead of two. On a single one nobody wakes another, which costs an
    /// emulator's host much; what would happen at the same time does not.
    #[must_use]
    pub fn processors(mut self, count: u32) -> Self {
        self.processors = count;
        self
    }

    /// Counts time in the machine in instructions, a nanosecond for each, by a single processor; while that is idle
    /// it skips to what comes next. So what else the host does changes no time that is measured in it. The
    /// deadline is the host's time still.
    #[must_use]
    pub fn counting_instructions(mut self) -> Self {
        self.clock = Clock::Instructions;
        self
    }

    /// Gives a shell on this process's terminal once the steps are over.
    #[must_use]
    pub fn interactive(mut self) -> Self {
        self.interactive = true;
        self
    }

    /// Has what the emulator makes far dearer than a real processor does not decide: the kernel's clock is the time-stamp
    /// counter, which programs read by themselves, whatever the host thinks of its own, and there is no carry-less
    /// multiplication, which is emulated bit by bit, so that whoever sums up packets does it by tables.
    #[must_use]
    pub fn measuring(mut self) -> Self {
        self.measures = true;
        self
    }

    /// Puts a text file at the absolute path `guest_path`.
    #[must_use]
    pub fn file(mut self, guest_path: impl Into<String>, content: impl Into<String>) -> Self {
        self.files.push((guest_path.into(), content.into()));
        self
    }

    /// Puts the host's program `path`, with the libraries it is linked to, into the machine's
    /// `PATH` under `name`.
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

    /// Adds the job's part to the guest's file tree; `guest/init.sh` reads it there.
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
            // ldd's complaint about a missing file would not say which of many it was.
            if !path.is_file() {
                let path = path.display().to_string();
                return Err(bad(
                    &path,
                    "a program",
                    "there is no such file on this host",
                ));
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

/// Where step `index` is in the guest's `/job` and in the results.
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

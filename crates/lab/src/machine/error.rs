//! Errors of preparing and running a kernel machine.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Something that this host lacks, so that a check cannot run here.
///
/// It is not a failure: the caller reports what it skipped and why. Under continuous integration it
/// is treated as a failure (see [`Unavailable::is_failure`]).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} unavailable: {why}")]
pub struct Unavailable {
    /// What is missing, such as `kernel machine` or `packages tshark, kmod`.
    pub what: String,
    /// Why, and how to provide it.
    pub why: String,
}

impl Unavailable {
    /// Whether a check that cannot run counts as failed. It does if the environment has `CI=true`,
    /// where everything must be provided.
    #[must_use]
    pub fn is_failure() -> bool {
        std::env::var_os("CI").is_some_and(|value| value == "true")
    }
}

/// Why a kernel machine could not be prepared or did not finish its job.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// This host cannot provide the machine.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A host tool ended with an error.
    #[error("`{command}` failed ({status}): {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status in words.
        status: String,
        /// The last part of what it wrote to standard error.
        stderr: String,
    },
    /// A file or folder could not be accessed.
    #[error("{action} {path}: {source}")]
    Io {
        /// The operation, such as `read`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A tool's output or the machine's results did not have the expected form.
    #[error("{what}: {why}")]
    Unexpected {
        /// What was being parsed.
        what: String,
        /// What was expected and what was found.
        why: String,
    },
    /// A name in a job cannot be used in the machine.
    #[error("`{name}` cannot be used as {role} in the machine: {why}")]
    BadJob {
        /// The bad name.
        name: String,
        /// What the name is for.
        role: &'static str,
        /// The rule it breaks.
        why: &'static str,
    },
    /// The machine was still running at its deadline and was stopped.
    #[error("the machine did not finish within {deadline:?}; last of its console:\n{console_tail}")]
    Deadline {
        /// The job's deadline.
        deadline: Duration,
        /// The last output of the kernel's console and of the steps.
        console_tail: String,
    },
    /// The other end of the machine's wire ended but the machine did not, and was stopped.
    #[error("the machine did not end after its peer ended; last of its console:\n{console_tail}")]
    LeftBehind {
        /// The last output of the kernel's console and of the steps.
        console_tail: String,
    },
    /// The machine ended without reporting that its steps were over (a kernel panic, for example).
    #[error("the machine ended early ({status}); last of its console:\n{console_tail}")]
    Died {
        /// How the emulator ended.
        status: String,
        /// The last output of the kernel's console and of the emulator.
        console_tail: String,
    },
}

impl MachineError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    pub(crate) fn unexpected(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Unexpected {
            what: what.into(),
            why: why.into(),
        }
    }
}

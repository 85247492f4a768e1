//! The results of a run.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::MachineError;
use super::job::{Step, step_folder};

/// Name of the folder with the guest's results in a run's folder.
pub(crate) const RESULTS_FOLDER: &str = "results";
/// Name of the kernel console's log in a run's folder.
pub(crate) const CONSOLE_FILE: &str = "console.log";
/// Name of the wire's capture in a run's folder.
pub(crate) const CAPTURE_FILE: &str = "wire.pcap";

/// The results of one run of a machine. Its files are deleted when it is dropped.
#[derive(Debug)]
pub struct Outcome {
    /// 0 if every step ended with status 0, otherwise the status of the first that failed.
    pub status: i32,
    /// The steps that ran, in order. After a failed step the others may be missing.
    pub steps: Vec<StepOutcome>,
    /// Time from power-on to the first step, by the guest's clock.
    pub boot: Duration,
    /// Time from power-on to power-off, by the host's clock.
    pub elapsed: Duration,
    folder: RunFolder,
}

/// The output and status of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepOutcome {
    /// The step's name.
    pub name: String,
    /// The exit status as in the shell: 128 + N when killed by signal N.
    pub status: i32,
    /// Standard output and standard error, interleaved.
    pub output: String,
    /// Duration by the guest's clock.
    pub elapsed: Duration,
}

impl Outcome {
    /// The step called `name`, if it ran.
    #[must_use]
    pub fn step(&self, name: &str) -> Option<&StepOutcome> {
        self.steps.iter().find(|step| step.name == name)
    }

    /// The folder with the files that the steps wrote under `$RESULTS`.
    #[must_use]
    pub fn files(&self) -> PathBuf {
        self.folder.path.join(RESULTS_FOLDER).join("files")
    }

    /// The kernel's console.
    ///
    /// # Errors
    /// [`MachineError::Io`] if it cannot be read.
    pub fn console(&self) -> Result<String, MachineError> {
        read_lossy(&self.folder.path.join(CONSOLE_FILE))
    }

    /// The capture of the wire, if the machine had one.
    #[must_use]
    pub fn wire_capture(&self) -> Option<PathBuf> {
        Some(self.folder.path.join(CAPTURE_FILE)).filter(|path| path.is_file())
    }

    /// Keeps the run's files when this is dropped, and returns their folder.
    pub fn keep(&mut self) -> &Path {
        self.folder.keep = true;
        &self.folder.path
    }

    /// Reads the results that were unpacked in `folder`.
    pub(crate) fn read(
        folder: RunFolder,
        steps: &[Step],
        elapsed: Duration,
    ) -> Result<Self, MachineError> {
        let results = folder.path.join(RESULTS_FOLDER);
        let boot = seconds(&results.join("boot_seconds"))?;
        let boot = boot.first().copied().unwrap_or_default();
        let mut outcomes = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            let path = results.join(step_folder(index));
            if !path.exists() {
                break;
            }
            outcomes.push(StepOutcome::read(&step.name, &path)?);
        }
        let status = outcomes
            .iter()
            .map(|step| step.status)
            .find(|status| *status != 0);
        Ok(Self {
            status: status.unwrap_or(0),
            steps: outcomes,
            boot,
            elapsed,
            folder,
        })
    }
}

impl StepOutcome {
    /// Whether the step ended with status 0.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.status == 0
    }

    fn read(name: &str, folder: &Path) -> Result<Self, MachineError> {
        let status_path = folder.join("status");
        let status_text = read_lossy(&status_path)?;
        let status = status_text.trim().parse().map_err(|_| {
            let why = format!("expected an exit status, found `{status_text}`");
            MachineError::unexpected(status_path.display().to_string(), why)
        })?;
        let times = seconds(&folder.join("seconds"))?;
        let elapsed = match times.as_slice() {
            [started, ended] => ended.saturating_sub(*started),
            _ => Duration::ZERO,
        };
        let output = read_lossy(&folder.join("output"))?;
        Ok(Self {
            name: name.to_owned(),
            status,
            output,
            elapsed,
        })
    }
}

impl fmt::Display for Outcome {
    /// Prints a line for boot and each step: status, time, name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "     boot {:>7.2} s", self.boot.as_secs_f64())?;
        for step in &self.steps {
            let status = if step.passed() {
                "ok".to_owned()
            } else {
                step.status.to_string()
            };
            writeln!(
                f,
                "{status:>9} {:>7.2} s  {}",
                step.elapsed.as_secs_f64(),
                step.name
            )?;
        }
        write!(f, "    whole {:>7.2} s", self.elapsed.as_secs_f64())
    }
}

/// A run's working folder, deleted on drop unless it is to be kept.
#[derive(Debug)]
pub(crate) struct RunFolder {
    pub(crate) path: PathBuf,
    keep: bool,
}

impl RunFolder {
    /// Creates the folder `path`, which must not exist.
    pub(crate) fn create(path: PathBuf) -> Result<Self, MachineError> {
        fs::create_dir(&path).map_err(MachineError::io("create", &path))?;
        Ok(Self { path, keep: false })
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if !self.keep {
            // A folder that cannot be removed only costs space in the cache.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Reads text of unknown encoding: programs under test may print anything.
pub(crate) fn read_lossy(path: &Path) -> Result<String, MachineError> {
    let bytes = fs::read(path).map_err(MachineError::io("read", path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses numbers of seconds as in `/proc/uptime`.
fn seconds(path: &Path) -> Result<Vec<Duration>, MachineError> {
    let text = read_lossy(path)?;
    text.split_whitespace()
        .map(|word| {
            word.parse()
                .ok()
                .and_then(|value| Duration::try_from_secs_f64(value).ok())
        })
        .collect::<Option<_>>()
        .ok_or_else(|| {
            let why = format!("expected seconds, found `{text}`");
            MachineError::unexpected(path.display().to_string(), why)
        })
}

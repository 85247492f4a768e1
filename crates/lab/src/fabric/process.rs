//! The processes of a fabric. Their output goes to files, and they end with the fabric.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::machine::MachineError;

/// Interval between two checks of a process's output.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Time limit for a process to end after it is asked to.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// A process that is ended on drop.
#[derive(Debug)]
pub(crate) struct Process {
    name: &'static str,
    pub(crate) child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output in `NAME.out` in `folder`.
    pub(crate) fn start(
        name: &'static str,
        command: &mut Command,
        folder: &Path,
    ) -> Result<Self, MachineError> {
        let log = folder.join(format!("{name}.out"));
        let file = File::create(&log).map_err(MachineError::io("create", &log))?;
        let errors = file.try_clone().map_err(MachineError::io("share", &log))?;
        let child = command
            .stdout(file)
            .stderr(Stdio::from(errors))
            .spawn()
            .map_err(MachineError::io("start", Path::new(command.get_program())))?;
        Ok(Self { name, child, log })
    }

    /// The process's output.
    pub(crate) fn printed(&self) -> String {
        text_of(&self.log)
    }

    /// Waits until `is_so` holds for the contents of `log`; fails if the process ends first.
    pub(crate) fn wait_until(
        &mut self,
        log: &Path,
        what: &str,
        time_max: Duration,
        is_so: impl Fn(&str) -> bool,
    ) -> Result<(), MachineError> {
        let started = Instant::now();
        loop {
            let text = text_of(log);
            if is_so(&text) {
                return Ok(());
            }
            let ended = self.child.try_wait();
            if let Ok(Some(status)) = ended {
                return Err(self.failure(what, &format!("it ended with {status}"), &text));
            }
            if started.elapsed() > time_max {
                return Err(self.failure(what, &format!("not within {time_max:?}"), &text));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Like [`wait_until`](Self::wait_until), for the process's output.
    pub(crate) fn wait_until_printed(
        &mut self,
        what: &str,
        time_max: Duration,
        is_so: impl Fn(&str) -> bool,
    ) -> Result<(), MachineError> {
        let log = self.log.clone();
        self.wait_until(&log, what, time_max, is_so)
    }

    fn failure(&self, what: &str, why: &str, log: &str) -> MachineError {
        let tail: Vec<&str> = log.lines().rev().take(20).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        let tail = tail.join("\n");
        let printed = self.printed();
        let printed = if printed == log { "" } else { printed.as_str() };
        MachineError::unexpected(
            format!("{}: waiting for {what}", self.name),
            format!("{why}; its last output:\n{tail}\n{printed}"),
        )
    }

    /// Waits until the process ends; kills it after the time limit.
    pub(crate) fn end(&mut self) {
        let started = Instant::now();
        while started.elapsed() < END_TIME_MAX {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(LOOK_AGAIN);
        }
        self.kill();
    }

    fn kill(&mut self) {
        // The process may already have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The text of a file; empty if it does not exist.
fn text_of(path: &Path) -> String {
    fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

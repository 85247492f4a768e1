//! The command's processes: listeners that are awaited, and pings that wait until a listener has started.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

/// Time limit for a listener to start or to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time limit of a ping.
const PING_TIME_MAX: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A process of the command. Its lines are read as they arrive, so that its pipe never fills. Killed on drop.
pub(crate) struct Speaker {
    pub(crate) child: Child,
    pub(crate) lines: Receiver<String>,
    /// Its arguments, for error messages.
    pub(crate) arguments: String,
}

impl Speaker {
    pub(crate) fn start(portolan: &Path, arguments: &[&str], stderr: Stdio) -> Result<Self> {
        let mut command = Command::new(portolan);
        command.args(arguments);
        Self::spawn(command, arguments.join(" "), stderr)
    }

    /// Starts a command. `arguments` are shown in error messages.
    pub(crate) fn spawn(mut command: Command, arguments: String, stderr: Stdio) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .context("cannot start the command")?;
        let stdout = child.stdout.take().context("its output is a pipe")?;
        let (send, lines) = channel();
        // Ends with the process, whose end closes the pipe.
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            lines,
            arguments,
        })
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A `portolan listen`, killed on drop.
pub(crate) struct Listener {
    address: String,
    child: Child,
}

impl Listener {
    /// Listens for one connection.
    pub(crate) fn start(portolan: &Path, address: &str, capture: Option<&Path>) -> Result<Self> {
        let mut command = Command::new(portolan);
        command.args(["listen", address, "--count", "1"]);
        if let Some(capture) = capture {
            command.arg("--pcap").arg(capture);
        }
        let child = command
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start a listener")?;
        Ok(Self {
            address: address.to_owned(),
            child,
        })
    }

    /// Waits until it has served its connection.
    pub(crate) fn finish(mut self) -> Result<()> {
        let status = wait(&mut self.child, PATIENCE)
            .with_context(|| format!("the listener on {}", self.address))?;
        ensure!(
            status.success(),
            "the listener on {} ended with {status}",
            self.address
        );
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It has already ended after `finish`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `portolan ping` with these arguments. Retries while the listener is starting.
pub(crate) fn ping(portolan: &Path, address: &str, arguments: &[&OsStr]) -> Result<Output> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut child = Command::new(portolan)
            .args(["ping", address])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a ping")?;
        // With --quiet the output is only a summary, which fits a pipe.
        wait(&mut child, PING_TIME_MAX).with_context(|| format!("pinging {address}"))?;
        let output = child.wait_with_output()?;
        if output.status.success() {
            return Ok(output);
        }
        if Instant::now() > deadline {
            bail!(
                "cannot ping {address}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// Runs a command and returns its output. Kills it after the time limit.
pub(crate) fn output_within(command: &mut Command, time_max: Duration) -> Result<Output> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start it")?;
    let mut stdout = child.stdout.take().context("its output is a pipe")?;
    // Ends with the process, whose end closes the pipe.
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes)
    });
    let status = wait(&mut child, time_max)?;
    let stdout = reader
        .join()
        .map_err(|_| anyhow!("the reader of its output panicked"))??;
    Ok(Output {
        status,
        stdout,
        stderr: Vec::new(),
    })
}

fn wait(child: &mut Child, patience: Duration) -> Result<std::process::ExitStatus> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            bail!("did not end within {patience:?}");
        }
        thread::sleep(LOOK_AGAIN);
    }
}

//! The second process, from the first one's side.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Time limit for it to start and listen, and to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Polling interval for its end.
const EXIT_POLL: Duration = Duration::from_millis(2);

/// The second process; killed when dropped.
#[derive(Debug)]
pub(super) struct Peer {
    child: Child,
    reader: Option<JoinHandle<()>>,
}

impl Peer {
    /// Starts it, waits until it listens, and returns the address. `on_event` receives its steps and their times.
    ///
    /// # Errors
    ///
    /// It cannot start, or it ends or stays silent instead of listening.
    pub(super) fn start(
        on_event: impl Fn(SystemTime, &str) + Send + 'static,
    ) -> Result<(Peer, String)> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut child = Command::new(program)
            .arg("demo-peer")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the second process")?;
        let stdout = child.stdout.take();
        let (listening, heard) = mpsc::channel();
        // From here on, an error kills the process.
        let mut peer = Peer {
            child,
            reader: None,
        };
        if let Some(stdout) = stdout {
            let lines = BufReader::new(stdout).lines();
            let reader = thread::Builder::new().spawn(move || read(lines, &listening, on_event));
            peer.reader = Some(reader.context("cannot start a thread")?);
        }
        let address = peer.await_listening(&heard)?;
        Ok((peer, address))
    }

    fn await_listening(&mut self, heard: &Receiver<String>) -> Result<String> {
        match heard.recv_timeout(PATIENCE) {
            Ok(address) => Ok(address),
            Err(RecvTimeoutError::Timeout) => {
                bail!("the second process did not listen within {PATIENCE:?}")
            }
            // Its output has ended. It has printed its error on stderr, which is ours too.
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.await_end()?;
                bail!("the second process ended before it listened: {status}")
            }
        }
    }

    /// Waits for its end, and for all of its output.
    ///
    /// # Errors
    ///
    /// It does not end in time.
    pub(super) fn join(mut self) -> Result<ExitStatus> {
        let status = self.await_end()?;
        if let Some(reader) = self.reader.take() {
            // A panic of the thread was already reported; its events are only for display.
            let _ = reader.join();
        }
        Ok(status)
    }

    fn await_end(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(
                Instant::now() < deadline,
                "the second process did not end within {PATIENCE:?}"
            );
            thread::sleep(EXIT_POLL);
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads its output until it ends.
fn read(
    lines: Lines<BufReader<ChildStdout>>,
    listening: &mpsc::Sender<String>,
    on_event: impl Fn(SystemTime, &str),
) {
    for line in lines.map_while(std::io::Result::ok) {
        let Ok(object) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        if let Some(address) = object["listening"].as_str() {
            // If this fails, the receiver has given up and reports that.
            let _ = listening.send(address.to_owned());
        }
        if let (Some(event), Some(time_ns)) = (object["event"].as_str(), object["time_ns"].as_u64())
        {
            on_event(UNIX_EPOCH + Duration::from_nanos(time_ns), event);
        }
    }
}

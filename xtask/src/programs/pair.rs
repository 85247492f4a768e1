//! Two programs that talk to each other, each in a process of its own.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::cases::{Case, End};

/// How long a client that is refused tries again: its server may still be starting.
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a row may take.
const ROW_TIME_MAX: Duration = Duration::from_secs(180);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Bytes of what a program said that are told when it fails.
const SAID_MAX: usize = 300;

/// Plays a row.
///
/// # Errors
/// Which end failed, and what it said.
pub(super) fn play(portolan: &Path, case: &Case) -> Result<()> {
    let deadline = Instant::now() + ROW_TIME_MAX;
    let mut server = match &case.server {
        Some(end) => Some(Running::start(portolan, end)?),
        None => None,
    };
    // The first one shows that the server has started.
    let (first, others) = case.clients.split_first().context("a client")?;
    let said = call(portolan, first, server.as_mut(), deadline)?;
    ensure!(
        said.contains(case.says),
        "it did not say {}: {}",
        case.says,
        short(&said)
    );
    let others = others
        .iter()
        .map(|end| Running::start(portolan, end))
        .collect::<Result<Vec<_>>>()?;
    for (number, mut other) in others.into_iter().enumerate() {
        let status = other.wait(deadline)?;
        ensure!(
            status.success(),
            "client {}: {status}: {}",
            number + 2,
            short(&other.said()?)
        );
    }
    let Some(mut server) = server.filter(|_| case.server_ends) else {
        return Ok(());
    };
    let status = server.wait(deadline).context("the server")?;
    ensure!(
        status.success(),
        "the server: {status}: {}",
        short(&server.said()?)
    );
    Ok(())
}

/// Runs a client until it succeeds; while its server starts it is refused.
fn call(
    portolan: &Path,
    end: &End,
    mut server: Option<&mut Running>,
    deadline: Instant,
) -> Result<String> {
    let started = Instant::now();
    loop {
        let mut client = Running::start(portolan, end)?;
        let status = client.wait(deadline).context("the client")?;
        let said = client.said()?;
        if status.success() {
            return Ok(said);
        }
        if let Some(server) = &mut server
            && let Some(ended) = server.child.try_wait()?
        {
            let heard = server.said()?;
            bail!(
                "client: {status}: {}; server: {ended}: {}",
                short(&said),
                short(&heard)
            );
        }
        if server.is_none() || started.elapsed() > START_TIME_MAX {
            bail!("the client: {status}: {}", short(&said));
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// A program that runs, and what it says. It is killed when dropped.
struct Running {
    child: Child,
    said: File,
}

impl Running {
    fn start(portolan: &Path, end: &End) -> Result<Self> {
        let said = unnamed()?;
        let mut command = Command::new(portolan);
        match end {
            End::C(words) => command.args(["exec", "--"]).args(words),
            End::Ours(words) => command.args(["--provider", "software"]).args(words),
        };
        let child = command
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(said.try_clone()?)
            .spawn()
            .context("the command is not built")?;
        Ok(Self { child, said })
    }

    fn wait(&mut self, deadline: Instant) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                self.child.kill()?;
                self.child.wait()?;
                bail!(
                    "did not end within {ROW_TIME_MAX:?}: {}",
                    short(&self.said()?)
                );
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    fn said(&mut self) -> Result<String> {
        let mut bytes = Vec::new();
        self.said.rewind()?;
        self.said.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file that is gone when it is closed.
fn unnamed() -> Result<File> {
    use std::sync::atomic::{AtomicU64, Ordering};

    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("portolan-said-{}-{number}", std::process::id());
    let path: PathBuf = std::env::temp_dir().join(name);
    let file = File::options()
        .create_new(true)
        .read(true)
        .append(true)
        .open(&path)
        .context("no temporary file")?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// The end of what was said, on one line.
fn short(said: &str) -> String {
    let line = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let from = line.len().saturating_sub(SAID_MAX);
    let from = (from..=line.len()).find(|at| line.is_char_boundary(*at));
    line[from.unwrap_or(0)..].to_owned()
}

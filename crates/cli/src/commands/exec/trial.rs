//! A trial of the view of the devices, in a process of its own: what it does to itself goes with it.
//!
//! A kernel may let an ordinary user make a user namespace and then refuse what makes it one of that user (Ubuntu's
//! AppArmor does). Nobody comes back from there, so somebody goes ahead.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{namespace, view};
use crate::exit::Outcome;

/// The hidden command that it is.
const COMMAND: &str = "exec-trial";
/// How long it may take; it takes a moment.
const TIME_MAX: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(2);
/// What is read of its complaint.
const COMPLAINT_LEN_MAX: u64 = 4096;

/// Runs this command again, to try it there.
///
/// # Errors
///
/// It failed there, and why.
pub(super) fn try_elsewhere() -> Result<()> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new(own)
        .arg(COMMAND)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot try it in another process")?;
    let Some(status) = wait(&mut child)? else {
        let _ = child.kill();
        let _ = child.wait();
        bail!("a trial took more than {} s", TIME_MAX.as_secs());
    };
    if status.success() {
        return Ok(());
    }
    let mut complaint = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        stderr.take(COMPLAINT_LEN_MAX).read_to_end(&mut complaint)?;
    }
    let complaint = String::from_utf8_lossy(&complaint);
    let complaint = complaint.trim();
    match complaint.strip_prefix("portolan: ").unwrap_or(complaint) {
        "" => bail!("a trial ended with {status}"),
        why => bail!("{why}"),
    }
}

/// How it ended, if in time.
fn wait(child: &mut Child) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + TIME_MAX;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(None)
}

/// The other process: does all that `exec` does but run the program.
///
/// # Errors
///
/// What the system refused.
pub(crate) fn run() -> Result<Outcome> {
    let devices = portolan::software::preview()?;
    namespace::leave(|| Ok(()))?;
    // A failure that cannot be reproduced alone is reported by running the program itself.
    let [class, _] = view::views(&devices);
    namespace::lay_over(Path::new(class.place), &class.tree)?;
    Ok(Outcome::Good)
}

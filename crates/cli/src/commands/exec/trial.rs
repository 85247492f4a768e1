//! Tries to cover the device folders in another process, which then ends and undoes everything.
//!
//! A kernel may let an ordinary user create a user namespace and then refuse to map the user into it (Ubuntu's AppArmor
//! does). A process cannot leave that state, so another one tries first.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{namespace, view};
use crate::exit::Outcome;

/// The hidden command for the trial.
const COMMAND: &str = "exec-trial";
/// Time limit; it normally takes a moment.
const TIME_MAX: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(2);
/// Maximum length of its error message.
const COMPLAINT_LEN_MAX: u64 = 4096;

/// Runs the trial in a new process of this command.
///
/// # Errors
///
/// Why the trial failed.
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

/// Its exit status, if it ended in time.
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

/// The trial process: does everything that `exec` does except running the program.
///
/// # Errors
///
/// What the system refused.
pub(crate) fn run() -> Result<Outcome> {
    let devices = portolan::software::preview()?;
    namespace::leave(|| Ok(()))?;
    // Failures that only occur in combination are reported when the program itself runs.
    let [class, _] = view::views(&devices);
    namespace::lay_over(Path::new(class.place), &class.tree)?;
    Ok(Outcome::Good)
}

//! A running program and its output.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::case::{End, Ending, Expected, Saying};
use super::side::Side;

const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Maximum of output bytes to show when a program fails.
const SAID_MAX: usize = 2000;
/// Messages of programs that find wrong data but exit with success.
const WRONG_DATA: [&str; 2] = ["invalid data", "data mismatch"];
/// Text of the preload library's report if all connections were rsockets. If it is expected, every report must contain
/// it.
pub(super) const NO_TCP: &str = "TCP 0 connected, 0 accepted";
/// When rping exits, it destroys its event channel while its other thread may be about to wait on it. It then prints
/// this and exits with 255, with every libibverbs.
const HASTE: (&str, i32) = ("rdma_get_cm_event: Bad file descriptor", 255);

/// A process that is killed on drop.
pub(super) struct Running {
    child: Child,
    /// Separate from stderr, because output of one could split a line of the other.
    stdout: File,
    stderr: File,
}

impl Running {
    pub(super) fn start(side: &Side<'_>, end: &End) -> Result<Self> {
        let (stdout, stderr) = (unnamed()?, unnamed()?);
        let mut command = side.command(end)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(stdout.try_clone()?)
            .stderr(stderr.try_clone()?)
            .spawn()
            .context("cannot start nsenter")?;
        Ok(Self {
            child,
            stdout,
            stderr,
        })
    }

    /// The exit status, if the process has ended.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    fn wait(&mut self, deadline: Instant) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("did not end in time: {}", short(&self.said()?));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    /// Waits until the process ends. It must end as expected. Returns its output, unless it is to stay.
    pub(super) fn must_end(&mut self, expected: Expected, deadline: Instant) -> Result<String> {
        let status = match expected.ending {
            Ending::Stays => return self.must_be_there().map(|()| String::new()),
            Ending::Well | Ending::Refused => self.wait(deadline)?,
        };
        let said = self.said()?;
        let (haste, hasty) = HASTE;
        let is_well = status.success() || status.code() == Some(hasty) && said.contains(haste);
        let is_right = match expected.ending {
            Ending::Refused => !is_well && status.signal().is_none(),
            _ => is_well,
        };
        ensure!(is_right, "{}: {}", text(status), short(&said));
        must_say(&said, expected.says)?;
        Ok(said)
    }

    fn must_be_there(&mut self) -> Result<()> {
        if let Some(status) = self.ended()? {
            bail!("ended early, {}: {}", text(status), self.last_words()?);
        }
        Ok(())
    }

    fn said(&mut self) -> Result<String> {
        let mut bytes = Vec::new();
        for file in [&mut self.stdout, &mut self.stderr] {
            file.rewind()?;
            file.read_to_end(&mut bytes)?;
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The end of the process's output, on one line.
    pub(super) fn last_words(&mut self) -> Result<String> {
        Ok(short(&self.said()?))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn must_say(said: &str, says: &[Saying]) -> Result<()> {
    for (text, count) in says {
        let lines = said.lines().filter(|line| line.contains(text)).count();
        ensure!(
            lines >= *count,
            "said \"{text}\" {lines} times, {count} expected: {}",
            short(said)
        );
    }
    let forbids_tcp = says.iter().any(|(text, _)| *text == NO_TCP);
    let mut lines = said.lines().filter(|_| forbids_tcp);
    let fell_back = lines.find(|line| fell_back(line));
    ensure!(
        fell_back.is_none(),
        "TCP carried the data: {}",
        short(fell_back.unwrap_or_default())
    );
    let wrong = WRONG_DATA.iter().find(|wrong| said.contains(*wrong));
    ensure!(wrong.is_none(), "the data are wrong: {}", short(said));
    Ok(())
}

/// Whether a line is a report of the preload library with a TCP connection.
fn fell_back(line: &str) -> bool {
    line.contains("): rsockets ") && !line.contains(NO_TCP)
}

fn text(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// An unnamed file, which is deleted when it is closed.
fn unnamed() -> Result<File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("portolan-said-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let file = File::options()
        .create_new(true)
        .read(true)
        .append(true)
        .open(&path)
        .context("cannot create a temporary file")?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// The end of the output, on one line.
fn short(said: &str) -> String {
    let line = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let from = line.len().saturating_sub(SAID_MAX);
    let from = (from..=line.len()).find(|at| line.is_char_boundary(*at));
    line[from.unwrap_or(0)..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_lines_or_a_report_of_wrong_data_is_an_error() {
        let said = "ping data: 0\nping data: 1\n";
        assert!(must_say(said, &[("ping data", 2)]).is_ok());
        assert!(must_say(said, &[("ping data", 3)]).is_err());
        assert!(must_say("invalid data in page 0", &[]).is_err());
    }

    #[test]
    fn a_report_of_tcp_is_an_error() {
        let report =
            |tcp| format!("curl (7): rsockets 1 connected, 0 accepted, 0 handed over; {tcp}\n");
        let both = |one, other| report(one) + &report(other);
        let (none, one) = (NO_TCP, "TCP 1 connected, 0 accepted");
        assert!(must_say(&both(none, none), &[(NO_TCP, 1)]).is_ok());
        assert!(must_say(&both(none, one), &[(NO_TCP, 1)]).is_err());
        assert!(must_say(&both(none, one), &[]).is_ok());
    }

    #[test]
    fn only_the_end_of_long_output_is_shown() {
        assert_eq!(short(" a\nb "), "a b");
        assert_eq!(short(&"ä".repeat(SAID_MAX)).chars().count(), SAID_MAX / 2);
    }
}

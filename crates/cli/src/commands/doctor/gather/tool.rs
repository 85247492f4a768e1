//! Runs other programs that describe the machine, with limits.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit of a program; the programs used take milliseconds.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum output to read.
const OUTPUT_MAX: u64 = 16 << 20;
/// Polling interval for its end.
const INTERVAL: Duration = Duration::from_millis(5);
/// Folders of administrators' programs, for users whose PATH lacks them.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"];

/// The path of a program, if it is installed.
pub(super) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    folders
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Runs a program and returns its output.
///
/// # Errors
/// Why there is no output: the program's own error message, if any.
pub(super) fn run(program: &std::path::Path, arguments: &[&str]) -> Result<String, String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let started = child
        .stdout
        .take()
        .map(drain)
        .zip(child.stderr.take().map(drain));
    let ended = wait(&mut child);
    let (stdout, stderr) = match started {
        Some((Ok(stdout), Ok(stderr))) => (stdout, stderr),
        Some((Err(error), _) | (_, Err(error))) => {
            return Err(format!("cannot start a thread to read it: {error}"));
        }
        None => return Err("it has no output".into()),
    };
    let text = |reader: JoinHandle<Vec<u8>>| {
        let bytes = reader.join().unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (said, complained) = (text(stdout), text(stderr));
    match ended {
        None => Err(format!("it did not end within {} s", TIME_MAX.as_secs())),
        Some(status) if status.success() => Ok(said),
        Some(status) => {
            let first = complained
                .lines()
                .map(str::trim)
                .find(|line| !line.is_empty());
            Err(first.map_or_else(|| status.to_string(), str::to_owned))
        }
    }
}

fn drain(pipe: impl Read + Send + 'static) -> std::io::Result<JoinHandle<Vec<u8>>> {
    std::thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        // Output before an error is used as it is.
        let _ = pipe.take(OUTPUT_MAX).read_to_end(&mut bytes);
        bytes
    })
}

/// Waits for the program to end; kills it if it takes too long.
fn wait(child: &mut Child) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + TIME_MAX;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(INTERVAL),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_programs_error_output_is_quoted() {
        let shell = find("sh").unwrap();
        assert_eq!(run(&shell, &["-c", "echo said"]), Ok("said\n".into()));
        let failed = run(&shell, &["-c", "echo; echo not permitted >&2; exit 1"]);
        assert_eq!(failed, Err("not permitted".into()));
        assert!(find("portolan-no-such-program").is_none());
    }
}

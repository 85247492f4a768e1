//! Runs host tools and reports the output of failed ones.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::{MachineError, Unavailable};

/// How much of a failed tool's output goes into the error.
const STDERR_TAIL_CHARS: usize = 2000;

/// Folders of administrators' tools, which an ordinary user's `PATH` often lacks.
const SBIN_FOLDERS: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// A command with English output whatever the user's locale, without input, and with the
/// administrators' tools in its `PATH`.
pub(crate) fn command(program: &str) -> Command {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push(SBIN_FOLDERS);
    let mut command = Command::new(program);
    command
        .env("LC_ALL", "C")
        .env("PATH", path)
        .stdin(Stdio::null());
    command
}

/// Runs `command` to its end and returns its standard output.
///
/// # Errors
/// [`MachineError::Unavailable`] if there is no such program, [`MachineError::Command`] if it
/// exits with another status than 0.
pub(crate) fn output(command: &mut Command) -> Result<String, MachineError> {
    let output = run(command)?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(failure(command, &output))
    }
}

/// Runs `command` to its end and returns its output, whatever its status.
pub(crate) fn run(command: &mut Command) -> Result<Output, MachineError> {
    let _turn = (command.get_program() == "apt-get")
        .then(apt_turn)
        .transpose()?;
    command.output().map_err(|source| {
        let program = command.get_program().to_string_lossy().into_owned();
        if source.kind() == io::ErrorKind::NotFound {
            let why = "no such program in PATH; kernel machines need a Debian host".to_owned();
            MachineError::Unavailable(Unavailable { what: program, why })
        } else {
            MachineError::Io {
                action: "run",
                path: program.into(),
                source,
            }
        }
    })
}

/// Serialises apt-get among this user's processes, because it waits only for some of its own locks.
fn apt_turn() -> Result<File, MachineError> {
    let uid = rustix::process::getuid().as_raw();
    let path = std::env::temp_dir().join(format!("portolan-lab-apt-{uid}.lock"));
    let file = open_lock(&path, uid).map_err(MachineError::io("create", &path))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|errno| MachineError::io("lock", &path)(errno.into()))?;
    Ok(file)
}

/// Opens or creates a lock file in the shared temporary folder. Follows no link, and refuses a file
/// of another user, who could keep it locked.
fn open_lock(path: &Path, uid: u32) -> io::Result<File> {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
        .open(path)?;
    match file.metadata()?.uid() == uid {
        true => Ok(file),
        false => Err(io::Error::other("it belongs to another user; remove it")),
    }
}

pub(crate) fn failure(command: &Command, output: &Output) -> MachineError {
    MachineError::Command {
        command: line(command),
        status: output.status.to_string(),
        stderr: tail(&String::from_utf8_lossy(&output.stderr), STDERR_TAIL_CHARS),
    }
}

/// The last `chars_max` characters of `text`, trimmed.
pub(crate) fn tail(text: &str, chars_max: usize) -> String {
    let text = text.trim();
    let skip = text.chars().count().saturating_sub(chars_max);
    text.chars().skip(skip).collect()
}

fn line(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_is_this_users_and_no_link_is_followed_to_it() {
        let uid = rustix::process::getuid().as_raw();
        let folder = std::env::temp_dir().join(format!("portolan-lab-lock-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (lock, link) = (folder.join("lock"), folder.join("link"));
        assert!(open_lock(&lock, uid).is_ok());
        assert!(open_lock(&lock, uid).is_ok(), "again");
        assert!(open_lock(&lock, uid + 1).is_err(), "another user's");
        std::fs::write(&lock, "kept").unwrap();
        std::os::unix::fs::symlink(&lock, &link).unwrap();
        assert!(open_lock(&link, uid).is_err());
        open_lock(&lock, uid).unwrap();
        assert_eq!(std::fs::read(&lock).unwrap(), b"kept");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_missing_program_is_unavailable_and_named() {
        let error = output(&mut command("portolan-no-such-program")).unwrap_err();
        assert!(matches!(&error, MachineError::Unavailable(unavailable)
            if unavailable.what == "portolan-no-such-program"));
    }

    #[test]
    fn the_error_of_a_failed_program_contains_its_status_and_standard_error() {
        let error = output(command("sh").args(["-c", "echo reason >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("exit status: 3") && text.contains("reason"),
            "{text}"
        );
    }

    #[test]
    fn a_tail_keeps_whole_characters() {
        assert_eq!(tail("  aäöü \n", 2), "öü");
        assert_eq!(tail("ab", 10), "ab");
    }
}

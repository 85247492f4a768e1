//! Counts how the program's sockets connected. `PORTOLAN_SOCKETS_REPORT` enables the report.

use std::ffi::CString;
use std::fmt::{self, Display, Write as _};
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::settings::{program, settings};

/// The file to which each process appends a line when it exits, or `-` for stderr.
const REPORT_ENV: &str = "PORTOLAN_SOCKETS_REPORT";
/// Bytes of a line. The program's name is shortened if it does not fit.
const LINE_MAX: usize = 256;
const NAME_MAX: usize = 64;
/// How long the report waits for room in a full pipe.
const REPORT_WAIT: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

pub(crate) static CONNECTED: AtomicU64 = AtomicU64::new(0);
pub(crate) static ACCEPTED: AtomicU64 = AtomicU64::new(0);
/// TCP connects that succeeded, or were still in progress when the call returned.
pub(crate) static TCP_CONNECTS: AtomicU64 = AtomicU64::new(0);
/// Connections that a listener accepted from TCP.
pub(crate) static TCP_ACCEPTS: AtomicU64 = AtomicU64::new(0);
/// Streams handed over to other processes.
pub(crate) static HANDED_OVER: AtomicU64 = AtomicU64::new(0);

/// What the program was loaded with: it may clear its environment, and close its stderr.
#[derive(Debug)]
struct Loaded {
    /// The value of [`REPORT_ENV`].
    place: Option<CString>,
    program: String,
    /// Which file stderr is; `None` if it is closed.
    stderr: Option<(u64, u64)>,
}

fn loaded() -> &'static Loaded {
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    LOADED.get_or_init(|| Loaded {
        place: std::env::var_os(REPORT_ENV).and_then(|place| CString::new(place.into_vec()).ok()),
        program: {
            let mut name = program();
            while name.len() > NAME_MAX {
                name.pop();
            }
            name
        },
        stderr: file_at_stderr(),
    })
}

/// Device and inode of what is open at the number of stderr.
fn file_at_stderr() -> Option<(u64, u64)> {
    let status = rustix::fs::fstat(std::io::stderr()).ok()?;
    Some((status.st_dev, status.st_ino))
}

/// Called at load.
pub(crate) fn prepare() {
    loaded();
}

pub(crate) fn count(what: &AtomicU64) {
    what.fetch_add(1, Ordering::Relaxed);
}

/// Resets the counters in a forked child.
pub(crate) fn forget() {
    for what in [
        &CONNECTED,
        &ACCEPTED,
        &TCP_CONNECTS,
        &TCP_ACCEPTS,
        &HANDED_OVER,
    ] {
        what.store(0, Ordering::Relaxed);
    }
}

/// Writes this process's line at exit, if the report is enabled and the process had connections. Allocates nothing: a signal
/// handler may have ended the process amid an allocation.
pub(crate) fn finish() {
    let Some(place) = &loaded().place else {
        return;
    };
    let [connected, accepted, tcp_connects, tcp_accepts, handed_over] = [
        &CONNECTED,
        &ACCEPTED,
        &TCP_CONNECTS,
        &TCP_ACCEPTS,
        &HANDED_OVER,
    ]
    .map(|what| what.swap(0, Ordering::Relaxed));
    if [connected, accepted, tcp_connects, tcp_accepts] == [0; 4] {
        return;
    }
    let mut line = Line {
        bytes: [0; LINE_MAX],
        len: 0,
    };
    let written = writeln!(
        line,
        "{} ({}): rsockets {connected} connected, {accepted} accepted, {handed_over} handed over; \
         TCP {tcp_connects} connected, {tcp_accepts} accepted",
        loaded().program,
        std::process::id()
    );
    if written.is_err() {
        return;
    }
    let line = &line.bytes[..line.len];
    if place.as_bytes() == b"-" {
        return say(line, REPORT_WAIT);
    }
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::open(place.as_c_str(), flags, Mode::from_raw_mode(0o666));
    let written = file.and_then(|file| rustix::io::write(&file, line));
    // The program must not fail because of the report.
    if let Err(errno) = written {
        let mut line = Line {
            bytes: [0; LINE_MAX],
            len: 0,
        };
        let why = match errno {
            Errno::NOENT => ": the file's folder does not exist",
            Errno::ACCESS | Errno::PERM => ": permission denied",
            Errno::ISDIR => ": it is a folder",
            _ => "",
        };
        let number = errno.raw_os_error();
        let _ = writeln!(
            line,
            "librspreload (portolan): the file of {REPORT_ENV} cannot be written (errno {number}){why}"
        );
        say(&line.bytes[..line.len], REPORT_WAIT);
    }
}

/// A line of text in a place of its own.
struct Line {
    bytes: [u8; LINE_MAX],
    len: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        let room = self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// Writes to stderr, once per process, why sockets stay TCP.
pub(crate) fn complain(what: &str, error: &dyn Display) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        warn(&format_args!("{what}: {error}"));
    }
}

/// Writes to stderr, once per process, which settings are ignored because they are wrong.
pub(crate) fn complain_of_settings() {
    static SAID: AtomicBool = AtomicBool::new(false);
    let wrong = &settings().wrong;
    if !wrong.is_empty() && !SAID.swap(true, Ordering::Relaxed) {
        wrong.iter().for_each(|what| warn(what));
    }
}

fn warn(what: &dyn Display) {
    let line = format!("librspreload (portolan): {what}\n");
    say(line.as_bytes(), Timespec::default());
}

/// Writes to the stderr that the program was loaded with. By now its number may be another file's. Nor is it written where nobody
/// reads, because that would raise SIGPIPE.
fn say(line: &[u8], wait: Timespec) {
    let stderr = std::io::stderr();
    if loaded().stderr.is_none() || loaded().stderr != file_at_stderr() {
        return;
    }
    let mut state = [PollFd::new(&stderr, PollFlags::OUT)];
    let is_polled = poll(&mut state, Some(&wait)).is_ok();
    if is_polled && state[0].revents() == PollFlags::OUT {
        let _ = rustix::io::write(&stderr, line);
    }
}

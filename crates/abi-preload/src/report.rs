//! Counts how the program's sockets connected. `PORTOLAN_SOCKETS_REPORT` enables the report.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::settings::{program, settings};

/// The file to which each process appends a line when it exits, or `-` for stderr.
const REPORT_ENV: &str = "PORTOLAN_SOCKETS_REPORT";

pub(crate) static CONNECTED: AtomicU64 = AtomicU64::new(0);
pub(crate) static ACCEPTED: AtomicU64 = AtomicU64::new(0);
/// Connects that fell back to TCP.
pub(crate) static TCP_CONNECTS: AtomicU64 = AtomicU64::new(0);
/// Connections that a listener accepted from TCP.
pub(crate) static TCP_ACCEPTS: AtomicU64 = AtomicU64::new(0);
/// Streams handed over to other processes.
pub(crate) static HANDED_OVER: AtomicU64 = AtomicU64::new(0);

/// The value of [`REPORT_ENV`]. Called at load: a program may clear its environment.
pub(crate) fn place() -> Option<&'static OsStr> {
    static PLACE: OnceLock<Option<OsString>> = OnceLock::new();
    PLACE
        .get_or_init(|| std::env::var_os(REPORT_ENV))
        .as_deref()
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

/// Writes this process's line at exit, if the report is enabled and the process had connections.
pub(crate) fn finish() {
    let Some(place) = place() else {
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
    let line = format!(
        "{} ({}): rsockets {connected} connected, {accepted} accepted, {handed_over} handed over; \
         TCP {tcp_connects} connected, {tcp_accepts} accepted\n",
        program(),
        std::process::id()
    );
    if place == "-" {
        let _ = std::io::stderr().write_all(line.as_bytes());
        return;
    }
    let file = std::fs::File::options()
        .append(true)
        .create(true)
        .open(place);
    // The program must not fail because of the report.
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
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

/// Writes a warning to stderr, if the program has one.
fn warn(what: &dyn Display) {
    let line = format!("librspreload (portolan): {what}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

//! The command for a user who may have few threads (`RLIMIT_NPROC`), which root is not bound by.

mod common;
#[path = "common/installed.rs"]
mod installed;

use std::process::{Command, Stdio};

use common::{output_of, stderr, stdout};
use installed::Installed;

/// A user of whom the machine knows nothing, and who has no other thread.
const USER: u32 = 60_009;
/// More threads than the command needs.
const THREADS_MAX: u32 = 12;
/// How `timeout` ends if the program still runs.
const STILL_RUNS: i32 = 124;

#[test]
fn a_listener_without_enough_threads_ends_with_an_error_and_not_by_a_panic() {
    let installed = Installed::new("few-threads");
    let script = "ip link set lo up && exec timeout 3 setpriv --reuid \"$1\" --clear-groups \
                  prlimit --nproc=\"$2\" \"$0\" listen 127.0.0.1:7471";
    for threads in 1..=THREADS_MAX {
        let child = Command::new("unshare")
            .args(["--net", "sh", "-euc", script])
            .arg(installed.0.join("portolan"))
            .args([USER.to_string(), threads.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = output_of(child);
        let said = format!("{}{}", stdout(&output), stderr(&output));
        match output.status.code() {
            Some(STILL_RUNS) if said.contains("listening") => return,
            code => assert_eq!(code, Some(2), "with {threads} threads: {said}"),
        }
        assert!(said.contains("temporarily unavailable"), "{said}");
    }
    panic!("it does not listen with {THREADS_MAX} threads");
}

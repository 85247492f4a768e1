//! Whether another process can be in the middle of a system call, or of anything.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// Whether a thread of a process may be in a system call. A stopped thread is not: a signal or a debugger stops it
/// where a call begins or ends (`T` and `t` in proc_pid_stat(5)), and a dead one has left all calls.
///
/// A process of another process namespace, `pid` 0, may be in one.
pub(super) fn may_be_in_a_call(pid: u32) -> bool {
    !all_threads_are(pid, &['T', 't', 'Z', 'X'])
}

/// Whether a process has ended, whether or not its parent knows.
pub(super) fn has_ended(pid: u32) -> bool {
    all_threads_are(pid, &['Z', 'X'])
}

/// Whether every thread of a process is in one of these states; also if there is no process.
fn all_threads_are(pid: u32, states: &[char]) -> bool {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if process.is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH)) {
        return true;
    }
    let Ok(mut threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads.all(|thread| {
        let stat = thread.and_then(|thread| fs::read_to_string(thread.path().join("stat")));
        stat.is_ok_and(|stat| state(&stat).is_some_and(|state| states.contains(&state)))
    })
}

/// The state in a line of proc_pid_stat(5).
fn state(stat: &str) -> Option<char> {
    // The name before the state may contain parentheses and spaces.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_follows_the_name_whatever_that_contains() {
        assert_eq!(state("7 (a) R (b) T 1 7"), Some('T'));
        assert_eq!(state("7 (T) S 1 7"), Some('S'));
        assert_eq!(state(""), None);
    }

    #[test]
    fn only_stopped_and_dead_processes_are_out_of_every_call() {
        assert!(may_be_in_a_call(std::process::id()), "this test runs");
        assert!(may_be_in_a_call(0) && !has_ended(0), "nobody knows");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert!(!has_ended(child.id()));
        child.kill().unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !has_ended(child.id()) {
            assert!(std::time::Instant::now() < until, "it was killed");
            std::thread::yield_now();
        }
        assert!(!may_be_in_a_call(child.id()));
        child.wait().unwrap();
        assert!(has_ended(child.id()) && !may_be_in_a_call(child.id()));
    }
}

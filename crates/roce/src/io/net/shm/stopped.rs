//! Whether another process can be in the middle of a system call.

use std::fs;

/// Whether a thread of a process may be in a system call. A stopped thread is not: a signal or a debugger stops it
/// where a call begins or ends (`T` and `t` in proc_pid_stat(5)), and a dead one has left all calls.
pub(super) fn may_be_in_a_call(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return true;
    };
    threads.into_iter().any(|thread| {
        let stat = thread.and_then(|thread| fs::read_to_string(thread.path().join("stat")));
        !stat.is_ok_and(|stat| is_stopped(&stat))
    })
}

/// Whether a line of proc_pid_stat(5) is that of a stopped or dead thread.
fn is_stopped(stat: &str) -> bool {
    // The name before the state may contain parentheses and spaces.
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't' | 'Z' | 'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stopped_and_dead_threads_are_out_of_every_call() {
        assert!(is_stopped("7 (a) R (b) T 1 7"));
        assert!(is_stopped("7 (cat) Z 1 7"));
        assert!(!is_stopped("7 (T) S 1 7"));
        assert!(!is_stopped("7 (cat) D 1 7"));
        assert!(!is_stopped(""));
        assert!(may_be_in_a_call(std::process::id()), "this test runs");
        assert!(may_be_in_a_call(0), "nobody knows");
    }
}

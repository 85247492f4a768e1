//! Processor time of this process: the cost of a run, regardless of where it waits.

use std::time::Duration;

/// User and system time of this process and of its children that it has waited for. Zero if proc(5) has no
/// `self/stat`.
pub(super) fn so_far() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks = ticks(&stat).unwrap_or_default();
    let seconds = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    Duration::from_secs_f64(seconds)
}

/// The sum of utime, stime, cutime and cstime in a line of proc(5)'s `pid/stat`.
pub(crate) fn ticks(stat: &str) -> Option<u64> {
    // The name, in parentheses, may contain anything.
    let (_, after_name) = stat.rsplit_once(')')?;
    let times: Option<Vec<u64>> = after_name
        .split_whitespace()
        .skip(11)
        .take(4)
        .map(|field| field.parse().ok())
        .collect();
    times.map(|times| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_four_times_are_found_behind_any_name() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194560 100 200 0 0 7 11 13 17 20 0 1 0 300 4096 50";
        assert_eq!(ticks(stat), Some(7 + 11 + 13 + 17));
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn the_time_of_a_child_that_was_waited_for_counts() {
        let before = so_far();
        let burn = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let status = std::process::Command::new("sh").args(["-c", burn]).status();
        assert!(status.is_ok_and(|status| status.success()));
        assert!(so_far() > before);
    }
}

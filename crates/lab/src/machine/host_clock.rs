//! How fast this host's time-stamp counter counts, which an emulated processor hands on as it is.
//!
//! A machine that is told need not measure it, which goes wrong on a busy host, and takes the counter as its clock: its
//! programs read it by themselves. The clock that it would take instead is a device, and each look at it leaves
//! the emulated program.

use std::sync::OnceLock;

/// What the host's kernel has found to be the best clock.
const HOST_CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Counts of the time-stamp counter in a millisecond, measured once; none where the host has none, or does not trust
/// its own.
pub(super) fn tsc_khz() -> Option<u64> {
    static MEASURED: OnceLock<Option<u64>> = OnceLock::new();
    *MEASURED.get_or_init(|| {
        let trusted = std::fs::read_to_string(HOST_CLOCK).is_ok_and(|name| name.trim() == "tsc");
        trusted.then(measure).flatten()
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn measure() -> Option<u64> {
    None
}

#[cfg(target_arch = "x86_64")]
fn measure() -> Option<u64> {
    use std::time::Duration;

    /// Long beside what it takes to read both clocks.
    const SPAN: Duration = Duration::from_millis(100);

    let (start, start_count) = both_clocks();
    std::thread::sleep(SPAN);
    let (end, end_count) = both_clocks();
    let span_us = end.duration_since(start).as_micros();
    let counted = u128::from(end_count.checked_sub(start_count)?);
    u64::try_from((counted * 1000).checked_div(span_us)?).ok()
}

/// The system's clock and the counter at one moment: of some looks the one that was interrupted least.
#[cfg(target_arch = "x86_64")]
fn both_clocks() -> (std::time::Instant, u64) {
    use std::time::Instant;

    let looks = (0..20).map(|_| {
        let before = count();
        let now = Instant::now();
        let after = count();
        (after.saturating_sub(before), now, before)
    });
    let best = looks.min_by_key(|(took, ..)| *took);
    best.map_or_else(|| (Instant::now(), count()), |(_, now, count)| (now, count))
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "the counter is read by an instruction")]
fn count() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_twice_differs_by_less_than_a_thousandth() {
        let [Some(first), Some(second)] = [measure(), measure()] else {
            panic!("the counter stands still");
        };
        assert!(first > 100_000, "{first} kHz");
        assert!(
            first.abs_diff(second) < first / 1000,
            "{first} and {second} kHz"
        );
    }
}

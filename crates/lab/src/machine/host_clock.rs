//! Measures the frequency of the host's time-stamp counter, which the emulated processor passes
//! through.
//!
//! A machine that is given the frequency need not measure it, which fails on a busy host, and uses
//! the counter as its clock. Programs can read the counter directly. The alternative is a device:
//! each read of it leaves the emulated code.

use std::sync::OnceLock;

/// The clock source that the host's kernel prefers.
const HOST_CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Frequency of the time-stamp counter in kHz, measured once. `None` if the host has no counter or
/// its kernel does not trust it.
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

    /// Long compared to reading both clocks.
    const SPAN: Duration = Duration::from_millis(100);

    let (start, start_count) = both_clocks();
    std::thread::sleep(SPAN);
    let (end, end_count) = both_clocks();
    let span_us = end.duration_since(start).as_micros();
    let counted = u128::from(end_count.checked_sub(start_count)?);
    u64::try_from((counted * 1000).checked_div(span_us)?).ok()
}

/// The system clock and the counter at the same time: the least interrupted of several readings.
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
    fn two_measurements_differ_by_less_than_a_thousandth() {
        let [Some(first), Some(second)] = [measure(), measure()] else {
            panic!("the counter does not advance");
        };
        assert!(first > 100_000, "{first} kHz");
        assert!(
            first.abs_diff(second) < first / 1000,
            "{first} and {second} kHz"
        );
    }
}

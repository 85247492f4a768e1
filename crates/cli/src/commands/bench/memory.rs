//! Memory use of this process.

use anyhow::{Context, Result};

/// Bytes of physical memory (`VmRSS` of proc_pid_status(5)).
pub(super) fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.context("/proc/self/status has no VmRSS")? * 1024)
}

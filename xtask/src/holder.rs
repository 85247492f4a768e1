//! Who holds the UDP port, as `portolan ps` tells it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The process id of the holder.
pub(crate) fn pid(portolan: &Path) -> Result<u32> {
    let output = Command::new(portolan)
        .args(["ps", "--json"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start `ps`")?;
    ensure!(output.status.success(), "`ps` ended with {}", output.status);
    let text = String::from_utf8(output.stdout).context("`ps` printed no text")?;
    for line in text.lines() {
        let object: Value = serde_json::from_str(line)?;
        if object["type"] == "group" {
            let pid = object["holder_pid"].as_u64().context("a holder")?;
            return Ok(u32::try_from(pid)?);
        }
    }
    anyhow::bail!("`ps` knows of no group")
}

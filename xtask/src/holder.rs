//! The processes that share the UDP port and the one that holds it, from `portolan ps`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The processes that share the port.
#[derive(Debug)]
pub(crate) struct Sharers {
    /// The process id of the holder.
    pub(crate) holder: u32,
    pub(crate) members: Vec<Sharer>,
}

/// A process that shares the port.
#[derive(Debug)]
pub(crate) struct Sharer {
    pub(crate) pid: u32,
    /// Whether it answered the query.
    pub(crate) answered: bool,
}

/// The process id of the holder.
pub(crate) fn pid(portolan: &Path) -> Result<u32> {
    let sharers = sharers(Command::new(portolan))?;
    Ok(sharers.context("`ps` lists no group")?.holder)
}

/// Lists all of them with this command; `None` if the port is free.
pub(crate) fn sharers(mut portolan: Command) -> Result<Option<Sharers>> {
    let output = portolan
        .args(["ps", "--json"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start `ps`")?;
    ensure!(output.status.success(), "`ps` ended with {}", output.status);
    let text = String::from_utf8(output.stdout).context("`ps` printed no text")?;
    let mut sharers: Option<Sharers> = None;
    for line in text.lines() {
        let object: Value = serde_json::from_str(line)?;
        let pid = |key: &str| -> Result<u32> {
            let pid = object[key].as_u64();
            let pid = pid.with_context(|| format!("no {key} in {line}"))?;
            Ok(u32::try_from(pid)?)
        };
        match (object["type"].as_str(), &mut sharers) {
            (Some("group"), _) => {
                sharers = Some(Sharers {
                    holder: pid("holder_pid")?,
                    members: Vec::new(),
                });
            }
            (Some("member"), Some(sharers)) => sharers.members.push(Sharer {
                pid: pid("pid")?,
                answered: object["answered"] == true,
            }),
            _ => {}
        }
    }
    Ok(sharers)
}

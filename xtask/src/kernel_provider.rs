//! The conformance suite over the kernel's own devices, in a kernel machine.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use portolan_lab::judge;
use portolan_lab::machine::{Cache, MachineError, Suite};

use crate::test::{Outcome, Workspace, cargo};

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    if !workspace.is_root {
        let why = "it boots a kernel machine whose packages root installs";
        return Ok(Outcome::LeftOut(why.into()));
    }
    let suite = build(workspace)?;
    let mut judges = Vec::new();
    for debian in [Suite::Bookworm, Suite::TrixieBackports] {
        match judge::kernel_provider(&Cache::locate()?, debian, &suite) {
            Ok(report) => {
                println!("{report}");
                ensure!(report.passed(), "what failed is above");
                judges.push(format!("Linux {}", report.kernel_release));
            }
            Err(MachineError::Unavailable(unavailable)) => {
                return Ok(Outcome::LeftOut(unavailable.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Outcome::Passed(judges.join(", ")))
}

/// The suite's test program, which cargo names by a hash.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    let output = Command::new(cargo())
        // The whole workspace's features, as in the part `tests`, so that nothing is built twice.
        .args(["test", "--quiet", "--workspace", "--all-features"])
        .args(["--test", "conformance", "--no-run"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(&workspace.root)
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "cargo ended with {}",
        output.status
    );
    let text = String::from_utf8(output.stdout)?;
    let messages = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let is_suite = |message: &serde_json::Value| message["target"]["name"] == "conformance";
    let program = messages
        .filter(is_suite)
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)));
    program.context("cargo names no program of the conformance suite")
}

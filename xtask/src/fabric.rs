//! A simulated InfiniBand fabric with a real subnet manager and administrator.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use portolan_lab::fabric;
use portolan_lab::machine::MachineError;

use crate::test::{Outcome, Workspace, test_program};

/// The test target.
const TARGET: &str = "root_fabric";
/// Environment variable that names the command for the tests.
const COMMAND: &str = "PORTOLAN_COMMAND";
/// Prefix of the tests' names, so that the part `tests` can exclude them.
pub(crate) const TESTS: &str = "on_the_fabric::";

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    if !workspace.is_root {
        let why = "making network namespaces needs root";
        return Ok(Outcome::LeftOut(why.into()));
    }
    match fabric::install() {
        Ok(()) => {}
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        Err(error) => return Err(error.into()),
    }
    let program = test_program(workspace, TARGET)?;
    let status = Command::new(program)
        .arg(TESTS)
        .env(COMMAND, &workspace.portolan)
        .current_dir(workspace.root.join("crates/lab"))
        .status()
        .context("cannot start the tests")?;
    ensure!(status.success(), "tests failed, see above ({status})");
    Ok(Outcome::Passed(String::new()))
}

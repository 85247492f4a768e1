//! Checks for leaks after looking up many names: tests of the target `root_names` under valgrind.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use portolan_lab::machine::{MachineError, Package, ensure_installed};

use crate::test::{Outcome, Workspace, test_program};

/// The test target.
const TARGET: &str = "root_names";
/// The tests that look up a thousand names at once and drop ids meanwhile.
const MANY: &str = "many::";

const PACKAGES: [Package; 2] = [
    Package {
        name: "dnsmasq-base",
        purpose: "a name server in a network namespace",
    },
    Package {
        name: "valgrind",
        purpose: "finding leaks",
    },
];

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    if !workspace.is_root {
        let why = "making network namespaces needs root";
        return Ok(Outcome::LeftOut(why.into()));
    }
    match install() {
        Ok(()) => {}
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        Err(error) => return Err(error.into()),
    }
    let program = test_program(workspace, TARGET)?;
    let status = Command::new("valgrind")
        .args(["--quiet", "--leak-check=full", "--error-exitcode=1"])
        // libc's clean-up at exit would free its resolver under threads that still use it. Padding of
        // structures for the kernel is undefined but never read, so it is ignored.
        .args(["--run-libc-freeres=no", "--undef-value-errors=no"])
        .args(["--show-leak-kinds=definite,indirect", "--fair-sched=try"])
        .args(["--errors-for-leak-kinds=definite,indirect"])
        .arg(program)
        .args([MANY, "--nocapture"])
        .current_dir(&workspace.root)
        .status()
        .context("cannot start valgrind")?;
    ensure!(status.success(), "valgrind's findings are above ({status})");
    Ok(Outcome::Passed(
        "1000 names at once, and no leak when ids are dropped meanwhile".into(),
    ))
}

/// Installs what the tests need; see [`ensure_installed`].
pub(crate) fn install() -> Result<(), MachineError> {
    ensure_installed(&PACKAGES)
}

//! The library, the command, and Debian's C programs on our librdmacm, over the kernel's own devices in kernel
//! machines.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use portolan_lab::judge;
use portolan_lab::machine::{Cache, MachineError, Package, ensure_installed};

use crate::kernels;
use crate::test::{Outcome, Workspace, lab_program, test_program};

/// Packages for building C programs.
pub(crate) const C_PACKAGES: [Package; 3] = [
    Package {
        name: "libibverbs-dev",
        purpose: "libibverbs's headers",
    },
    Package {
        name: "librdmacm-dev",
        purpose: "librdmacm's headers",
    },
    Package {
        name: "gcc",
        purpose: "the compiler of C programs",
    },
];
/// The C program that makes every call, built like Debian's programs.
const CALLS: &str = "crates/abi-rdmacm/tests/c/calls.c";

/// Our headers.
const HEADERS: &str = "include";

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    if !workspace.is_root {
        let why = "it boots a kernel machine whose packages root installs";
        return Ok(Outcome::LeftOut(why.into()));
    }
    let suite = test_program(workspace, "conformance")?;
    // Cargo puts it beside the crate's own tests.
    let library = test_program(workspace, "symbols")?.with_file_name("librdmacm.so");
    match ensure_installed(&C_PACKAGES) {
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        installed => installed?,
    }
    let calls = every_call(workspace, "calls", &[])?;
    let ours = every_call(workspace, "calls-by-our-headers", &["-I", HEADERS])?;
    let play = lab_program(workspace, "play")?;
    let administrator = lab_program(workspace, "umad_administrator")?;
    let programs = judge::KernelPrograms {
        suite: &suite,
        library: &library,
        calls: &calls,
        calls_by_our_headers: &ours,
        command: &workspace.portolan,
        administrator: &administrator,
        play: &play,
    };
    let cache = Cache::locate()?;
    let reports = match kernels::on_each(|debian| judge::kernel_provider(&cache, debian, programs))
    {
        Ok(reports) => reports,
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        Err(error) => return Err(error.into()),
    };
    reports.iter().for_each(|report| println!("{report}"));
    let all_passed = reports.iter().all(|report| report.passed());
    ensure!(all_passed, "checks failed, see above");
    let judges = reports
        .iter()
        .map(|report| format!("Linux {}", report.kernel_release));
    let judges: Vec<_> = judges.collect();
    Ok(Outcome::Passed(judges.join(", ")))
}

/// Builds [`CALLS`] against Debian's library and headers. `options` may name other headers to use first.
fn every_call(workspace: &Workspace, name: &str, options: &[&str]) -> Result<PathBuf> {
    let program = workspace.target.join(name);
    let to = program.to_str().context("a path of UTF-8")?;
    let strict = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"];
    let rest = ["-o", to, CALLS, "-lrdmacm", "-libverbs"];
    workspace.run("cc", &[&strict[..], options, &rest].concat())?;
    Ok(program)
}

//! The parts that are a command of cargo's or of the laboratory.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use portolan_lab::machine::{Cache, Machine, MachineError, Package, Suite, ensure_installed};
use portolan_lab::{judge, own_network};

use super::workspace::{ALL_TESTS, WITH_XTASK, cargo};
use super::{Outcome, Workspace, binaries};
use crate::namespace::Namespace;

/// Packages for tests as root, besides those that other parts install.
const FOR_TESTS: [Package; 2] = [
    Package {
        name: "nftables",
        purpose: "firewall rules that `portolan doctor` must find",
    },
    Package {
        name: "iptables",
        purpose: "rules of iptables",
    },
];

pub(super) fn format(workspace: &Workspace) -> Result<Outcome> {
    workspace.cargo(&["fmt", "--all", "--check"])?;
    // A separate workspace.
    workspace.cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])?;
    Ok(Outcome::Passed(String::new()))
}

pub(super) fn lints(workspace: &Workspace) -> Result<Outcome> {
    workspace.cargo(&[
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ])?;
    Ok(Outcome::Passed(String::new()))
}

pub(super) fn documentation(workspace: &Workspace) -> Result<Outcome> {
    let status = Command::new(cargo())
        .args([
            "doc",
            "--quiet",
            "--workspace",
            "--no-deps",
            "--all-features",
        ])
        .env("RUSTDOCFLAGS", "-D warnings")
        .current_dir(&workspace.root)
        .status()?;
    if !status.success() {
        bail!("rustdoc ended with {status}");
    }
    Ok(Outcome::Passed(String::new()))
}

/// Builds everything that the part `tests` runs.
pub(super) fn test_programs(workspace: &Workspace) -> Result<Outcome> {
    workspace.cargo(&[&ALL_TESTS[..], &["--no-run"]].concat())?;
    Ok(Outcome::Passed(String::new()))
}

/// Part of the names of tests that boot a machine.
const IN_MACHINES: &str = "in_machines::";
/// Part of the names of tests that other work would disturb.
const AGAINST_THE_CLOCK: &str = "against_the_clock::";

/// Runs every test target: as root two at a time, each in its own network namespace; otherwise one after the other. Targets
/// that need root, named `root_…`, run only as root. Tests that are separate parts are excluded.
pub(super) fn tests(workspace: &Workspace) -> Result<Outcome> {
    let all = [&ALL_TESTS[..], &["--no-fail-fast"]].concat();
    let mut others = vec!["--"];
    for apart in [crate::fabric::TESTS, IN_MACHINES, AGAINST_THE_CLOCK] {
        others.extend(["--skip", apart]);
    }
    if workspace.is_root {
        crate::leaks::install()?;
        ensure_installed(&FOR_TESTS)?;
        ensure_installed(&crate::kernel_provider::C_PACKAGES)?;
        judge::prepare_host()?;
        // Nothing is fetched from here on.
        own_network::enter();
        let mut runs = vec![binaries::documented_examples(workspace, &all)];
        let programs = [&all[..], &["--tests"], &others].concat();
        runs.extend(binaries::of_cargo(workspace, &programs)?);
        binaries::run(workspace, runs)?;
        return Ok(Outcome::Passed(String::new()));
    }
    let (for_root, for_all) = test_targets(workspace)?;
    let mut arguments = all.clone();
    arguments.extend(["--lib", "--bins"]);
    arguments.extend(for_all.iter().flat_map(|target| ["--test", target]));
    arguments.extend(others);
    workspace.cargo(&arguments)?;
    documented_examples(workspace, &all)?;
    Ok(Outcome::Passed(format!(
        "skipped because they need root: {}",
        for_root.join(", ")
    )))
}

/// Runs the examples in the documentation as an ordinary user. Readers see them with the usual port group, so they run in their own
/// network namespace if possible: where root's processes hold the group they would be refused.
fn documented_examples(workspace: &Workspace, all: &[&str]) -> Result<()> {
    let arguments = [all, &["--doc"]].concat();
    if !Namespace::is_possible(workspace.is_root)? {
        return workspace.cargo(&arguments);
    }
    let namespace = Namespace::new(workspace.is_root)?;
    let status = namespace.command().arg(cargo()).args(&arguments).status()?;
    ensure!(status.success(), "the examples ended with {status}");
    Ok(())
}

/// Runs the tests that measure time or quantity, one after the other.
pub(super) fn clock(workspace: &Workspace) -> Result<Outcome> {
    own_network::enter();
    let mut arguments = ALL_TESTS.to_vec();
    let (_, for_all) = test_targets(workspace)?;
    match workspace.is_root {
        true => arguments.push("--tests"),
        false => {
            arguments.extend(["--lib", "--bins"]);
            arguments.extend(for_all.iter().flat_map(|target| ["--test", target]));
        }
    }
    arguments.extend(["--", AGAINST_THE_CLOCK, "--test-threads", "1"]);
    workspace.cargo(&arguments)?;
    Ok(Outcome::Passed(String::new()))
}

/// Runs the laboratory's own tests in machines.
pub(super) fn machines(workspace: &Workspace) -> Result<Outcome> {
    match Machine::prepare(&Cache::locate()?, Suite::Bookworm) {
        Ok(_) => {}
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        Err(error) => return Err(error.into()),
    }
    let targets = ["--lib", "--test", "machine", "--test", "judge"];
    workspace.cargo(&[&ALL_TESTS[..], &targets, &WITH_XTASK, &["--", IN_MACHINES]].concat())?;
    Ok(Outcome::Passed(String::new()))
}

/// The workspace's integration tests: those that need root, and the others.
fn test_targets(workspace: &Workspace) -> Result<(Vec<String>, Vec<String>)> {
    let output = Command::new(cargo())
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(&workspace.root)
        .output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata has packages")?;
    let targets = packages
        .iter()
        .filter_map(|package| package["targets"].as_array())
        .flatten();
    let is_test = |target: &&serde_json::Value| target["kind"][0] == "test";
    let mut names: Vec<String> = targets
        .filter(is_test)
        .filter_map(|target| target["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    names.dedup();
    Ok(names
        .into_iter()
        .partition(|name| name.starts_with("root_")))
}

/// Builds the command, the programs that tests run beside it, and the libraries for C programs.
pub(super) fn build(workspace: &Workspace) -> Result<Outcome> {
    workspace.cargo(&["shipped"])?;
    Ok(Outcome::Passed(String::new()))
}

/// Runs in this build of xtask, since an optimized build would take longer than it saves.
pub(super) fn simulator(workspace: &Workspace) -> Result<Outcome> {
    let tasks = std::env::current_exe()?;
    let tasks = tasks.to_str().context("a path in UTF-8")?;
    workspace.run(tasks, &["simulate", "--seeds", "10000"])?;
    Ok(Outcome::Passed("10000 seeds".into()))
}

pub(super) fn kernel(workspace: &Workspace) -> Result<Outcome> {
    let cache = Cache::locate()?;
    match judge::linux_interop(&cache, &workspace.portolan) {
        Ok(report) => {
            println!("{report}");
            ensure!(report.passed(), "checks failed, see above");
            Ok(Outcome::Passed(String::new()))
        }
        Err(MachineError::Unavailable(unavailable)) => {
            Ok(Outcome::LeftOut(unavailable.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

//! `cargo xtask loops`: finds files of a crate that use each other in a circle.
//!
//! A file uses another if a path in it (`use`, `crate::…`, `super::…`, or starting with a module's name)
//! resolves to a definition in the other, through re-exports. Uses of modules below the file do not count: a
//! parent assembles its children, and they may use its definitions. Any other loop is a tangle: its files can
//! only be read, tested and moved together. Code for tests does not count. Methods are not seen, because the
//! `impl` blocks of a type may be in many files.

mod graph;
mod modules;
mod names;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::test::{Outcome, Workspace, cargo};
use graph::{Graph, Loop};
use modules::Crate;

pub(crate) fn task() -> Result<ExitCode> {
    run(&Workspace::here()?)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints each loop. Any loop is an error.
pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let roots = roots(workspace, &[])?;
    let mut loops = BTreeSet::new();
    for root in &roots {
        loops.extend(loops_of(root, &|path| {
            fs::read_to_string(workspace.root.join(path)).ok()
        })?);
    }
    for found in &loops {
        println!(
            "{} files use each other in a circle:\n{found}",
            found.steps.len()
        );
    }
    if !loops.is_empty() {
        bail!("{} import loops", loops.len());
    }
    Ok(Outcome::Passed(format!("{} crates", roots.len())))
}

fn loops_of(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Vec<Loop>> {
    Ok(Graph::of(&Crate::parse(root, read)?).loops())
}

/// The files of a crate.
#[cfg(test)]
pub(crate) fn files(workspace: &Workspace, root: &Path) -> Result<Vec<PathBuf>> {
    let read = |path: &Path| fs::read_to_string(workspace.root.join(path)).ok();
    Ok(Crate::parse(root, &read)?.files)
}

/// The root files of the workspace's crates of these kinds, or of any kind if none is given: libraries,
/// programs, tests, examples.
pub(crate) fn roots(workspace: &Workspace, kinds: &[&str]) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new(cargo())
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(&workspace.root)
        .output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array();
    let packages = packages.context("cargo metadata has packages")?;
    let targets = packages
        .iter()
        .filter_map(|package| package["targets"].as_array());
    targets
        .flatten()
        .filter(|target| {
            let of = |kind: &Value| kind.as_str().is_some_and(|kind| kinds.contains(&kind));
            kinds.is_empty()
                || target["kind"]
                    .as_array()
                    .is_some_and(|own| own.iter().any(of))
        })
        .filter_map(|target| target["src_path"].as_str())
        .map(|path| {
            let path = Path::new(path);
            Ok(path.strip_prefix(&workspace.root)?.to_owned())
        })
        .collect()
}

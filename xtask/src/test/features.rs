//! Checks that xtask is built with the same features as the tests. If one feature of a dependency differed,
//! cargo would build everything above it twice.

use std::collections::BTreeSet;
use std::process::Command;

use super::{Workspace, cargo};

/// Packages with their features, as cargo resolves them for `selection`.
fn resolved(selection: &[&str]) -> BTreeSet<String> {
    let output = Command::new(cargo())
        .args(["tree", "--locked", "--prefix", "none"])
        .args(["--format", "{p} [{f}]"])
        .args(selection)
        .current_dir(Workspace::here().unwrap().root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| line.trim_end_matches(" (*)"));
    lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn xtask_is_built_with_the_features_of_the_whole_workspace() {
    let own = resolved(&["--package", "xtask", "--edges", "normal,build"]);
    let all = resolved(&[
        "--workspace",
        "--all-features",
        "--edges",
        "normal,build,dev",
    ]);
    let others: Vec<_> = own.difference(&all).collect();
    assert!(
        others.is_empty(),
        "add to xtask the features of: {others:?}"
    );
    assert!(own.len() > 20);
}

//! Checks that xtask is built with the same features as the tests. If one feature of a dependency differed,
//! cargo would build everything above it twice.

use std::collections::BTreeSet;
use std::process::Command;

use super::{Workspace, cargo};

/// A package or what it depends on, with version and features, as cargo prints it.
type Resolved = String;

/// Each dependency as cargo resolves it for `selection`, with the package that it is a dependency of: procedural macros
/// and programs may have one package with different features.
fn resolved(selection: &[&str]) -> BTreeSet<(Resolved, Resolved)> {
    let output = Command::new(cargo())
        .args(["tree", "--locked", "--no-dedupe", "--prefix", "depth"])
        .args(["--format", " {p} [{f}]"])
        .args(selection)
        .current_dir(Workspace::here().unwrap().root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut above: Vec<Resolved> = Vec::new();
    let mut found = BTreeSet::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        // Empty between two packages of the workspace.
        let Some((depth, package)) = line.split_once(' ') else {
            continue;
        };
        above.truncate(depth.parse().unwrap());
        if let Some(parent) = above.last() {
            found.insert((parent.clone(), package.to_owned()));
        }
        above.push(package.to_owned());
    }
    found
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
        "add to xtask what has these features: {others:#?}"
    );
    assert!(own.len() > 20);
}

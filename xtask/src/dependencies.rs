//! Checks all dependencies, as cargo resolves them, against `deny.toml`: licences, sources and versions.
//!
//! cargo-deny reads the same file and also checks advisories. The tests do not run it, because building it
//! takes as long as building the project.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::test::{Workspace, cargo};

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// The platform of the tests. Cargo need not fetch dependencies of other platforms.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Whether a licence expression (SPDX) can be met with `allowed` licences.
fn is_met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ");
    let spaced = spaced.replace('/', " OR ").replace(" WITH ", "+WITH+");
    let mut tokens = spaced.split_whitespace().peekable();
    let met = alternatives(&mut tokens, allowed);
    met && tokens.next().is_none()
}

type Tokens<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// `AND` binds tighter than `OR`.
fn alternatives(tokens: &mut Tokens<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut met = conjunction(tokens, allowed);
    while tokens.next_if_eq(&"OR").is_some() {
        met |= conjunction(tokens, allowed);
    }
    met
}

fn conjunction(tokens: &mut Tokens<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut met = licence(tokens, allowed);
    while tokens.next_if_eq(&"AND").is_some() {
        met &= licence(tokens, allowed);
    }
    met
}

fn licence(tokens: &mut Tokens<'_>, allowed: &BTreeSet<String>) -> bool {
    match tokens.next() {
        Some("(") => alternatives(tokens, allowed) & (tokens.next() == Some(")")),
        Some(name) => allowed.contains(&name.replace("+WITH+", " WITH ")),
        None => false,
    }
}

/// The licences allowed by `deny.toml`. Its array is also valid JSON.
fn allowed(workspace: &Workspace) -> BTreeSet<String> {
    let text = fs::read_to_string(workspace.root.join("deny.toml")).unwrap();
    let (_, list) = text.split_once("\nallow = ").unwrap();
    let (list, _) = list.split_once('\n').unwrap();
    serde_json::from_str(list).unwrap()
}

#[test]
fn every_dependency_is_of_the_registry_and_licensed_as_deny_toml_allows() {
    let workspace = Workspace::here().unwrap();
    let output = Command::new(cargo())
        .args(["metadata", "--locked", "--all-features"])
        .args(["--format-version", "1", "--filter-platform", PLATFORM])
        .current_dir(&workspace.root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let allowed = allowed(&workspace);
    let packages = metadata["packages"].as_array().unwrap();
    let mut faults = Vec::new();
    for package in packages {
        let name = &package["name"];
        let licence = package["license"].as_str().unwrap_or("none");
        if !is_met(licence, &allowed) {
            faults.push(format!("{name}: licence {licence}"));
        }
        let source = &package["source"];
        if !source.is_null() && source != REGISTRY {
            faults.push(format!("{name}: from {source}"));
        }
        let is_ours = source.is_null();
        for dependency in package["dependencies"].as_array().unwrap() {
            if is_ours && dependency["req"] == "*" && dependency["path"].is_null() {
                faults.push(format!("{name}: any version of {}", dependency["name"]));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(packages.len() > 100);
}

#[test]
fn a_licence_expression_is_met_by_one_alternative_with_all_its_parts() {
    let allowed = ["MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"];
    let allowed = allowed.map(str::to_owned).into();
    for met in [
        "MIT",
        "GPL-2.0 OR MIT",
        "Apache-2.0/MIT",
        "(GPL-2.0 OR MIT) AND Zlib",
        "GPL-2.0 AND Zlib OR MIT",
        "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
    ] {
        assert!(is_met(met, &allowed), "{met}");
    }
    for wrong in [
        "",
        "GPL-2.0",
        "MIT AND GPL-2.0",
        "Apache-2.0",
        "MIT GPL-2.0",
        "(MIT",
    ] {
        assert!(!is_met(wrong, &allowed), "{wrong}");
    }
}

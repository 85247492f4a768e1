//! The libraries of Debian's packages.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::symbols::{built, exported};

/// `symbol@@VERSION` of everything that Debian's library exports and our library, built by the test, lacks.
pub(crate) fn lacking(theirs: &str, ours: &str) -> BTreeSet<String> {
    let option = format!("-print-file-name={theirs}");
    let output = Command::new("cc").arg(option).output().unwrap();
    let path = String::from_utf8(output.stdout).unwrap();
    let path = Path::new(path.trim());
    assert!(path.is_absolute(), "{theirs} does not exist");
    &exported(path) - &exported(&built(ours))
}

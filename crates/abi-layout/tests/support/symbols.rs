//! The symbols that a library for C programs exports.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library built together with the test.
pub(crate) fn built(file_name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(file_name)
}

/// The output of a binary utility about a library.
pub(crate) fn said_of(library: &Path, utility: &str, options: &[&str]) -> String {
    let output = Command::new(utility).args(options).arg(library).output();
    let output = output.unwrap_or_else(|error| panic!("{utility} (package binutils): {error}"));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// `symbol@@VERSION` of everything that a library exports, with a single `@` for an old version. Without the
/// version symbols themselves.
pub(crate) fn exported(library: &Path) -> BTreeSet<String> {
    let text = said_of(library, "nm", &["-D", "--defined-only"]);
    let symbols = text.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (kind, name) = (words.next()?, words.next()?);
        (kind != "A").then(|| name.to_owned())
    });
    symbols.collect()
}

//! What a library for C programs exports, and what its map promises.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// A library that the test's own build made.
pub(crate) fn library(file_name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(file_name)
}

/// `symbol@@VERSION` of everything in a map.
pub(crate) fn promised(map: &str) -> BTreeSet<String> {
    let (mut version, mut symbols) = (String::new(), BTreeSet::new());
    for line in map.lines().map(str::trim) {
        if let Some((name, _)) = line.split_once(" {") {
            version = name.to_owned();
        } else if let Some(symbol) = line.strip_suffix(';')
            && !symbol.starts_with('}')
        {
            symbols.insert(format!("{symbol}@@{version}"));
        }
    }
    symbols
}

/// `symbol@@VERSION` of everything that a library exports, but for its versions themselves.
pub(crate) fn exported(file_name: &str) -> BTreeSet<String> {
    let mut nm = Command::new("nm");
    let nm = nm.args(["-D", "--defined-only"]).arg(library(file_name));
    let output = nm.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let symbols = text.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (kind, name) = (words.next()?, words.next()?);
        (kind != "A").then(|| name.to_owned())
    });
    symbols.collect()
}

/// Holds a library's name for the loader against `soname`, and that it is never unloaded: its threads would run on in
/// memory that is gone.
pub(crate) fn assert_is_found_as(file_name: &str, soname: &str) {
    let mut readelf = Command::new("readelf");
    let output = readelf.arg("-d").arg(library(file_name)).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("soname: [{soname}]")), "{text}");
    assert!(text.contains("NODELETE"), "{text}");
}

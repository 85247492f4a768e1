//! The library exports what its map says, under the versions it says.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

/// The library that this test's own build made.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().join("librdmacm.so")
}

/// `symbol@@VERSION` of everything in the map.
fn promised() -> BTreeSet<String> {
    let map = include_str!("../librdmacm.map");
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
fn exported(library: &PathBuf) -> BTreeSet<String> {
    let mut nm = Command::new("nm");
    let nm = nm.args(["-D", "--defined-only"]).arg(library);
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

#[test]
fn the_library_exports_what_its_map_says_and_nothing_else() {
    let promised = promised();
    assert!(
        promised.contains("rdma_establish@@RDMACM_1.2"),
        "{promised:?}"
    );
    assert_eq!(exported(&library()), promised);
}

#[test]
fn programs_find_the_library_under_librdmacms_name() {
    let output = Command::new("readelf")
        .arg("-d")
        .arg(library())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("soname: [librdmacm.so.1]"), "{text}");
    // Threads of its look-ups would run on in memory that is gone.
    assert!(text.contains("NODELETE"), "{text}");
}

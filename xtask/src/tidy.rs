//! House rules that a program can check, as tests over every source file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::loops;
use crate::test::Workspace;

/// Longest permitted file.
const FILE_LINES_MAX: usize = 600;

/// All files of Rust below a folder, except build outputs.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

/// Whether its code contains the keyword `unsafe`. `unsafe_code` in an attribute does not count.
fn has_unsafe(text: &str) -> bool {
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .any(|word| word == "unsafe")
}

#[test]
fn no_file_is_too_long() {
    let root = Workspace::here().unwrap().root;
    let mut files = Vec::new();
    for folder in ["crates", "fuzz", "xtask"] {
        sources(&root.join(folder), &mut files);
    }
    let long = files.iter().filter_map(|file| {
        let lines = fs::read_to_string(file).unwrap().lines().count();
        (lines > FILE_LINES_MAX).then(|| format!("{}: {lines} lines", file.display()))
    });
    let long: Vec<String> = long.collect();
    assert!(long.is_empty(), "at most {FILE_LINES_MAX} lines: {long:#?}");
    assert!(files.len() > 500);
}

#[test]
fn a_crate_without_unsafe_code_forbids_it() {
    let workspace = Workspace::here().unwrap();
    let mut lacking = Vec::new();
    for root in loops::roots(&workspace, &["lib", "bin", "cdylib"]).unwrap() {
        let files = loops::files(&workspace, &root).unwrap();
        let read = |file: &PathBuf| fs::read_to_string(workspace.root.join(file)).unwrap();
        let is_safe = !files.iter().map(read).any(|text| has_unsafe(&text));
        if is_safe && !read(&root).contains("#![forbid(unsafe_code)]") {
            lacking.push(root);
        }
    }
    assert!(
        lacking.is_empty(),
        "add #![forbid(unsafe_code)] to {lacking:#?}"
    );
}

#[test]
fn unsafe_code_differs_from_words_about_it() {
    assert!(has_unsafe("let x = unsafe { f() };"));
    assert!(!has_unsafe(
        "#![forbid(unsafe_code)]\n// unsafe would be\nfn safe() {}"
    ));
}

//! House rules that a program can check, as tests over every source file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::loops;
use crate::test::Workspace;

/// Longest permitted file.
const FILE_LINES_MAX: usize = 600;

/// Words that once named modules and types and said too little. The field's terms replace them: coordinator, member
/// connections, descriptor store, keepalive, deferred acknowledgements, query coalescer, provider and so on.
const RETIRED_NAMES: [&str; 17] = [
    "board",
    "crowd",
    "departed",
    "desk",
    "floor",
    "floors",
    "ground",
    "heard",
    "hub",
    "lanes",
    "owed",
    "seam",
    "survivors",
    "turns",
    "untold",
    "vault",
    "vigil",
];

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

/// The names of the modules and types that a text defines, and of its file.
fn defined<'a>(file: &'a Path, text: &'a str) -> impl Iterator<Item = &'a str> {
    let stem = file.file_stem().and_then(|stem| stem.to_str());
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let words = words.filter(|word| !word.is_empty());
    let keywords = ["enum", "mod", "struct", "trait", "type"];
    let items = words.clone().zip(words.skip(1));
    let items = items.filter(move |(before, _)| keywords.contains(before));
    stem.into_iter().chain(items.map(|(_, name)| name))
}

#[test]
fn no_retired_name_is_left() {
    let root = Workspace::here().unwrap().root;
    let mut files = Vec::new();
    for folder in ["crates", "fuzz", "xtask"] {
        sources(&root.join(folder), &mut files);
    }
    let mut left = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        let is_retired = |name: &&str| RETIRED_NAMES.contains(&name.to_lowercase().as_str());
        left.extend(
            defined(file, &text)
                .filter(is_retired)
                .map(|name| format!("{}: {name}", file.display())),
        );
    }
    assert!(left.is_empty(), "{left:#?}");
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

/// The commands in code font that run an example, on one line of a text.
fn example_commands(line: &str) -> impl Iterator<Item = &str> {
    let quoted = line.split('`').skip(1).step_by(2);
    quoted.filter(|text| text.starts_with("cargo run") && text.contains("--example"))
}

/// `cargo run` without a package runs the default member's, the command's.
#[test]
fn a_command_that_runs_an_example_names_its_package() {
    let root = Workspace::here().unwrap().root;
    let mut files = Vec::new();
    sources(&root.join("crates/portolan"), &mut files);
    let (mut seen, mut wrong) = (0, Vec::new());
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        for command in text.lines().flat_map(example_commands) {
            seen += 1;
            if !command.contains("-p portolan ") {
                wrong.push(format!("{}: {command}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "add -p portolan: {wrong:#?}");
    assert!(seen >= 15, "{seen} commands");
}

//! Checks that links and paths in the documents lead somewhere.
//!
//! A relative link must name a file or folder of the repository, and its fragment a heading of that document. A
//! code span that begins with `crates/`, `xtask/`, `docs/` or `examples/` is a path and must exist too, so
//! moving a file requires updating its mentions.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::test::{Outcome, Workspace};

/// Code spans with these prefixes are paths from the repository's root.
const ROOMS: [&str; 4] = ["crates/", "xtask/", "docs/", "examples/"];

/// A link or path whose target does not exist.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    document: PathBuf,
    /// The line, starting from 1.
    line: usize,
    target: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            document,
            line,
            target,
        } = self;
        write!(f, "{}:{line}: {target} does not exist", document.display())
    }
}

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let documents = documents(&workspace.root)?;
    let mut targets = 0;
    let mut faults = Vec::new();
    for document in &documents {
        let text = fs::read_to_string(workspace.root.join(document))
            .with_context(|| document.display().to_string())?;
        for (line, target) in references(&text) {
            targets += 1;
            if !exists(&workspace.root, document, &target) {
                let document = document.clone();
                faults.push(Fault {
                    document,
                    line,
                    target,
                });
            }
        }
    }
    if !faults.is_empty() {
        faults.iter().for_each(|fault| eprintln!("{fault}"));
        bail!("{} of {targets} links and paths lead nowhere", faults.len());
    }
    Ok(Outcome::Passed(format!(
        "{targets} links and paths in {} documents",
        documents.len()
    )))
}

/// The documents that git tracks, as paths from the root.
fn documents(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "*.md"])
        .current_dir(root)
        .output()
        .context("cannot start git")?;
    if !output.status.success() {
        bail!("git ls-files ended with {}", output.status);
    }
    let names = String::from_utf8(output.stdout)?;
    Ok(names.split_terminator('\0').map(PathBuf::from).collect())
}

/// The relative links of a document, and its code spans that are paths, with their lines. A path is returned as
/// a link from the root (`/crates/wire`).
fn references(text: &str) -> Vec<(usize, String)> {
    let line = |offset: usize| text[..offset].matches('\n').count() + 1;
    let mut found = Vec::new();
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        let target = match event {
            Event::Start(Tag::Link { dest_url, .. }) if !dest_url.contains(':') => {
                dest_url.to_string()
            }
            Event::Code(code) if is_path(&code) => {
                // The path may be followed by a test's name or a line.
                format!("/{}", code.split(':').next().unwrap_or_default())
            }
            _ => continue,
        };
        found.push((line(range.start), target));
    }
    found
}

/// Whether a code span is a single path and not a pattern (`crates/abi-*`, `crates/…/tests`).
fn is_path(code: &str) -> bool {
    ROOMS.iter().any(|room| code.starts_with(room)) && !code.contains(['*', '…', '{', ' ', '<'])
}

fn exists(root: &Path, document: &Path, target: &str) -> bool {
    let (path, fragment) = target.split_once('#').unwrap_or((target, ""));
    let file = match path.strip_prefix('/') {
        _ if path.is_empty() => root.join(document),
        Some(from_root) => root.join(from_root),
        None => root.join(document).parent().unwrap_or(root).join(path),
    };
    if fragment.is_empty() {
        return file.exists();
    }
    fs::read_to_string(&file)
        .is_ok_and(|text| anchors(&text).iter().any(|anchor| anchor == fragment))
}

/// The fragments of a document's headings, as public hosts make them: lower case, without punctuation, spaces
/// as hyphens, and a number after a repeated heading.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut anchors = Vec::new();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let anchor = slug(&heading.take().unwrap_or_default());
                let before = seen.entry(anchor.clone()).or_default();
                anchors.push(match before {
                    0 => anchor,
                    _ => format!("{anchor}-{before}"),
                });
                *before += 1;
            }
            Event::Text(words) | Event::Code(words) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            _ => {}
        }
    }
    anchors
}

fn slug(heading: &str) -> String {
    let kept = heading.chars().filter_map(|character| match character {
        ' ' => Some('-'),
        '-' | '_' => Some(character),
        _ if character.is_alphanumeric() => Some(character),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_links_and_paths_are_found_with_their_lines() {
        let text = "[a](b.md#c)\n\n| `crates/wire` | [out](https://example.org) |\n`crates/abi-*` `word`\n";
        let expected = vec![(1, "b.md#c".into()), (3, "/crates/wire".into())];
        assert_eq!(references(text), expected);
    }

    #[test]
    fn a_headings_anchor_is_what_public_hosts_make_of_it() {
        let text = "# `portolan exec`: a run\n## Twice\n## Twice\n";
        assert_eq!(anchors(text), ["portolan-exec-a-run", "twice", "twice-1"]);
    }

    #[test]
    fn a_target_exists_only_if_its_file_and_heading_do() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let document = Path::new("src/README.md");
        assert!(exists(root, document, "links.rs"));
        assert!(exists(root, document, "/src/links.rs"));
        assert!(!exists(root, document, "/src/gone.rs"));
        assert!(!exists(root, document, "links.rs#no-heading"));
    }
}

//! Checks `docs/promises.md` against the tests. Each promise of the man pages names the tests that prove it,
//! and these must exist.
//!
//! The file consists of pages (`## 1. name`), sections (`### 1.2 TITLE`) and rows (`| 1.2.3 | promise | tests
//! |`). Whether a test proves its promise is for readers to judge. This checks that no promise is missing or
//! numbered twice, and that every named test runs.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;

use anyhow::{Context, Result, bail};

use crate::test::{Outcome, Workspace};

const FILE: &str = "docs/promises.md";

/// The pages, in the order of the file.
const PAGES: [&str; 6] = [
    "rdma_getaddrinfo(3)",
    "rdma_getaddrinfo, the Chinese page",
    "rdma_resolve_addrinfo(3)",
    "ibv_gid_reachable(3)",
    "rdma_get_cm_event(3)",
    "rsocket(7)",
];

/// The text of a section without promises.
const NONE: &str = "No promises.";

/// The attributes that make a function a test.
const TEST_ATTRIBUTES: [&str; 2] = ["#[test]", "#[tokio::test"];

/// An error in the file, and its line.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    /// The line, starting from 1.
    line: usize,
    what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FILE}:{}: {}", self.line, self.what)
    }
}

/// The contents of the file.
#[derive(Debug, Default)]
struct Findings {
    faults: Vec<Fault>,
    promises: usize,
    /// Each named test, as `path::name`.
    tests: BTreeSet<String>,
}

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    let text = fs::read_to_string(workspace.root.join(FILE)).context(FILE)?;
    let findings = check(&text, &|path| {
        fs::read_to_string(workspace.root.join(path)).ok()
    });
    for fault in &findings.faults {
        println!("{fault}");
    }
    if !findings.faults.is_empty() {
        bail!("{} faults in {FILE}", findings.faults.len());
    }
    Ok(Outcome::Passed(format!(
        "{} promises, {} tests",
        findings.promises,
        findings.tests.len()
    )))
}

/// Checks the whole text. `source` returns the text of a file of the workspace.
fn check(text: &str, source: &dyn Fn(&str) -> Option<String>) -> Findings {
    let mut reader = Reader {
        source,
        findings: Findings::default(),
        page: 0,
        section: 0,
        row: 0,
        line: 0,
        said_none: false,
    };
    for (at, line) in text.lines().enumerate() {
        reader.line = at + 1;
        reader.read(line.trim());
    }
    reader.end_page();
    if reader.page != PAGES.len() {
        let (found, expected) = (reader.page, PAGES.len());
        reader.fault(format!("{found} pages, expected {expected}"));
    }
    reader.findings
}

/// The position in the file and the findings so far.
struct Reader<'a> {
    source: &'a dyn Fn(&str) -> Option<String>,
    findings: Findings,
    page: usize,
    section: usize,
    row: usize,
    line: usize,
    /// Whether the section states that it promises nothing.
    said_none: bool,
}

impl Reader<'_> {
    fn fault(&mut self, what: String) {
        let line = self.line;
        self.findings.faults.push(Fault { line, what });
    }

    fn read(&mut self, line: &str) {
        if let Some(heading) = line.strip_prefix("### ") {
            self.begin_section(heading);
        } else if let Some(heading) = line.strip_prefix("## ") {
            self.begin_page(heading);
        } else if line == NONE {
            self.said_none = true;
        } else if let Some(cells) = line.strip_prefix('|').and_then(|l| l.strip_suffix('|')) {
            let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
            let is_head = cells[0] == "no." || cells[0].starts_with("--");
            if !is_head {
                self.read_row(&cells);
            }
        } else if line.starts_with('|') {
            self.fault("a row without an end".into());
        }
    }

    fn begin_page(&mut self, heading: &str) {
        self.end_page();
        let name = PAGES.get(self.page).copied().unwrap_or("no more pages");
        self.page += 1;
        self.section = 0;
        let expected = format!("{}. {name}", self.page);
        if heading != expected {
            self.fault(format!("page `{heading}` where `{expected}` is expected"));
        }
    }

    fn begin_section(&mut self, heading: &str) {
        self.end_section();
        self.section += 1;
        self.row = 0;
        self.said_none = false;
        let expected = self.section_number();
        if heading.split_once(' ').map(|(number, _)| number) != Some(&expected) {
            self.fault(format!("section `{heading}` where {expected} is expected"));
        }
    }

    fn section_number(&self) -> String {
        format!("{}.{}", self.page, self.section)
    }

    fn end_page(&mut self) {
        self.end_section();
        if self.page > 0 && self.section == 0 {
            self.fault(format!("page {} has no sections", self.page));
        }
    }

    fn end_section(&mut self) {
        if self.section > 0 && (self.row == 0) != self.said_none {
            let number = self.section_number();
            self.fault(format!(
                "section {number} has neither promises nor the line `{NONE}`"
            ));
        }
    }

    fn read_row(&mut self, cells: &[&str]) {
        self.row += 1;
        self.findings.promises += 1;
        let expected = format!("{}.{}", self.section_number(), self.row);
        let &[number, promise, proof] = cells else {
            let found = cells.len();
            return self.fault(format!("{found} cells, expected number, promise and tests"));
        };
        if self.section == 0 || number != expected {
            self.fault(format!("promise {number} where {expected} is expected"));
        }
        if promise.is_empty() {
            self.fault(format!("promise {number} is empty"));
        }
        self.read_tests(number, proof);
    }

    fn read_tests(&mut self, number: &str, proof: &str) {
        if proof.is_empty() {
            return self.fault(format!("promise {number} has no test"));
        }
        for test in proof.split("<br>").map(str::trim) {
            let name = test.strip_prefix('`').and_then(|t| t.strip_suffix('`'));
            let Some((path, function)) = name.and_then(|name| name.split_once("::")) else {
                self.fault(format!(
                    "promise {number}: `path/file.rs::test` in backquotes expected, found {test}"
                ));
                continue;
            };
            match (self.source)(path) {
                None => self.fault(format!("promise {number}: there is no file {path}")),
                Some(source) => {
                    if let Err(why) = find_test(&source, function) {
                        self.fault(format!("promise {number}: {path}: {function} {why}"));
                    }
                }
            }
            self.findings.tests.insert(format!("{path}::{function}"));
        }
    }
}

/// Checks that a source has this function and that it is a test that runs.
fn find_test(source: &str, function: &str) -> Result<(), &'static str> {
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let is_function = |line: &&str| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("fn ")
            .and_then(|rest| rest.strip_prefix(function))
            .is_some_and(|rest| rest.starts_with(['(', '<']))
    };
    let at = lines.iter().position(is_function).ok_or("does not exist")?;
    // Attributes and documentation are between the function and the end of the previous item.
    let before = lines[..at].iter().rev();
    let attributes: Vec<&&str> = before
        .take_while(|line| !line.is_empty() && !line.ends_with(['{', '}', ';']))
        .filter(|line| !line.starts_with("//"))
        .collect();
    let has = |what: &str| attributes.iter().any(|line| line.contains(what));
    if !attributes
        .iter()
        .any(|line| TEST_ATTRIBUTES.iter().any(|test| line.starts_with(test)))
    {
        Err("is not a test")
    } else if has("ignore") {
        Err("is ignored")
    } else {
        Ok(())
    }
}

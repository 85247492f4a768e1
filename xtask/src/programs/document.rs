//! The section of docs/interop.md that the rows are written to.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cases::Case;

const DOCUMENT: &str = "docs/interop.md";
const BEGIN: &str = "<!-- programs: begin -->\n";
const END: &str = "<!-- programs: end -->\n";

/// What became of a row.
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) result: Result<(), String>,
    pub(super) took: Duration,
}

/// Replaces the section; what is around it stays.
pub(super) fn write(root: &Path, rows: &[Row], took: Duration) -> Result<()> {
    let path = root.join(DOCUMENT);
    let old = fs::read_to_string(&path).with_context(|| format!("no {DOCUMENT}"))?;
    fs::write(&path, replaced(&old, &section(rows, took))?)?;
    Ok(())
}

fn replaced(old: &str, section: &str) -> Result<String> {
    let (Some(begin), Some(end)) = (old.find(BEGIN), old.find(END)) else {
        anyhow::bail!("{DOCUMENT} has no marks of this section");
    };
    let begin = begin + BEGIN.len();
    ensure!(begin <= end, "the marks in {DOCUMENT} are out of order");
    Ok([&old[..begin], section, &old[end..]].concat())
}

fn section(rows: &[Row], took: Duration) -> String {
    let mut text = String::new();
    let mut group = "";
    for row in rows {
        if row.case.group != group {
            group = row.case.group;
            write!(
                text,
                "\n### {}\n\n| row | result |\n|---|---|\n",
                first_upper(group)
            )
            .expect("text takes text");
        }
        let result = match &row.result {
            Ok(()) => format!("passed, {:.1} s", row.took.as_secs_f64()),
            Err(why) => format!("failed: {}", why.replace('|', "/").replace('\n', " ")),
        };
        writeln!(text, "| `{}` | {result} |", row.case.name).expect("text takes text");
    }
    let passed = rows.iter().filter(|row| row.result.is_ok()).count();
    let minutes = took.as_secs_f64() / 60.0;
    let total = rows.len();
    format!("\n{passed} of {total} rows passed, in {minutes:.1} minutes.\n{text}\n")
}

fn first_upper(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_section_between_the_marks_is_replaced() {
        let old = format!("before\n{BEGIN}old\n{END}after\n");
        let new = replaced(&old, "new\n").unwrap();
        assert_eq!(new, format!("before\n{BEGIN}new\n{END}after\n"));
        assert!(replaced("no marks", "new").is_err());
    }
}

//! Writes the rows to their section of docs/interop.md.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::case::{Case, Ending};

const DOCUMENT: &str = "docs/interop.md";
const BEGIN: &str = "<!-- Written by `cargo xtask programs` from its run: do not edit. -->\n";
const END: &str = "<!-- End of what `cargo xtask programs` writes. -->\n";

const SOCKETS_BEGIN: &str =
    "<!-- Written by `cargo xtask programs --sockets` from its run: do not edit. -->\n";
const SOCKETS_END: &str = "<!-- End of what `cargo xtask programs --sockets` writes. -->\n";

/// The result of a row.
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) result: Result<(), String>,
    pub(super) took: Duration,
}

/// Replaces the sections of the played rows and keeps the rest.
pub(super) fn write(root: &Path, rows: Vec<Row>, took: Duration) -> Result<()> {
    let (sockets, others): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|row| row.case.is_of_sockets());
    for (rows, marks) in [
        (others, (BEGIN, END)),
        (sockets, (SOCKETS_BEGIN, SOCKETS_END)),
    ] {
        if !rows.is_empty() {
            replace(root, marks, &section(&rows, took))?;
        }
    }
    Ok(())
}

/// Replaces the section between two marks.
pub(super) fn replace(root: &Path, marks: (&str, &str), section: &str) -> Result<()> {
    let path = root.join(DOCUMENT);
    let old = fs::read_to_string(&path).with_context(|| format!("no {DOCUMENT}"))?;
    fs::write(&path, replaced(&old, marks, section)?)?;
    println!("{DOCUMENT} is written");
    Ok(())
}

fn replaced(old: &str, marks: (&str, &str), section: &str) -> Result<String> {
    let (Some(begin), Some(end)) = (old.find(marks.0), old.find(marks.1)) else {
        anyhow::bail!("{DOCUMENT} has no marks of this section");
    };
    let begin = begin + marks.0.len();
    ensure!(begin <= end, "the marks in {DOCUMENT} are out of order");
    Ok([&old[..begin], section, &old[end..]].concat())
}

fn section(rows: &[Row], took: Duration) -> String {
    let mut text = String::new();
    let mut group = "";
    for row in rows {
        if row.case.group != group {
            group = row.case.group;
            let heading = first_upper(group);
            let columns = "| server | client | data | result |\n|---|---|---|---|";
            write!(text, "\n### {heading}\n\n{columns}\n")
                .expect("writing to a string cannot fail");
        }
        writeln!(text, "{}", line(row)).expect("writing to a string cannot fail");
    }
    let as_expected = rows.iter().filter(|row| row.result.is_ok()).count();
    let minutes = took.as_secs_f64() / 60.0;
    let total = rows.len();
    format!("\n{as_expected} of {total} rows ended as expected, in {minutes:.1} minutes.\n{text}\n")
}

fn line(row: &Row) -> String {
    let server = match &row.case.server {
        Some(server) => format!("`{}`", server.end.text()),
        None => String::new(),
    };
    let client = match row.case.clients {
        1 => format!("`{}`", row.case.client.text()),
        count => format!("{count} at once: `{}`", row.case.client.text()),
    };
    let seconds = row.took.as_secs_f64();
    let result = match &row.result {
        Ok(()) => refusal(&row.case).unwrap_or_else(|| format!("passed, {seconds:.1} s")),
        Err(why) => format!("**failed**: {}", why.replace('|', "/").replace('\n', " ")),
    };
    let data = row.case.data.text();
    format!("| {server} | {client} | {data} | {result} |")
}

/// The expected error of an end that must be refused.
fn refusal(case: &Case) -> Option<String> {
    let server = case.server.as_ref().map(|server| server.expected);
    let ends = server.into_iter().chain([case.expected]);
    let mut refused = ends.filter(|end| end.ending == Ending::Refused);
    let (text, _) = refused.next()?.says.first()?;
    Some(format!("refused, as on other devices of RoCE: {text}"))
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
        let new = replaced(&old, (BEGIN, END), "new\n").unwrap();
        assert_eq!(new, format!("before\n{BEGIN}new\n{END}after\n"));
        assert!(replaced("no marks", (BEGIN, END), "new").is_err());
    }

    #[test]
    fn a_row_shows_both_ends_and_their_results() {
        let row = Row {
            case: Case::alone("devices", super::super::case::c("ibv_devices")),
            result: Err("a|b\nc".into()),
            took: Duration::ZERO,
        };
        let text = section(&[row], Duration::from_secs(60));
        assert!(text.contains("0 of 1 rows ended as expected, in 1.0 minutes"));
        assert!(text.contains("### Devices"));
        assert!(text.contains("|  | `ibv_devices` |  | **failed**: a/b c |"));
    }
}

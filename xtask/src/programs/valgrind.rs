//! Programs under valgrind: our libraries must not make invalid accesses.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use portolan_lab::machine::Package;

use super::case::{Case, End};

pub(super) const PACKAGE: Package = Package {
    name: "valgrind",
    purpose: "finding invalid accesses",
};
/// Check accesses and frees only. Not leaks at exit, and not undefined values, because padding is often undefined.
const OPTIONS: [&str; 6] = [
    "--fair-sched=try",
    "--quiet",
    "--leak-check=no",
    "--undef-value-errors=no",
    "--trace-children=yes",
    "--vgdb=no",
];
/// The first words of valgrind's reports.
const REPORTS: [&str; 5] = [
    "Invalid read",
    "Invalid write",
    "Invalid free",
    "Mismatched free",
    "Source and destination overlap",
];
/// Texts in the frames of our libraries. Their line tables contain the names of their source files.
const OURS: [&str; 3] = ["portolan", "librdmacm.so", "libibverbs.so"];

/// Whether a row is played under valgrind. MPI and Python are excluded: valgrind would spend minutes in the launchers
/// and the interpreter.
pub(super) fn is_checked(case: &Case) -> bool {
    const GROUPS: [&str; 5] = [
        "librdmacm's programs",
        "libfabric on verbs",
        "UCX on verbs",
        "storage",
        "Rust crates on verbs",
    ];
    let is_c = matches!(case.client, End::C(_));
    // Exclude several clients, and rows that are expected to hang.
    let client = case.client_text();
    let is_one = case.clients == 1 && !client.contains("timeout") && !client.contains("-P");
    is_c && is_one && case.is_quick && GROUPS.contains(&case.group)
}

/// The words before a program's command line to run it under valgrind. Each process writes its own file in the folder.
pub(super) fn words(folder: &Path) -> Vec<String> {
    let log = format!("--log-file={}/%p", folder.display());
    let options = OPTIONS.map(str::to_owned);
    [vec!["valgrind".to_owned(), log], options.into()].concat()
}

/// Reads valgrind's reports.
///
/// # Errors
/// The first invalid access in our libraries.
pub(super) fn judge(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).context("no folder of valgrind's")? {
        let path = entry?.path();
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if let Some(report) = ours_in(&String::from_utf8_lossy(&text)) {
            bail!("an invalid access: {report}");
        }
    }
    Ok(())
}

/// The first report that has one of our functions among its first frames. Empty lines (`==12== `) separate reports.
fn ours_in(text: &str) -> Option<String> {
    let lines = text.lines().map(|line| {
        let end = line
            .strip_prefix("==")
            .and_then(|rest| rest.split_once("=="));
        end.map_or(line, |(_, rest)| rest.trim())
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    let is_report = |report: &&str| REPORTS.iter().any(|begin| report.starts_with(begin));
    let is_ours = |report: &&str| {
        let frames = report
            .lines()
            .filter(|line| line.starts_with("at ") || line.starts_with("by "));
        frames
            .take(6)
            .any(|line| OURS.iter().any(|name| line.contains(name)))
    };
    let found = text
        .split("\n\n")
        .find(|report| is_report(report) && is_ours(report));
    found.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHERS: &str = "==7== Invalid read of size 4\n==7==    at 0x1: strlen (vg_replace_strmem.c:1)\n\
        ==7==    by 0x2: main (in /usr/bin/fio)\n==7== \n";
    const OUR_OWN: &str = "==7== Invalid write of size 8\n==7==    at 0x1: portolan_roce::io::drive (drive.rs:7)\n\
        ==7==    by 0x2: main (in /usr/bin/fio)\n==7==  Address 0x0 is not stack'd\n==7== \n";

    #[test]
    fn an_invalid_access_of_ours_is_found_among_others() {
        assert_eq!(ours_in(OTHERS), None);
        let found = ours_in(&[OTHERS, OUR_OWN].concat()).unwrap();
        assert!(found.starts_with("Invalid write of size 8"), "{found}");
    }

    #[test]
    fn a_dozen_rows_are_checked() {
        let count = super::super::cases::all()
            .iter()
            .filter(|case| is_checked(case))
            .count();
        assert!(count >= 12, "{count}");
    }
}

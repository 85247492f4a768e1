//! What connections cost beside librdmacm and rdma_rxe: measured, and written into the documentation. Below it, what
//! perftest measures.

mod perftest;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use portolan_lab::judge::{self, Figures, Load, Subject};
use portolan_lab::machine::{Cache, MachineError, Suite};

use crate::install;
use crate::test::{Outcome, Workspace};

/// A thousand connections a turn, no more of them at once than fit into the 512 receives that Linux posts to queue
/// pair 1: a request that is lost is repeated only after 4.3 seconds, and of what a library does nothing would be
/// seen then.
const LOAD: Load = Load {
    at_once: 200,
    times: 5,
};
/// Of the tests: as many as show a step that got slower, and few enough for some seconds.
const LOAD_IN_TESTS: Load = Load {
    at_once: 100,
    times: 1,
};
/// All steps beside librdmacm's in the tests. Promised is 1.0 of both; a round differs from the next by up to 0.02,
/// however busy the host is, and one that is only a hundred connections has the beginnings of the program in it: the
/// release build of the kernel provider takes 0.99 to 1.01 then.
const BOUNDS: [(Subject, f64); 2] = [
    (Subject::KernelProvider, 1.03),
    (Subject::SoftwareDevice, 1.0),
];
/// Has the figures, below the workspace's root, between the marks.
const DOCUMENT: &str = "docs/performance.md";
/// Our cmtime.
const CMTIME: &str = "portolan-cmtime";
const MARKS: Marks = Marks {
    begin: "<!-- begin: `cargo xtask figures` writes this -->\n",
    end: "<!-- end: `cargo xtask figures` -->\n",
};

/// What figures lie between, in the document.
#[derive(Clone, Copy)]
struct Marks {
    begin: &'static str,
    end: &'static str,
}

/// Measures connections beside librdmacm's in a kernel machine, and writes the figures into docs/performance.md.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    /// Rounds, in which librdmacm, the kernel provider and the software device take turns.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Connections at once.
    #[arg(long, value_name = "N", default_value_t = LOAD.at_once,
          value_parser = clap::value_parser!(u32).range(1..=5000))]
    at_once: u32,
    /// How often in a turn.
    #[arg(long, value_name = "N", default_value_t = LOAD.times,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    times: u32,
    /// Print the figures and write nothing.
    #[arg(long)]
    print: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Other {
    /// Have perftest measure the software device beside rdma_rxe, and write the figures into docs/performance.md.
    Perftest(perftest::Arguments),
}

pub(crate) fn write(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(Other::Perftest(arguments)) = &arguments.other {
        return perftest::write(arguments);
    }
    let workspace = Workspace::here()?;
    let packages = ["--package", "portolan-cli-examples", "--bin", CMTIME];
    let command = install::build(&workspace, &packages)?.join(CMTIME);
    let load = Load {
        at_once: arguments.at_once,
        times: arguments.times,
    };
    let figures = measure(&command, load, arguments.rounds)?;
    let text = figures.markdown();
    println!("{text}");
    if !arguments.print {
        document(&workspace, MARKS, &text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The short form, held against its bounds.
pub(crate) fn test(workspace: &Workspace) -> Result<Outcome> {
    if !workspace.is_root {
        let why = "it boots a kernel machine whose packages root installs";
        return Ok(Outcome::LeftOut(why.into()));
    }
    let figures = match measure(
        &workspace.target.join("release").join(CMTIME),
        LOAD_IN_TESTS,
        1,
    ) {
        Ok(figures) => figures,
        Err(error) => match error.downcast_ref::<MachineError>() {
            Some(MachineError::Unavailable(why)) => return Ok(Outcome::LeftOut(why.to_string())),
            _ => return Err(error),
        },
    };
    println!("{}", figures.markdown());
    let ratios = BOUNDS.map(|(subject, most)| {
        let (name, ratio) = (subject.name(), figures.ratio(subject));
        let text = format!("{name}: {ratio:.2} of librdmacm's, at most {most}");
        (text, ratio <= most)
    });
    for (text, holds) in &ratios {
        ensure!(holds, "{text}");
    }
    Ok(Outcome::Passed(ratios.map(|(text, _)| text).join("; ")))
}

fn measure(cmtime: &Path, load: Load, rounds: u32) -> Result<Figures> {
    let cache = Cache::locate()?;
    let (report, figures) = judge::figures(&cache, Suite::Bookworm, cmtime, load, rounds)?;
    println!("{report}");
    ensure!(report.passed(), "what failed is above");
    figures.context("a round is missing")
}

/// Writes figures into the document.
fn document(workspace: &Workspace, marks: Marks, text: &str) -> Result<()> {
    let path = workspace.root.join(DOCUMENT);
    let document = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let written = with_section(&document, marks, text)?;
    std::fs::write(&path, written).with_context(|| format!("cannot write {}", path.display()))
}

/// The document with this between the marks, each of which occurs once.
fn with_section(document: &str, marks: Marks, text: &str) -> Result<String> {
    let Marks { begin, end } = marks;
    let parts = document.split_once(begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(end)?;
        Some((before, after))
    });
    let (before, after) = parts.with_context(|| format!("{DOCUMENT} lacks {begin}"))?;
    Ok(format!("{before}{begin}\n{text}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_is_written_anew() {
        let Marks { begin, end } = MARKS;
        let document = format!("above\n{begin}old\n{end}below\n");
        let written = with_section(&document, MARKS, "new\n").unwrap();
        assert_eq!(written, format!("above\n{begin}\nnew\n\n{end}below\n"));
        assert_eq!(with_section(&written, MARKS, "new\n").unwrap(), written);
        assert!(with_section("no marks", MARKS, "new").is_err());
        assert!(with_section(&format!("{end}{begin}"), MARKS, "new").is_err());
    }

    #[test]
    fn the_document_has_the_marks() {
        let workspace = Workspace::here().unwrap();
        let document = std::fs::read_to_string(workspace.root.join(DOCUMENT)).unwrap();
        for marks in [MARKS, perftest::MARKS] {
            with_section(&document, marks, "").unwrap();
        }
    }
}

//! Measures connections compared with librdmacm over rdma_rxe, and writes the figures into the documentation.
//! The submodules do the same for perftest, and for streams and socket programs beside TCP.

mod perftest;
mod sockets;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use portolan_lab::judge::{self, Figures, Load, Subject};
use portolan_lab::machine::{Cache, MachineError, Suite};

use crate::install;
use crate::test::{Outcome, Workspace};

/// A thousand connections per turn. At most as many at a time as fit into the 512 receives that Linux posts to
/// queue pair 1: a lost request is repeated only after 4.3 seconds, which would hide the cost of the library.
const LOAD: Load = Load {
    at_once: 200,
    times: 5,
};
/// The load in the tests: enough to show a step that got slower, and few enough for some seconds.
const LOAD_IN_TESTS: Load = Load {
    at_once: 100,
    times: 1,
};
/// Bounds in the tests for the ratio of all steps to librdmacm's. The promise is 1.0 for both. Rounds differ by
/// up to 0.02, however busy the host is. A round of only a hundred connections includes the program's start:
/// the release build of the kernel provider then takes 0.99 to 1.01.
const BOUNDS: [(Subject, f64); 2] = [
    (Subject::KernelProvider, 1.03),
    (Subject::SoftwareDevice, 1.0),
];
/// The document, below the workspace's root. The figures are between the marks.
const DOCUMENT: &str = "docs/performance.md";
/// Our cmtime.
const CMTIME: &str = "portolan-cmtime";
const MARKS: Marks = Marks {
    begin: "<!-- begin: `cargo xtask figures` writes this -->\n",
    end: "<!-- end: `cargo xtask figures` -->\n",
};

/// The marks around figures in the document.
#[derive(Clone, Copy)]
struct Marks {
    begin: &'static str,
    end: &'static str,
}

/// Measures connections compared with librdmacm in a kernel machine, and writes docs/performance.md.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    other: Option<Other>,
    /// Number of rounds, in which librdmacm, the kernel provider and the software device take turns.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Simultaneous connections.
    #[arg(long, value_name = "N", default_value_t = LOAD.at_once,
          value_parser = clap::value_parser!(u32).range(1..=5000))]
    at_once: u32,
    /// Repetitions per turn.
    #[arg(long, value_name = "N", default_value_t = LOAD.times,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    times: u32,
    /// Only print the figures.
    #[arg(long)]
    print: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Other {
    /// Measures perftest on the software device and on rdma_rxe, and writes docs/performance.md.
    Perftest(perftest::Arguments),
    /// Measures streams and socket programs by turns with TCP, and writes docs/performance.md.
    Sockets(sockets::Arguments),
}

pub(crate) fn write(arguments: &Arguments) -> Result<ExitCode> {
    match &arguments.other {
        Some(Other::Perftest(arguments)) => return perftest::write(arguments),
        Some(Other::Sockets(arguments)) => return sockets::write(arguments),
        None => {}
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

/// The short measurement, checked against the bounds.
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
        let text = format!("{name}: {ratio:.2} of librdmacm's, limit {most}");
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
    ensure!(report.passed(), "the measurement failed, see above");
    figures.context("a round has no figures")
}

/// Writes figures into the document.
fn document(workspace: &Workspace, marks: Marks, text: &str) -> Result<()> {
    let path = workspace.root.join(DOCUMENT);
    let document = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    let written = with_section(&document, marks, text)?;
    std::fs::write(&path, written).with_context(|| format!("cannot write {}", path.display()))
}

/// Replaces the text between the marks, each of which must occur once.
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
    fn only_the_text_between_the_marks_is_replaced() {
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
        for marks in [MARKS, perftest::MARKS, sockets::MARKS] {
            with_section(&document, marks, "").unwrap();
        }
    }
}

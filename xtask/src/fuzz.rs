//! `cargo xtask fuzz`: the fuzz targets in `fuzz/`, built with libFuzzer and its coverage counters.
//!
//! The instrumentation is cargo-fuzz's without a sanitizer, so that the project's own toolchain suffices: the
//! fuzzed crates have no unsafe code. The targets detect panics, overflows, broken promises, hangs and growth.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use pcap_file::pcap::PcapReader;
use portolan_lab::machine::{MachineError, Package, ensure_installed};

use crate::parallel::side_by_side;
use crate::test::{Outcome, Workspace, cargo};

/// The targets. Each parses data of a peer or a file, or performs operations in any order.
const TARGETS: [&str; 9] = [
    "packets",
    "cm_messages",
    "cm_operations",
    "queue_pairs",
    "hints",
    "address_texts",
    "rsocket_messages",
    "rsocket_datagrams",
    "sa_answers",
];
/// Seconds per target when run by the tests.
const TEST_SECONDS: u32 = 10;
/// Usual time limit for a single input, in seconds of wall-clock time.
const INPUT_SECONDS_MAX: u32 = 5;
/// Length of an Ethernet header, in bytes.
const ETHERNET_LEN: usize = 14;
/// libFuzzer is written in C++.
const PACKAGES: [Package; 1] = [Package {
    name: "g++",
    purpose: "libFuzzer",
}];
const INSTRUMENTATION: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cdebug-assertions -Coverflow-checks --cfg fuzzing";

/// Arguments of `fuzz`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Only this target.
    target: Option<String>,
    /// Seconds per target.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Time limit for a single input, in seconds; more on a machine with other work.
    #[arg(long, default_value_t = INPUT_SECONDS_MAX)]
    input_seconds: u32,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let wanted = |target: &&&str| {
        arguments
            .target
            .as_ref()
            .is_none_or(|wanted| wanted == **target)
    };
    let targets: Vec<&str> = TARGETS.iter().filter(wanted).copied().collect();
    ensure!(
        !targets.is_empty(),
        "no such target; the targets are {}",
        TARGETS.join(", ")
    );
    let limits = (arguments.seconds, arguments.input_seconds);
    fuzz(&Workspace::here()?, &targets, limits)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs each target for a short time, as a part of the tests.
pub(crate) fn test(workspace: &Workspace) -> Result<Outcome> {
    match ensure_installed(&PACKAGES) {
        Ok(()) => {}
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        Err(error) => return Err(error.into()),
    }
    let runs = fuzz(workspace, &TARGETS, (TEST_SECONDS, INPUT_SECONDS_MAX))?;
    Ok(Outcome::Passed(format!("{runs} inputs")))
}

/// Builds and runs targets, each for the first of `limits` in seconds and an input for at most the second. Returns the
/// number of inputs.
fn fuzz(workspace: &Workspace, targets: &[&str], limits: (u32, u32)) -> Result<u64> {
    let folder = workspace.target.join("fuzz");
    let triple = host_triple()?;
    build(workspace, &folder, &triple)?;
    let seeds = golden_seeds(workspace, &folder)?;
    let fuzz_one = |target: &str| {
        let program = folder.join(&triple).join("release").join(target);
        let corpus = folder.join("corpus").join(target);
        std::fs::create_dir_all(&corpus)?;
        let seeds = (target == "packets").then_some(seeds.as_path());
        run_target(&program, &corpus, seeds, limits).with_context(|| format!("target {target}"))
    };
    side_by_side(targets, |target| fuzz_one(target))
        .into_iter()
        .sum()
}

fn build(workspace: &Workspace, folder: &Path, triple: &str) -> Result<()> {
    // With an explicit target triple, even the host's, build scripts and procedural macros do not get the
    // flags.
    let status = Command::new(cargo())
        .args(["build", "--quiet", "--release", "--manifest-path"])
        .arg(workspace.root.join("fuzz/Cargo.toml"))
        .arg("--locked")
        .args(["--target", triple])
        .env("CARGO_TARGET_DIR", folder)
        .env("RUSTFLAGS", INSTRUMENTATION)
        .status()?;
    ensure!(status.success(), "building the fuzz targets: {status}");
    Ok(())
}

fn host_triple() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output()?;
    let text = String::from_utf8(output.stdout)?;
    text.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .context("rustc names its host")
}

/// The IP packets of the golden capture as inputs of `packets`.
fn golden_seeds(workspace: &Workspace, folder: &Path) -> Result<PathBuf> {
    let seeds = folder.join("seeds");
    std::fs::create_dir_all(&seeds)?;
    let capture = workspace
        .root
        .join("crates/wire/tests/golden/rxe-linux-6.1.pcap");
    let mut reader = PcapReader::new(std::fs::File::open(capture)?)?;
    let mut number = 0;
    while let Some(packet) = reader.next_packet() {
        let frame = packet?.data;
        let packet = frame.get(ETHERNET_LEN..).unwrap_or_default();
        std::fs::write(seeds.join(format!("packet-{number}")), packet)?;
        number += 1;
    }
    Ok(seeds)
}

fn run_target(
    program: &Path,
    corpus: &Path,
    seeds: Option<&Path>,
    (seconds, input_seconds): (u32, u32),
) -> Result<u64> {
    let findings = corpus.with_extension("findings");
    std::fs::create_dir_all(&findings)?;
    let output = Command::new(program)
        .arg(corpus)
        .args(seeds)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={input_seconds}"))
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .args(["-print_final_stats=1", "-max_len=4096"])
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let tail: Vec<&str> = text.lines().rev().take(60).collect();
        tail.iter().rev().for_each(|line| eprintln!("{line}"));
        bail!(
            "ended with {}; the input is in {}",
            output.status,
            findings.display()
        );
    }
    let runs = text
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .and_then(|count| count.trim().parse().ok())
        .context("libFuzzer prints the number of inputs")?;
    let name = program.file_name().unwrap_or_default().display();
    let coverage = Coverage::read(&text).context("libFuzzer prints its coverage")?;
    println!("{name:<17} {runs:>11} inputs in {seconds} s, nothing found; {coverage}");
    ensure!(runs > 1000, "too few inputs");
    Ok(runs)
}

/// How many edges of the program a run had reached after how many inputs.
#[derive(Debug, PartialEq)]
struct Coverage {
    /// Inputs and edges, at each report of libFuzzer.
    points: Vec<(u64, u64)>,
}

impl Coverage {
    /// Reads the report lines, such as `#4096 NEW cov: 310 ft: 512 corp: 20/1Kb ...`.
    fn read(report: &str) -> Option<Self> {
        let point = |line: &str| {
            let mut words = line.split_whitespace();
            let inputs = words.next()?.strip_prefix('#')?.parse().ok()?;
            let edges = words.skip_while(|word| *word != "cov:").nth(1)?;
            Some((inputs, edges.parse().ok()?))
        };
        let points: Vec<(u64, u64)> = report.lines().filter_map(point).collect();
        (!points.is_empty()).then_some(Self { points })
    }
}

/// The edges at the end, the input that reached the last of them, and a plot: one column for each doubling of
/// the inputs.
impl fmt::Display for Coverage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let (inputs, edges) = self.points.last().copied().unwrap_or_default();
        let last_new = self.points.iter().find(|(_, reached)| *reached == edges);
        let last_new = last_new.map_or(0, |(inputs, _)| *inputs);
        write!(formatter, "{edges} edges, the last after {last_new} ")?;
        for doubling in 0..=inputs.max(1).ilog2() {
            let until = |(inputs, _): &&(u64, u64)| *inputs < 2 << doubling;
            let reached = self
                .points
                .iter()
                .rfind(until)
                .map_or(0, |(_, edges)| *edges);
            let level = reached * (LEVELS.len() as u64 - 1) / edges.max(1);
            write!(formatter, "{}", LEVELS[level as usize])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Coverage;

    #[test]
    fn coverage_is_plotted_from_libfuzzers_report() {
        let report = "INFO: seed corpus: files: 6\n\
            #7\tINITED cov: 10 ft: 11 corp: 1/1b exec/s: 0 rss: 30Mb\n\
            #20\tNEW    cov: 35 ft: 40 corp: 2/8b\n\
            #64\tpulse  cov: 70 ft: 80 corp: 3/9b\n\
            #128\tDONE   cov: 70 ft: 81 corp: 3/9b\n";
        let coverage = Coverage::read(report).expect("there are four points");
        assert_eq!(coverage.points, [(7, 10), (20, 35), (64, 70), (128, 70)]);
        assert_eq!(coverage.to_string(), "70 edges, the last after 64 ▁▁▂▂▄▄██");
        assert_eq!(Coverage::read("no report"), None);
    }
}

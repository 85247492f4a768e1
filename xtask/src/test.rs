//! `cargo xtask test`: everything that judges the project, part by part, with the time of each.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use portolan_lab::judge;
use portolan_lab::machine::{Cache, MachineError};

use crate::fuzz;
use crate::lanes::side_by_side;

/// Arguments of `test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run only the parts whose names contain this.
    #[arg(long)]
    only: Option<String>,
    /// List the parts and stop.
    #[arg(long)]
    list: bool,
}

/// A part of the tests.
struct Part {
    name: &'static str,
    what: &'static str,
    run: fn(&Workspace) -> Result<Outcome>,
}

/// How a part ended without failing.
pub(crate) enum Outcome {
    Passed(String),
    /// It cannot run here: why. With `CI=true` this is a failure.
    LeftOut(String),
}

/// Where things are.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// Where builds go.
    pub(crate) target: PathBuf,
    /// The release build of the command.
    pub(crate) portolan: PathBuf,
    pub(crate) is_root: bool,
}

const PARTS: &[Part] = &[
    Part {
        name: "format",
        what: "sources are formatted",
        run: format,
    },
    Part {
        name: "lints",
        what: "clippy finds nothing, in every crate and test",
        run: lints,
    },
    Part {
        name: "documentation",
        what: "rustdoc builds without a warning",
        run: documentation,
    },
    Part {
        name: "promises",
        what: "each promise of the man pages has a test",
        run: crate::promises::run,
    },
    Part {
        name: "tests",
        what: "unit, property and integration tests",
        run: tests,
    },
    Part {
        name: "build",
        what: "the command, optimized",
        run: build,
    },
    Part {
        name: "demo",
        what: "the demo as an ordinary user, in under 5 s",
        run: crate::demo::run,
    },
    Part {
        name: "pairs",
        what: "three pairs of listen and ping in six processes at once",
        run: crate::pairs::run,
    },
    Part {
        name: "survivors",
        what: "of three pairs one process is killed, the port's holder too; the others lose no ping",
        run: crate::survivors::run,
    },
    Part {
        name: "crowd",
        what: "64 processes for a minute, killed at random and replaced, leave nothing behind",
        run: crate::crowd::run,
    },
    Part {
        name: "resolve",
        what: "names in a namespace with a name server; a thousand at once, under valgrind too",
        run: crate::resolve::run,
    },
    Part {
        name: "captures",
        what: "tshark and a CRC of its own read our captures",
        run: crate::dissect::run,
    },
    Part {
        name: "floors",
        what: "latency, connects, bandwidth and resolution beside plain sockets and libc",
        run: crate::floors::run,
    },
    Part {
        name: "simulator",
        what: "10,000 seeds; the planted defects are a test of the part `tests`",
        run: simulator,
    },
    Part {
        name: "fuzz",
        what: "the fuzz targets, for some seconds each",
        run: fuzz::test,
    },
    Part {
        name: "netem",
        what: "pings and 64 MiB by RDMA write through 5 % loss and reordering",
        run: crate::netem::run,
    },
    Part {
        name: "kernel",
        what: "rping, udaddy and mckey on Linux's rdma_rxe against ours",
        run: kernel,
    },
    Part {
        name: "kernel-provider",
        what: "the conformance suite over Linux's rdma_rxe instead of our device",
        run: crate::kernel_provider::run,
    },
];

/// The parts that run what the part `build` makes.
const WITH_THE_COMMAND: &[&str] = &[
    "demo",
    "pairs",
    "survivors",
    "crowd",
    "captures",
    "floors",
    "netem",
    "kernel",
];

/// The parts that run last and side by side: each is a machine of one processor in which nothing is held
/// against the clock.
const IN_MACHINES: &[&str] = &["kernel", "kernel-provider"];

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    let asked_for = |name: &str| {
        arguments
            .only
            .as_ref()
            .is_none_or(|only| name.contains(only.as_str()))
    };
    // What was built before some change is not to be judged.
    let builds = WITH_THE_COMMAND.iter().any(|name| asked_for(name));
    let wanted = |part: &&Part| asked_for(part.name) || (part.name == "build" && builds);
    let parts: Vec<&Part> = PARTS.iter().filter(wanted).collect();
    if parts.is_empty() {
        bail!("no part has this in its name; --list shows them");
    }
    if arguments.list {
        parts
            .iter()
            .for_each(|part| println!("{:<14} {}", part.name, part.what));
        return Ok(ExitCode::SUCCESS);
    }
    let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    let started = Instant::now();
    let announced = |(at, part): &(usize, &Part)| {
        let (number, of) = (at + 1, parts.len());
        println!("\n==> [{number}/{of}] {}: {}", part.name, part.what);
        Report::of(part, &workspace, ci)
    };
    let (in_machines, alone): (Vec<_>, Vec<_>) = parts
        .iter()
        .copied()
        .enumerate()
        .partition(|(_, part)| IN_MACHINES.contains(&part.name));
    let mut reports: Vec<Report> = alone.iter().map(announced).collect();
    reports.extend(side_by_side(&in_machines, announced));
    Ok(summarize(&reports, started.elapsed()))
}

/// What became of a part.
struct Report {
    name: &'static str,
    took: Duration,
    verdict: Verdict,
}

enum Verdict {
    Passed(String),
    LeftOut(String),
    Failed(String),
}

impl Report {
    fn of(part: &Part, workspace: &Workspace, ci: bool) -> Self {
        let started = Instant::now();
        let verdict = match (part.run)(workspace) {
            Ok(Outcome::Passed(what)) => Verdict::Passed(what),
            Ok(Outcome::LeftOut(why)) if ci => {
                Verdict::Failed(format!("cannot run, and CI=true: {why}"))
            }
            Ok(Outcome::LeftOut(why)) => Verdict::LeftOut(why),
            Err(error) => Verdict::Failed(format!("{error:#}")),
        };
        Self {
            name: part.name,
            took: started.elapsed(),
            verdict,
        }
    }
}

fn summarize(reports: &[Report], took: Duration) -> ExitCode {
    println!("\n{:<14} {:>8}  result", "part", "time");
    let (mut passed, mut failed, mut left_out) = (0, 0, 0);
    for report in reports {
        let (count, word, note) = match &report.verdict {
            Verdict::Passed(note) => (&mut passed, "passed", note),
            Verdict::LeftOut(note) => (&mut left_out, "LEFT OUT", note),
            Verdict::Failed(note) => (&mut failed, "FAILED", note),
        };
        *count += 1;
        let separator = if note.is_empty() { "" } else { ": " };
        let seconds = report.took.as_secs_f64();
        println!(
            "{:<14} {seconds:>7.1}s  {word}{separator}{note}",
            report.name
        );
    }
    println!("{:<14} {:>7.1}s", "total", took.as_secs_f64());
    println!("\nparts: {passed} passed, {failed} failed, {left_out} skipped");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

impl Workspace {
    pub(crate) fn here() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = manifest
            .parent()
            .context("xtask lies in the workspace")?
            .to_owned();
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let portolan = target.join("release").join("portolan");
        Ok(Self {
            root,
            target,
            portolan,
            is_root: rustix::process::geteuid().is_root(),
        })
    }

    /// Runs a program in the workspace; its output goes to ours.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let status = Command::new(program)
            .args(arguments)
            .current_dir(&self.root)
            .status()
            .with_context(|| format!("cannot start {program}"))?;
        if !status.success() {
            bail!("`{program} {}` ended with {status}", arguments.join(" "));
        }
        Ok(())
    }

    fn cargo(&self, arguments: &[&str]) -> Result<()> {
        self.run(&cargo(), arguments)
    }
}

/// The cargo that runs this.
pub(crate) fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

fn format(workspace: &Workspace) -> Result<Outcome> {
    workspace.cargo(&["fmt", "--all", "--check"])?;
    // A workspace of its own.
    workspace.cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])?;
    Ok(Outcome::Passed(String::new()))
}

fn lints(workspace: &Workspace) -> Result<Outcome> {
    workspace.cargo(&[
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ])?;
    Ok(Outcome::Passed(String::new()))
}

fn documentation(workspace: &Workspace) -> Result<Outcome> {
    let status = Command::new(cargo())
        .args([
            "doc",
            "--quiet",
            "--workspace",
            "--no-deps",
            "--all-features",
        ])
        .env("RUSTDOCFLAGS", "-D warnings")
        .current_dir(&workspace.root)
        .status()?;
    if !status.success() {
        bail!("rustdoc ended with {status}");
    }
    Ok(Outcome::Passed(String::new()))
}

/// Every test target; those that need root, named `root_…`, only as root.
fn tests(workspace: &Workspace) -> Result<Outcome> {
    let all = [
        "test",
        "--quiet",
        "--workspace",
        "--all-features",
        "--no-fail-fast",
    ];
    if workspace.is_root {
        crate::resolve::install()?;
        workspace.cargo(&all)?;
        return Ok(Outcome::Passed(String::new()));
    }
    let (for_root, others) = test_targets(workspace)?;
    let mut arguments = all.to_vec();
    // Named targets alone do not have the examples built that tests run.
    workspace.cargo(&[
        "build",
        "--quiet",
        "--workspace",
        "--all-features",
        "--examples",
    ])?;
    arguments.extend(["--lib", "--bins"]);
    arguments.extend(others.iter().flat_map(|target| ["--test", target]));
    workspace.cargo(&arguments)?;
    workspace.cargo(&[&all[..], &["--doc"]].concat())?;
    Ok(Outcome::Passed(format!(
        "left out, for they need root: {}",
        for_root.join(", ")
    )))
}

/// The integration tests of the workspace: those that need root, and the others.
fn test_targets(workspace: &Workspace) -> Result<(Vec<String>, Vec<String>)> {
    let output = Command::new(cargo())
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(&workspace.root)
        .output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata has packages")?;
    let targets = packages
        .iter()
        .filter_map(|package| package["targets"].as_array())
        .flatten();
    let is_test = |target: &&serde_json::Value| target["kind"][0] == "test";
    let mut names: Vec<String> = targets
        .filter(is_test)
        .filter_map(|target| target["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    names.dedup();
    Ok(names
        .into_iter()
        .partition(|name| name.starts_with("root_")))
}

fn build(workspace: &Workspace) -> Result<Outcome> {
    workspace.cargo(&["build", "--quiet", "--release", "--package", "portolan-cli"])?;
    Ok(Outcome::Passed(String::new()))
}

fn simulator(workspace: &Workspace) -> Result<Outcome> {
    workspace.cargo(&[
        "run",
        "--quiet",
        "--release",
        "--package",
        "xtask",
        "--",
        "simulate",
        "--seeds",
        "10000",
    ])?;
    Ok(Outcome::Passed("10000 seeds".into()))
}

fn kernel(workspace: &Workspace) -> Result<Outcome> {
    let cache = Cache::locate()?;
    match judge::linux_interop(&cache, &workspace.portolan) {
        Ok(report) => {
            println!("{report}");
            anyhow::ensure!(report.passed(), "the kernel's judgement is above");
            Ok(Outcome::Passed(String::new()))
        }
        Err(MachineError::Unavailable(unavailable)) => {
            Ok(Outcome::LeftOut(unavailable.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

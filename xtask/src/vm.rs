//! `cargo xtask vm`: boot a kernel machine with rdma_rxe, and run a script or a shell in it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use portolan_lab::machine::{Cache, Job, Machine, Step, Suite};

/// Boot a kernel machine with rdma_rxe and run a script in it.
///
/// The script runs as root under `sh -eu`. Its output appears here, and its exit status is this command's.
/// Without a script it opens a shell on this terminal (`exit` ends the machine). The machine has busybox's
/// tools, iproute2, tcpdump, and the programs of rdmacm-utils and ibverbs-utils.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Script to run in the machine.
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Program of this host to put into the machine's PATH, with its libraries; repeatable.
    #[arg(long = "program", value_name = "PATH")]
    programs: Vec<PathBuf>,
    /// Debian release of the kernel: bookworm (Linux 6.1) or trixie-backports (Linux 7).
    #[arg(long, value_parser = suite, default_value = Suite::Bookworm.codename())]
    debian: Suite,
    /// Reduce the effect of operations that are far slower under emulation, as in `figures perftest`.
    #[arg(long)]
    measuring: bool,
    /// Also load the kernel's iWARP driver, siw, and build it if necessary.
    #[arg(long)]
    siw: bool,
    /// Let the script mount this host's files: `mount -t 9p -o trans=virtio,version=9p2000.L,ro host /host`.
    #[arg(long, conflicts_with = "siw")]
    host_files: bool,
    /// Copy what the script leaves in the machine's $RESULTS folder to this one.
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// Stop the machine after this many seconds, boot included.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    deadline_s: u64,
}

fn suite(codename: &str) -> Result<Suite, String> {
    [Suite::Bookworm, Suite::TrixieBackports]
        .into_iter()
        .find(|suite| suite.codename() == codename)
        .ok_or_else(|| "unknown Debian release".to_owned())
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut job = Job::new().deadline(Duration::from_secs(arguments.deadline_s));
    if arguments.measuring {
        job = job.measuring();
    }
    for program in &arguments.programs {
        let name = program
            .file_name()
            .with_context(|| format!("{} has no name", program.display()))?;
        job = job.program(name.to_string_lossy(), program);
    }
    job = match &arguments.script {
        Some(path) => {
            let script = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the script {}", path.display()))?;
            let name = path.display().to_string();
            job.step(Step::new(name, script).limit(Duration::from_secs(arguments.deadline_s)))
        }
        None => job.interactive(),
    };

    let prepare = match (arguments.siw, arguments.host_files) {
        (true, _) => Machine::prepare_with_siw,
        (false, true) => Machine::prepare_with_host_files,
        (false, false) => Machine::prepare,
    };
    let machine = prepare(&Cache::locate()?, arguments.debian)?;
    eprintln!("booting Linux {} under emulation", machine.kernel_release());
    let mut outcome = machine.run(&job, &mut std::io::stdout())?;
    eprintln!("{outcome}");
    if let Some(folder) = &arguments.results {
        if folder.exists() {
            bail!(
                "{} exists already; the results stay in {}",
                folder.display(),
                outcome.keep().display()
            );
        }
        let status = std::process::Command::new("cp")
            .arg("--recursive")
            .args([&outcome.files(), folder])
            .status()
            .context("cannot run cp")?;
        if !status.success() {
            bail!(
                "cannot copy the results; they stay in {}",
                outcome.keep().display()
            );
        }
    }
    Ok(ExitCode::from(
        u8::try_from(outcome.status).unwrap_or(u8::MAX),
    ))
}

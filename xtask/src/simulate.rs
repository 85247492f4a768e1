//! `cargo xtask simulate`: whole engines on a virtual clock; one seed, one run.

use std::num::NonZero;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use portolan_lab::simulator::{self, Campaign, Failure, News, Summary};

/// Arguments of `simulate`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Run this one seed.
    #[arg(long, conflicts_with_all = ["seeds", "mutants"])]
    seed: Option<u64>,
    /// With --seed: print the whole trace, even if the run passes.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Run this many seeds, on all cores.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long, default_value_t = 0, requires = "seeds")]
    start: u64,
    /// Number of threads; one per core by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Print how often each event happened in all runs.
    #[arg(long)]
    tally: bool,
    /// Plant each known defect in the engines and search for it.
    #[arg(long)]
    mutants: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(seed) = arguments.seed {
        return Ok(one(seed, arguments.trace));
    }
    if arguments.seeds.is_none() && !arguments.mutants {
        bail!("nothing to do: give --seed S, --seeds N or --mutants");
    }
    let threads = arguments
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, NonZero::get));
    let mut passed = true;
    if let Some(count) = arguments.seeds {
        passed &= many(
            Campaign {
                start: arguments.start,
                count,
                threads,
            },
            arguments.tally,
        );
    }
    if arguments.mutants {
        passed &= mutants(threads);
    }
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn one(seed: u64, trace: bool) -> ExitCode {
    let result = if trace {
        let (result, lines) = simulator::trace_seed(seed);
        lines.iter().for_each(|line| println!("{line}"));
        // The whole trace has been printed.
        result.map_err(|failure| {
            Box::new(Failure {
                trace: Vec::new(),
                ..*failure
            })
        })
    } else {
        simulator::run_seed(seed)
    };
    match result {
        Ok(report) => {
            println!(
                "seed {seed}: {:?}, passed, {:.3} s of simulated time, digest {:016x}",
                report.class,
                report.lasted.as_secs_f64(),
                report.digest
            );
            report
                .tally
                .iter()
                .for_each(|(what, count)| println!("{count:>9}  {what}"));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn many(campaign: Campaign, tally: bool) -> bool {
    let summary = simulator::run_many(campaign, |news| match news {
        News::Failed(failure) => println!("{failure}\n"),
        News::SoFar(summary) => println!("{}", line(summary)),
    });
    if tally {
        summary
            .tally
            .iter()
            .for_each(|(what, count)| println!("{count:>12}  {what}"));
    }
    println!("{}", line(&summary));
    summary.failures.is_empty() && summary.passed() == campaign.count
}

fn line(summary: &Summary) -> String {
    let seconds = summary.elapsed.max(Duration::from_millis(1)).as_secs_f64();
    format!(
        "{} runs, {} failed, {:.0} runs/s, {:.0} h simulated in {seconds:.1} s",
        summary.passed(),
        summary.failures.len(),
        summary.passed() as f64 / seconds,
        summary.simulated.as_secs_f64() / 3600.0
    )
}

/// Plants every defect. Returns whether all were found.
fn mutants(threads: usize) -> bool {
    let hunts = simulator::check_mutants(threads);
    for hunt in &hunts {
        match &hunt.caught {
            Some(failure) => println!(
                "{:<44} found after {:>4} seeds: {}",
                format!("{:?}", hunt.mutant),
                hunt.seeds,
                failure.violation
            ),
            None => println!("{:?} NOT FOUND in {} seeds", hunt.mutant, hunt.seeds),
        }
    }
    let found = hunts.iter().filter(|hunt| hunt.caught.is_some()).count();
    println!("{found} of {} planted defects found", hunts.len());
    found == hunts.len()
}

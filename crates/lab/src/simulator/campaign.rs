//! Many runs, on all cores.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::failure::Failure;
use super::plan::Class;
use super::report::Report;
use super::run::run_seed;

/// Failures after which a campaign stops.
const FAILURES_MAX: usize = 5;

/// How often progress is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Which seeds to run, and how.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// The first seed.
    pub start: u64,
    /// How many.
    pub count: u64,
    /// Threads; each runs one seed at a time.
    pub threads: usize,
}

/// The result of a campaign.
#[derive(Debug, Default)]
pub struct Summary {
    /// Runs that passed, by class.
    pub runs: BTreeMap<Class, u64>,
    /// Events of all runs: name and count.
    pub tally: BTreeMap<&'static str, u64>,
    /// Failed runs, by seed. The campaign stops after a few.
    pub failures: Vec<Failure>,
    /// Simulated time of all runs.
    pub simulated: Duration,
    /// Wall-clock time of the campaign.
    pub elapsed: Duration,
}

impl Summary {
    /// Runs that passed.
    pub fn passed(&self) -> u64 {
        self.runs.values().sum()
    }

    fn add(&mut self, result: Result<Report, Box<Failure>>) {
        match result {
            Ok(report) => {
                *self.runs.entry(report.class).or_default() += 1;
                self.simulated += report.lasted;
                for (what, count) in report.tally {
                    *self.tally.entry(what).or_default() += count;
                }
            }
            Err(failure) => self.failures.push(*failure),
        }
    }
}

/// Progress of a running campaign.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    /// A run failed.
    Failed(&'a Failure),
    /// The results so far. Reported every few seconds.
    SoFar(&'a Summary),
}

/// Runs the seeds and passes progress to `tell`.
pub fn run_many(campaign: Campaign, tell: impl Fn(News<'_>) + Sync) -> Summary {
    let (next, started) = (AtomicU64::new(0), Instant::now());
    let state = Mutex::new((Summary::default(), started));
    std::thread::scope(|scope| {
        for _ in 0..campaign.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= campaign.count {
                        return;
                    }
                    let result = run_seed(campaign.start.wrapping_add(at));
                    let mut state = state.lock().unwrap_or_else(|error| error.into_inner());
                    let (summary, told) = &mut *state;
                    if let Err(failure) = &result {
                        tell(News::Failed(failure));
                    }
                    summary.add(result);
                    summary.elapsed = started.elapsed();
                    if told.elapsed() >= PROGRESS_INTERVAL {
                        *told = Instant::now();
                        tell(News::SoFar(summary));
                    }
                    if summary.failures.len() >= FAILURES_MAX {
                        next.store(campaign.count, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (mut summary, _) = state
        .into_inner()
        .unwrap_or_else(|error| error.into_inner());
    summary.failures.sort_by_key(|failure| failure.seed);
    summary.elapsed = started.elapsed();
    summary
}

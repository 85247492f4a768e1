//! One run.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::exchange::Exchange;
use super::failure::{Failure, Violation};
use super::flood::Flood;
use super::one_host::OneHost;
use super::plan::Class;
use super::report::{Report, Tally};
use super::rng::Rng;
use super::streams::Streams;
use super::trace::Trace;
use super::world::World;

/// Trace lines shown for a failed run.
pub const TRACE_LINES: usize = 200;

/// XORed into the seed for the exchange's generator.
const EXCHANGE: u64 = 0x4558_4348_414e_4745;
/// One seed of so many has a flood, which takes as long as everything else of a seed.
const SEEDS_PER_FLOOD: u64 = 4;
/// XORed into the seed for the flood's generator.
const FLOOD: u64 = 0x0046_4c4f_4f44_0000;
/// XORed into the seed for the generator of two processes of one host.
const ONE_HOST: u64 = 0x004f_4e45_484f_5354;
/// XORed into the seed for the streams' generator.
const STREAMS: u64 = 0x5354_5245_414d_5300;

/// Runs a seed.
///
/// # Errors
/// [`Failure`] if an invariant was violated or an engine panicked. It has the last [`TRACE_LINES`]
/// trace lines.
pub fn run_seed(seed: u64) -> Result<Report, Box<Failure>> {
    let (result, _) = run(seed, 0);
    match result {
        Ok(report) => Ok(report),
        Err(failure) => match run(seed, TRACE_LINES).0 {
            Err(traced) if traced.violation == failure.violation => Err(traced),
            // A run that differs when repeated with the same seed is a failure of its own.
            other => {
                let again = match &other {
                    Ok(_) => "nothing".to_owned(),
                    Err(other) => other.violation.to_string(),
                };
                let first = &failure.violation;
                let violation = Violation(format!(
                    "run twice, it first violated {first}, then {again}"
                ));
                Err(Box::new(Failure {
                    violation,
                    ..*failure
                }))
            }
        },
    }
}

/// Runs a seed and returns all trace lines, whether it failed or not.
pub fn trace_seed(seed: u64) -> (Result<Report, Box<Failure>>, Vec<String>) {
    run(seed, usize::MAX)
}

fn run(seed: u64, trace_lines: usize) -> (Result<Report, Box<Failure>>, Vec<String>) {
    let trace = Trace::new(trace_lines);
    let mut world = World::new(seed, trace.clone());
    let ended = catch_unwind(AssertUnwindSafe(|| {
        world.run()?;
        // A separate generator, so that changes in one part do not affect the other.
        let mut rng = Rng::new(seed ^ EXCHANGE);
        Exchange::new(&mut rng, world.plan.class, trace.clone())?.run(&mut world.tally)?;
        if seed.is_multiple_of(SEEDS_PER_FLOOD) {
            let mut rng = Rng::new(seed ^ FLOOD);
            Flood::new(&mut rng, world.plan.class).run(&mut world.tally)?;
        }
        let mut rng = Rng::new(seed ^ ONE_HOST);
        OneHost::new(&mut rng)?.run(&mut world.tally)?;
        run_streams(seed, world.plan.class, &trace, &mut world.tally)
    }));
    let violation = match ended {
        Ok(Ok(())) => {
            let report = Report {
                seed,
                class: world.plan.class,
                lasted: world.now,
                digest: world.tally.digest,
                tally: world.tally.counts,
            };
            return (Ok(report), trace.lines());
        }
        Ok(Err(violation)) => violation,
        Err(panic) => Violation(format!("panic: {}", message_of(panic.as_ref()))),
    };
    let (at, lines) = (trace.now(), trace.lines());
    let failure = Failure {
        seed,
        at,
        violation,
        trace: lines.clone(),
    };
    (Err(Box::new(failure)), lines)
}

/// Runs the streams of a seed alone.
fn run_streams(seed: u64, class: Class, trace: &Trace, tally: &mut Tally) -> Result<(), Violation> {
    let mut rng = Rng::new(seed ^ STREAMS);
    Streams::new(&mut rng, class, trace.clone())?.run(tally)
}

fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

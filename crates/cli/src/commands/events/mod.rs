//! `events`: follows an event channel and prints each event.

mod held;
mod party;
mod report;

use std::time::{Duration, Instant};

use anyhow::Result;
use portolan::Cause;
use portolan::cm::EventChannel;

use crate::args::{EventsArgs, FollowArgs, Whose};
use crate::exit::Outcome;
use crate::interrupt::Interrupt;
use crate::output::{self, Output};
use party::{Connecting, Joining, Listening, Next, Party};

/// Maximum delay until Ctrl-C is noticed.
const INTERRUPT_CHECK: Duration = Duration::from_millis(100);

/// Prints events until interrupted, until the requested number, or until no more can arrive.
///
/// # Errors
///
/// The address cannot be listened on or resolved; the output cannot be written.
pub(crate) fn run(args: &EventsArgs, output: &mut Output) -> Result<Outcome> {
    let outcome = match &args.whose {
        Whose::Listen(args) => {
            let (channel, mut listening) = Listening::start(args)?;
            let interrupt = Interrupt::install()?;
            output.listening(listening.local_addr()?)?;
            follow(&channel, &mut listening, &args.follow, &interrupt, output)
        }
        Whose::Connect(args) => {
            let (channel, mut connecting) = Connecting::start(args)?;
            let interrupt = Interrupt::install()?;
            follow(&channel, &mut connecting, &args.follow, &interrupt, output)
        }
        Whose::Join(args) => {
            let (channel, mut joining) = Joining::start(args)?;
            let interrupt = Interrupt::install()?;
            follow(&channel, &mut joining, &args.follow, &interrupt, output)
        }
    };
    output.flush()?;
    outcome
}

fn follow(
    channel: &EventChannel,
    party: &mut dyn Party,
    args: &FollowArgs,
    interrupt: &Interrupt,
    output: &mut Output,
) -> Result<Outcome> {
    let started = Instant::now();
    let mut seen = 0;
    while args.count.is_none_or(|count| seen < count) && !interrupt.is_raised() {
        let left = args
            .timeout
            .map(|timeout| timeout.saturating_sub(started.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        let wait = left.unwrap_or(INTERRUPT_CHECK).min(INTERRUPT_CHECK);
        let event = match channel.next_event_within(wait) {
            Ok(event) => event,
            Err(error) if matches!(error.cause, Cause::TimedOut { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        seen += 1;
        report::event(&event, started.elapsed(), output)?;
        match party.took(&event) {
            Ok(Next::More) => {}
            Ok(Next::Over(outcome)) => return Ok(outcome),
            Err(error) => {
                output::complain(&error);
                if !party.outlives_failures() {
                    return Ok(Outcome::CheckFailed);
                }
            }
        }
    }
    Ok(Outcome::Good)
}

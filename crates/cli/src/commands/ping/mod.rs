//! `ping`: pings a listener, and prints the time of each ping and whether its data was unchanged.

mod pinger;
pub(super) mod report;

use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use portolan::provider::Address;
use portolan::{Cause, Connection, Connector};

use super::failure::explain;
use super::{loopback, messages};
use crate::args::PingArgs;
use crate::decode::trace::Side;
use crate::exit::Outcome;
use crate::interrupt::Interrupt;
use crate::output::{self, Output};
use crate::record::{self, Recorder};
use pinger::{Broken, Pinger, sleep_until};
use report::Tally;

/// Default time between two pings if no number is given.
pub(super) const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
/// Why there are no pings if Ctrl-C ends the attempt to connect.
pub(super) const NOT_CONNECTED: &str = "interrupted before the peer answered";
/// Time limit for the peer to answer our disconnect.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Pings until interrupted, or the requested number of times.
///
/// # Errors
///
/// Connecting fails for a local reason; the output or the recording cannot be written.
pub(crate) fn run(args: &PingArgs, output: &mut Output) -> Result<Outcome> {
    record::during(&args.record, args.trace, output, |recorder, output| {
        connect_and_ping(args, recorder, output)
    })
}

fn connect_and_ping(args: &PingArgs, recorder: &Recorder, output: &mut Output) -> Result<Outcome> {
    let interrupt = Interrupt::install()?;
    let options = messages::rping_options(&args.private_data, args.timeout);
    let connector = Connector::new().options(options);
    let started = SystemTime::now();
    let address = args.address.clone();
    let Some(connected) = interrupt.unless_raised(move || connector.connect(&address))? else {
        report::summary(args, &Tally::new(), Some(&NOT_CONNECTED), output)?;
        return Ok(Outcome::CheckFailed);
    };
    note_attempt(recorder, started, &args.address, connected.as_ref());
    let connection = match connected {
        Ok(connection) => connection,
        Err(error) if is_peers(&error.cause) => {
            let error = explain(error);
            loopback::complain(&error);
            if output.json {
                report::summary(
                    args,
                    &Tally::new(),
                    Some(&format_args!("{error:#}")),
                    output,
                )?;
            }
            return Ok(Outcome::CheckFailed);
        }
        Err(error) => return Err(explain(error)),
    };
    let note = |label: &str| {
        if let (Some(local), Some(peer)) = (connection.local_addr(), connection.peer_addr()) {
            recorder.event(Side::Active, local.ip(), peer.ip(), label);
        }
    };
    report::connected(&connection, args, output)?;
    let mut tally = Tally::new();
    let broken = ping_all(&connection, args, &interrupt, &mut tally, output)?;
    let closed = connection.disconnect().and_then(|()| {
        let waited = connection.wait_disconnected(DISCONNECT_TIMEOUT);
        note("DISCONNECTED");
        waited
    });
    // The pings are over. A peer that ends immediately, as rping does, does not affect them.
    if let (Err(error), true) = (closed, output.verbose) {
        output::complain(&error);
    }
    let error = broken
        .as_ref()
        .map(|broken| broken as &dyn std::fmt::Display);
    report::summary(args, &tally, error, output)?;
    Ok(match tally.is_good() && broken.is_none() {
        true => Outcome::Good,
        false => Outcome::CheckFailed,
    })
}

/// Whether a failure to connect came from the peer, by its answer or its silence: the ping failed. Otherwise it could
/// not be tried.
pub(super) fn is_peers(cause: &Cause) -> bool {
    matches!(
        cause,
        Cause::Rejected { .. }
            | Cause::SidrRefused(_)
            | Cause::TimedOut { .. }
            | Cause::HostUnreachable
            | Cause::NetworkUnreachable
            | Cause::Disconnected
            | Cause::PeerDied
    )
}

/// Records when the connection attempt started, and its result.
fn note_attempt(
    recorder: &Recorder,
    started: SystemTime,
    address: &str,
    connected: Result<&Connection, &portolan::Error>,
) {
    let (ends, outcome) = match connected {
        Ok(connection) => {
            let ends = connection.local_addr().zip(connection.peer_addr());
            (ends, "ESTABLISHED".to_owned())
        }
        Err(error) => {
            let context = &error.context;
            let inet = |address: Option<Address>| address.and_then(|address| address.inet());
            let ends = inet(context.local).zip(inet(context.remote));
            (ends, format!("{} failed", error.step))
        }
    };
    if let Some((local, peer)) = ends {
        let (local, peer) = (local.ip(), peer.ip());
        let label = format!("connect to {address}");
        recorder.event_at(started, Side::Active, local, peer, label);
        recorder.event(Side::Active, local, peer, outcome);
    }
}

/// Pings until the end; returns what broke the connection, if anything.
fn ping_all(
    connection: &Connection,
    args: &PingArgs,
    interrupt: &Interrupt,
    tally: &mut Tally,
    output: &mut Output,
) -> Result<Option<Broken>> {
    let mut pinger = Pinger::new(connection, args.size, args.timeout)?;
    let interval = args.interval.unwrap_or(match args.count {
        Some(_) => Duration::ZERO,
        None => DEFAULT_INTERVAL,
    });
    let mut next = Instant::now();
    let mut seq = 0;
    while args.count.is_none_or(|count| seq < count) && !interrupt.is_raised() {
        tally.sent += 1;
        match pinger.ping(seq, interrupt) {
            Ok((time, compared)) => {
                tally.note_answer(Instant::now(), time);
                tally.mismatched += u64::from(compared.is_err());
                report::ping(args, connection, seq, time, compared, output)?;
            }
            Err(Broken::Interrupted) => {
                // We interrupted the current ping, so it is not lost.
                tally.sent -= 1;
                break;
            }
            Err(broken) => return Ok(Some(broken)),
        }
        seq += 1;
        next += interval;
        if args.count != Some(seq) {
            sleep_until(next, interrupt);
        }
    }
    Ok(None)
}

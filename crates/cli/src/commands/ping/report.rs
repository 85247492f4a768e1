//! Output of `ping`, for people and machines.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use portolan::Connection;
use serde_json::{Value, json};

use crate::args::PingArgs;
use crate::commands::failure::private_data_text;
use crate::latency::{self, Latencies};
use crate::output::Output;
use crate::rping::Mismatch;
use crate::terminal::Paint;
use crate::text::{hex, without_padding};

/// Results of the pings.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) answered: u64,
    pub(super) mismatched: u64,
    pub(super) latencies: Latencies,
    last_answer: Option<Instant>,
    /// The longest time between two consecutive answers.
    longest_gap: Option<Duration>,
}

impl Tally {
    /// Creates an empty tally.
    pub(super) fn new() -> Tally {
        Tally {
            sent: 0,
            answered: 0,
            mismatched: 0,
            latencies: Latencies::new(),
            last_answer: None,
            longest_gap: None,
        }
    }

    /// A ping was answered at `at`, after `time`.
    pub(super) fn note_answer(&mut self, at: Instant, time: Duration) {
        self.answered += 1;
        self.latencies.record(time);
        if let Some(last) = self.last_answer.replace(at) {
            self.longest_gap = self
                .longest_gap
                .max(Some(at.saturating_duration_since(last)));
        }
    }

    /// Pings that got no answer.
    pub(super) fn lost(&self) -> u64 {
        self.sent - self.answered
    }

    /// Whether every ping was answered, with unchanged data.
    pub(super) fn is_good(&self) -> bool {
        self.lost() == 0 && self.mismatched == 0
    }
}

/// Reports the connection.
pub(super) fn connected(
    connection: &Connection,
    args: &PingArgs,
    output: &mut Output,
) -> Result<()> {
    let local = address_text(connection.local_addr());
    let peer = address_text(connection.peer_addr());
    let data = connection.peer_private_data();
    if output.json {
        output.object(&json!({
            "type": "connected",
            "local": local,
            "peer": peer,
            "qp": connection.qp_num().value(),
            "size": args.size,
            "private_data": hex(without_padding(data)),
        }))?;
    } else {
        let arrow = output.theme.pick("→", "->");
        output.line(&format!(
            "PING {peer} with {} bytes of data: connected {local} {arrow} {peer}, {}",
            args.size,
            private_data_text(data)
        ))?;
    }
    Ok(output.flush()?)
}

/// Reports the result of a ping.
pub(super) fn ping(
    args: &PingArgs,
    connection: &Connection,
    seq: u64,
    time: Duration,
    compared: Result<(), Mismatch>,
    output: &mut Output,
) -> Result<()> {
    let peer = address_text(connection.peer_addr());
    let line = PingLine {
        seq,
        time,
        compared,
        peer: &peer,
    };
    if output.json {
        if args.quiet && compared.is_ok() {
            return Ok(());
        }
        output.object(&line.object(args))?;
    } else {
        match line.line(args, output) {
            Some(line) => output.line(&line)?,
            None => return Ok(()),
        }
    }
    flush_for_watchers(args, output)
}

/// Reports the summary.
pub(super) fn summary(
    args: &PingArgs,
    tally: &Tally,
    error: Option<&dyn fmt::Display>,
    output: &mut Output,
) -> Result<()> {
    if output.json {
        output.object(&json!({
            "type": "summary",
            "sent": tally.sent,
            "answered": tally.answered,
            "lost": tally.lost(),
            "mismatched": tally.mismatched,
            "latency": tally.latencies.json(),
            "longest_gap_us": tally.longest_gap.map(microseconds),
            "error": error.map(ToString::to_string),
        }))?;
        return Ok(());
    }
    summary_head(args, error, output)?;
    output.line(&format!(
        "{} pings sent, {}",
        tally.sent,
        counts(tally.sent, tally.answered, tally.mismatched)
    ))?;
    if let Some(summary) = tally.latencies.summary() {
        output.line(&format!("round trip {summary}"))?;
    }
    if let Some(gap) = tally.longest_gap {
        let gap = latency::time(microseconds(gap) * 1000.0);
        output.line(&format!("longest gap between two answers {gap}"))?;
    }
    plot(&tally.latencies, output)
}

/// Starts a summary for people: what ended the pings early, if anything, and the heading.
pub(in crate::commands) fn summary_head(
    args: &PingArgs,
    error: Option<&dyn fmt::Display>,
    output: &mut Output,
) -> Result<()> {
    if let Some(error) = error {
        let line = output.theme.paint(Paint::Bad, &format!("broken: {error}"));
        output.line(&line)?;
    }
    let heading = format!("--- {} ping statistics ---", args.address);
    let heading = output.theme.paint(Paint::Bold, &heading);
    Ok(output.line(&heading)?)
}

/// The counts of sent, answered and lost pings.
pub(in crate::commands) fn counts(sent: u64, answered: u64, mismatched: u64) -> String {
    let lost = sent - answered;
    let loss = match sent {
        0 => 0.0,
        sent => lost as f64 * 100.0 / sent as f64,
    };
    format!("{answered} answered, {lost} lost ({loss:.1} %), {mismatched} came back changed")
}

/// Plots the distribution of round trips, if details are requested.
pub(in crate::commands) fn plot(latencies: &Latencies, output: &mut Output) -> Result<()> {
    if output.verbose {
        let theme = output.theme;
        for line in latency::plot(latencies, &theme) {
            output.line(&line)?;
        }
    }
    Ok(())
}

/// An answer, for people and for machines.
pub(in crate::commands) struct PingLine<'a> {
    /// Number of the ping, from 0.
    pub(in crate::commands) seq: u64,
    pub(in crate::commands) time: Duration,
    pub(in crate::commands) compared: Result<(), Mismatch>,
    pub(in crate::commands) peer: &'a str,
}

impl PingLine<'_> {
    pub(in crate::commands) fn object(&self, args: &PingArgs) -> Value {
        json!({
            "type": "ping",
            "seq": self.seq + 1,
            "bytes": args.size,
            "time_us": microseconds(self.time),
            "error": self.compared.err().map(|mismatch| mismatch.to_string()),
        })
    }

    /// `None` if no line is needed: the ping is fine and only the summary is requested.
    pub(in crate::commands) fn line(&self, args: &PingArgs, output: &Output) -> Option<String> {
        let seq = self.seq + 1;
        if let Err(mismatch) = self.compared {
            let text = format!("seq={seq} {mismatch}");
            return Some(output.theme.paint(Paint::Bad, &text));
        }
        let (size, peer) = (args.size, self.peer);
        let time = latency::time(microseconds(self.time) * 1000.0);
        (!args.quiet).then(|| format!("{size} bytes from {peer}: seq={seq} time={time}"))
    }
}

/// Flushes the output unless pings follow each other without a pause, because someone may be watching.
pub(in crate::commands) fn flush_for_watchers(args: &PingArgs, output: &mut Output) -> Result<()> {
    if args.interval.unwrap_or_default() > Duration::ZERO || args.count.is_none() {
        output.flush()?;
    }
    Ok(())
}

fn microseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

fn address_text(address: Option<SocketAddr>) -> String {
    address.map_or_else(
        || "an address unknown".to_owned(),
        |address| address.to_string(),
    )
}

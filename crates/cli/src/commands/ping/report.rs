//! What `ping` prints, for people and for machines.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use portolan::Connection;
use serde_json::json;

use crate::args::PingArgs;
use crate::commands::failure::private_data_text;
use crate::latency::{self, Latencies};
use crate::output::Output;
use crate::rping::Mismatch;
use crate::terminal::Paint;
use crate::text::{hex, without_padding};

/// What became of the pings.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) answered: u64,
    pub(super) mismatched: u64,
    pub(super) latencies: Latencies,
    last_answer: Option<Instant>,
    /// Between two answers, one right after the other.
    longest_gap: Option<Duration>,
}

impl Tally {
    /// Of no ping yet.
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

    /// Whether every ping came back, and as it went.
    pub(super) fn is_good(&self) -> bool {
        self.lost() == 0 && self.mismatched == 0
    }
}

/// Tells that there is a connection.
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

/// Tells what became of a ping.
pub(super) fn ping(
    args: &PingArgs,
    connection: &Connection,
    seq: u64,
    time: Duration,
    compared: Result<(), Mismatch>,
    output: &mut Output,
) -> Result<()> {
    let seq = seq + 1;
    let us = microseconds(time);
    if output.json {
        if args.quiet && compared.is_ok() {
            return Ok(());
        }
        output.object(&json!({
            "type": "ping",
            "seq": seq,
            "bytes": args.size,
            "time_us": us,
            "error": compared.err().map(|mismatch| mismatch.to_string()),
        }))?;
    } else if let Err(mismatch) = compared {
        let line = output
            .theme
            .paint(Paint::Bad, &format!("seq={seq} {mismatch}"));
        output.line(&line)?;
    } else if !args.quiet {
        let (size, address) = (args.size, address_text(connection.peer_addr()));
        let time = latency::time(us * 1000.0);
        output.line(&format!(
            "{size} bytes from {address}: seq={seq} time={time}"
        ))?;
    } else {
        return Ok(());
    }
    // Someone may be watching, unless pings follow each other at once.
    if args.interval.unwrap_or_default() > Duration::ZERO || args.count.is_none() {
        output.flush()?;
    }
    Ok(())
}

/// Tells what became of all of them.
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
    if let Some(error) = error {
        let line = output.theme.paint(Paint::Bad, &format!("broken: {error}"));
        output.line(&line)?;
    }
    let heading = format!("--- {} ping statistics ---", args.address);
    let heading = output.theme.paint(Paint::Bold, &heading);
    output.line(&heading)?;
    let loss = match tally.sent {
        0 => 0.0,
        sent => tally.lost() as f64 * 100.0 / sent as f64,
    };
    output.line(&format!(
        "{} pings sent, {} answered, {} lost ({loss:.1} %), {} came back changed",
        tally.sent,
        tally.answered,
        tally.lost(),
        tally.mismatched
    ))?;
    if let Some(summary) = tally.latencies.summary() {
        output.line(&format!("round trip {summary}"))?;
    }
    if let Some(gap) = tally.longest_gap {
        let gap = latency::time(microseconds(gap) * 1000.0);
        output.line(&format!("longest gap between two answers {gap}"))?;
    }
    if output.verbose {
        let theme = output.theme;
        for line in latency::plot(&tally.latencies, &theme) {
            output.line(&line)?;
        }
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

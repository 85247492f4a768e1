//! What `ping --ud` and `listen --ud` print, for people and for machines.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use portolan::datagram::{Reached, Socket};
use serde_json::json;

use super::ping::{Answer, Tally};
use crate::args::PingArgs;
use crate::commands::failure::private_data_text;
use crate::latency;
use crate::output::Output;
use crate::terminal::Paint;
use crate::text::{hex, without_padding};

/// Tells that the service answered.
pub(super) fn reached(
    socket: &Socket,
    service: &Reached,
    args: &PingArgs,
    output: &mut Output,
) -> Result<()> {
    let (peer, destination) = (service.address, &service.destination);
    if output.json {
        output.object(&json!({
            "type": "reached",
            "local": socket.local_addr().map(|local| local.to_string()),
            "peer": peer.to_string(),
            "qp": socket.qpn().value(),
            "peer_qp": destination.qpn.value(),
            "qkey": destination.qkey.0,
            "size": args.size,
            "private_data": hex(without_padding(&service.private_data)),
        }))?;
    } else {
        output.line(&format!(
            "PING {peer} with {} bytes of data by datagrams: queue pair {}, Q_Key {}, {}",
            args.size,
            destination.qpn,
            destination.qkey,
            private_data_text(&service.private_data)
        ))?;
    }
    Ok(output.flush()?)
}

/// Tells an answer.
pub(super) fn answer(
    args: &PingArgs,
    service: &Reached,
    answer: &Answer,
    output: &mut Output,
) -> Result<()> {
    let peer = service.address;
    let us = |time: &Duration| time.as_nanos() as f64 / 1000.0;
    if output.json {
        output.object(&match answer {
            Answer::Echo {
                seq,
                time,
                compared,
            } => json!({
                "type": "ping",
                "seq": seq + 1,
                "bytes": args.size,
                "time_us": us(time),
                "error": compared.err().map(|mismatch| mismatch.to_string()),
            }),
            Answer::Other { bytes } => json!({ "type": "answer", "bytes": bytes }),
        })?;
    } else {
        let line = match answer {
            Answer::Echo {
                seq,
                compared: Err(mismatch),
                ..
            } => output
                .theme
                .paint(Paint::Bad, &format!("seq={} {mismatch}", seq + 1)),
            _ if args.quiet => return Ok(()),
            Answer::Echo { seq, time, .. } => format!(
                "{} bytes from {peer}: seq={} time={}",
                args.size,
                seq + 1,
                latency::time(us(time) * 1000.0)
            ),
            Answer::Other { bytes } => format!("{bytes} bytes from {peer}: no echo"),
        };
        output.line(&line)?;
    }
    // Someone may be watching, unless pings follow each other at once.
    if args.interval.unwrap_or_default() > Duration::ZERO || args.count.is_none() {
        output.flush()?;
    }
    Ok(())
}

/// Tells what became of all pings.
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
            "untimed": tally.untimed,
            "duplicates": tally.duplicates,
            "latency": tally.latencies.json(),
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
        "{} datagrams sent, {} answered, {} lost ({loss:.1} %), {} came back changed",
        tally.sent,
        tally.answered,
        tally.lost(),
        tally.mismatched
    ))?;
    if tally.untimed > 0 {
        output.line(&format!(
            "{} answers are no echo: their round trip is not known",
            tally.untimed
        ))?;
    }
    if tally.duplicates > 0 {
        output.line(&format!("{} answers came again", tally.duplicates))?;
    }
    if let Some(summary) = tally.latencies.summary() {
        output.line(&format!("round trip {summary}"))?;
    }
    if output.verbose {
        let theme = output.theme;
        for line in latency::plot(&tally.latencies, &theme) {
            output.line(&line)?;
        }
    }
    Ok(())
}

/// Tells where the service is offered.
pub(super) fn listening(local: SocketAddr, output: &mut Output) -> Result<()> {
    if output.json {
        output.object(&json!({ "type": "listening", "address": local.to_string() }))?;
    } else {
        output.line(&format!("listening on {local}"))?;
    }
    Ok(output.flush()?)
}

/// Tells that somebody asked for the service.
pub(super) fn asked(
    peer: Option<SocketAddr>,
    private_data: &[u8],
    output: &mut Output,
) -> Result<()> {
    let peer = peer.map_or_else(|| "somebody".to_owned(), |peer| peer.to_string());
    if output.json {
        output.object(&json!({
            "type": "asked",
            "peer": peer,
            "private_data": hex(without_padding(private_data)),
        }))?;
    } else {
        output.line(&format!("{peer} asks, {}", private_data_text(private_data)))?;
    }
    Ok(output.flush()?)
}

/// Tells how many datagrams came and were answered.
pub(super) fn served(received: u64, answered: u64, output: &mut Output) -> Result<()> {
    if output.json {
        output.object(&json!({
            "type": "summary",
            "received": received,
            "answered": answered,
        }))?;
    } else {
        output.line(&format!(
            "{received} datagrams received, {answered} answered"
        ))?;
    }
    Ok(())
}

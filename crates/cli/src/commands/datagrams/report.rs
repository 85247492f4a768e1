//! Output of `ping --ud` and `listen --ud`, for people and machines.

use std::fmt;
use std::net::SocketAddr;

use anyhow::Result;
use portolan::datagram::{Reached, Socket};
use serde_json::json;

use super::tally::{Answer, Tally};
use crate::args::PingArgs;
use crate::commands::failure::private_data_text;
use crate::commands::ping::report::{PingLine, counts, flush_for_watchers, plot, summary_head};
use crate::output::Output;
use crate::text::{hex, without_padding};

/// Reports that the service answered.
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

/// Reports an answer.
pub(super) fn answer(
    args: &PingArgs,
    service: &Reached,
    answer: &Answer,
    output: &mut Output,
) -> Result<()> {
    let peer = service.address.to_string();
    let (object, line) = match answer {
        &Answer::Echo {
            seq,
            time,
            compared,
        } => {
            let peer = &peer;
            let ping = PingLine {
                seq,
                time,
                compared,
                peer,
            };
            (ping.object(args), ping.line(args, output))
        }
        Answer::Other { bytes } => (
            json!({ "type": "answer", "bytes": bytes }),
            (!args.quiet).then(|| format!("{bytes} bytes from {peer}: no echo")),
        ),
    };
    if output.json {
        output.object(&object)?;
    } else {
        match line {
            Some(line) => output.line(&line)?,
            None => return Ok(()),
        }
    }
    flush_for_watchers(args, output)
}

/// Prints the summary of all pings.
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
    summary_head(args, error, output)?;
    output.line(&format!(
        "{} datagrams sent, {}",
        tally.sent,
        counts(tally.sent, tally.answered, tally.mismatched)
    ))?;
    if tally.untimed > 0 {
        output.line(&format!(
            "{} answers are not echoes: their round trip is unknown",
            tally.untimed
        ))?;
    }
    if tally.duplicates > 0 {
        output.line(&format!("{} duplicate answers", tally.duplicates))?;
    }
    if let Some(summary) = tally.latencies.summary() {
        output.line(&format!("round trip {summary}"))?;
    }
    plot(&tally.latencies, output)
}

/// Reports a request for the service.
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

/// Reports the number of datagrams received and answered.
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

//! Incast: many processes write to one at once, compared with a single one.

use std::time::Duration;

use anyhow::Result;
use portolan::provider::software_provider;
use portolan::{Access, Connection, SharedMemory};
use serde_json::json;

use crate::commands::bench::args::StormArgs;
use crate::commands::bench::bandwidth::depth;
use crate::commands::bench::process::Peer;
use crate::commands::bench::report::{Comparison, progress};
use crate::commands::bench::request::Request;
use crate::commands::bench::{Streamed, connect, rate_text};
use crate::output::Output;

/// Bytes of a write.
const WRITE_LEN: u32 = 64 << 10;

pub(super) fn run(args: &StormArgs, output: &mut Output) -> Result<()> {
    let time = Duration::from_millis(args.time.into());
    let mut senders = Vec::new();
    for _ in 0..args.senders {
        senders.push(Sender::start()?);
    }
    let (one, all) = ("one to one", format!("{} to one", args.senders));
    let mut comparison = Comparison::new(&all, one);
    // Warm up the memory.
    total_rate(&mut senders, time / 4)?;
    for round in 0..args.rounds {
        let yardstick = total_rate(senders.get_mut(..1).unwrap_or_default(), time)?;
        let subject = total_rate(&mut senders, time)?;
        let ratio = comparison.add(subject, yardstick);
        let (number, rounds) = (round + 1, args.rounds);
        let (yardstick, subject) = (rate_text(yardstick), rate_text(subject));
        let text = format!(
            "round {number}/{rounds}: {one} {yardstick}, {all} {subject}, ratio {ratio:.2}"
        );
        progress(&text, output)?;
    }
    let rates = [
        (one, comparison.yardstick_median()),
        (all.as_str(), comparison.subject_median()),
    ];
    for (name, rate) in rates {
        if output.json {
            output.object(&json!({ "type": "rate", "of": name, "bytes_per_second": rate }))?;
        } else {
            output.line(&format!("  {name:<24} {:>12}", rate_text(rate)))?;
        }
    }
    comparison.tell(output)?;
    Ok(())
}

/// A process that writes to memory of ours.
struct Sender {
    peer: Peer,
    target: SharedMemory,
    _connection: Connection,
}

impl Sender {
    fn start() -> Result<Sender> {
        let mut peer = Peer::start()?;
        let connection = connect(software_provider()?, &mut peer)?;
        let target = connection.share(
            depth(WRITE_LEN as usize) * WRITE_LEN as usize,
            Access::REMOTE_WRITE,
        )?;
        Ok(Sender {
            peer,
            target,
            _connection: connection,
        })
    }
}

/// Total bytes per second of all senders, from the first byte to the last.
fn total_rate(senders: &mut [Sender], time: Duration) -> Result<f64> {
    for sender in senders.iter_mut() {
        let (to, size) = (sender.target.remote(), WRITE_LEN);
        sender.peer.ask(Request::StreamWrites { to, size, time })?;
    }
    let mut total = Streamed {
        bytes: 0,
        time: Duration::ZERO,
    };
    for sender in senders {
        let streamed = Streamed::from_json(&sender.peer.answer()?)?;
        total.bytes += streamed.bytes;
        total.time = total.time.max(streamed.time);
    }
    Ok(total.rate())
}

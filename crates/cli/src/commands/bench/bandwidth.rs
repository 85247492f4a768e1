//! Streams of RDMA writes of several sizes, compared with a UDP stream that the kernel segments and coalesces.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use portolan::provider::software_provider;
use portolan::{Access, Connection, RemoteMemory, SharedMemory};
use serde_json::json;

use super::args::BandwidthArgs;
use super::process::Peer;
use super::report::{Comparison, progress};
use super::request::Request;
use super::{Streamed, chart, rate_text, udp, write_chart};
use crate::output::Output;
use crate::text::bytes;

/// Sizes of writes.
const SIZES: [u32; 3] = [4 << 10, GSO_SIZE, 1 << 20];
/// The size for a direct comparison: a write as large as a GSO send.
const GSO_SIZE: u32 = 64 << 10;
/// Size of the memory written to: that of the largest writes in flight.
const TARGET_LEN: usize = 2 << 20;
/// Bytes in flight. The number of writes is this divided by their size, between [`DEPTH_MIN`] and [`DEPTH_MAX`]. Small
/// enough to stay in the caches, like the yardstick's datagrams.
const UNDER_WAY: usize = 1 << 20;
/// Maximum number of writes in flight.
const DEPTH_MAX: usize = 16;
/// One is acknowledged while the other is sent.
const DEPTH_MIN: usize = 2;

pub(super) fn run(args: &BandwidthArgs, output: &mut Output) -> Result<()> {
    let provider = software_provider()?;
    let mut peer = Peer::start()?;
    let connection = super::connect(provider, &mut peer)?;
    let target = connection.share(TARGET_LEN, Access::REMOTE_WRITE)?;
    let time = Duration::from_millis(args.time.into());
    // Warm up the memory.
    stream(&mut peer, &target, 1 << 20, time / 2)?;
    let mut comparisons = SIZES.map(|size| {
        let subject = format!("RDMA writes of {}", bytes(size.into()));
        Comparison::new(&subject, "UDP with GSO and GRO")
    });
    let rounds = args.rounds.rounds;
    for round in 0..rounds {
        let yardstick = stream_udp(&mut peer, time)?.rate();
        let mut text = format!("round {}/{rounds}: UDP {}", round + 1, rate_text(yardstick));
        for (comparison, size) in comparisons.iter_mut().zip(SIZES) {
            let rate = stream(&mut peer, &target, size, time)?.rate();
            let ratio = comparison.add(rate, yardstick);
            let (size, rate) = (bytes(size.into()), rate_text(rate));
            text += &format!(", {size} writes {rate} ({:.0} %)", ratio * 100.0);
        }
        progress(&text, output)?;
    }
    let udp_rate = comparisons[0].yardstick_median();
    let mut rates = vec![(comparisons[0].yardstick.clone(), udp_rate)];
    for comparison in &comparisons {
        rates.push((comparison.subject.clone(), comparison.subject_median()));
    }
    for (name, rate) in &rates {
        if output.json {
            output.object(&json!({ "type": "rate", "of": name, "bytes_per_second": rate }))?;
        } else {
            output.line(&format!("  {name:<24} {:>12}", rate_text(*rate)))?;
        }
    }
    for comparison in &comparisons {
        comparison.tell(output)?;
    }
    write_chart(args.rounds.svg.as_deref(), || {
        chart::bars(
            "Streams between two processes on loopback, GiB/s",
            &rates,
            |rate| rate / f64::from(1 << 30),
        )
    })
}

/// Number of writes of a size in flight at once.
pub(super) const fn depth(size: usize) -> usize {
    let depth = UNDER_WAY / size;
    if depth > DEPTH_MAX {
        DEPTH_MAX
    } else if depth < DEPTH_MIN {
        DEPTH_MIN
    } else {
        depth
    }
}

/// Writes to the peer's memory for a time, with several writes in flight.
pub(super) fn stream_writes(
    connection: &Connection,
    to: RemoteMemory,
    size: usize,
    time: Duration,
) -> Result<Streamed> {
    let depth = depth(size);
    let mut under_way = VecDeque::with_capacity(depth);
    let (start, mut bytes) = (Instant::now(), 0);
    let place = |number: usize| {
        to.slice(number % depth * size, size)
            .context("a write is beyond the memory")
    };
    for number in 0..depth {
        let buffer = connection.buffer(size)?;
        under_way.push_back(connection.write(buffer, place(number)?)?);
    }
    let mut number = depth;
    while let Some(transfer) = under_way.pop_front() {
        let buffer = transfer.wait()?.buffer;
        bytes += size as u64;
        if start.elapsed() < time {
            under_way.push_back(connection.write(buffer, place(number)?)?);
            number += 1;
        }
    }
    Ok(Streamed {
        bytes,
        time: start.elapsed(),
    })
}

/// Lets the peer write to our memory while this process is idle.
fn stream(peer: &mut Peer, target: &SharedMemory, size: u32, time: Duration) -> Result<Streamed> {
    let to = target.remote();
    let answer = peer.call(Request::StreamWrites { to, size, time })?;
    Streamed::from_json(&answer)
}

fn stream_udp(peer: &mut Peer, time: Duration) -> Result<Streamed> {
    let socket = udp::stream_receiver()?;
    let to = socket.local_addr()?;
    peer.ask(Request::StreamDatagrams { to, time })?;
    let streamed = udp::receive_stream(&socket)?;
    peer.answer()?;
    Ok(streamed)
}

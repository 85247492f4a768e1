//! Storms: many simultaneous connects to one listener, many idle connections, many senders to one receiver.

mod active;
mod incast;
mod passive;
mod queue_pairs;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Instant;

use anyhow::Result;
use portolan::provider::software_provider;
use serde_json::json;

use self::active::Active;
pub(super) use self::passive::serve;
use super::args::StormArgs;
use super::process::Peer;
use super::report::{progress, tell_latencies};
use super::request::Request;
use crate::latency::time;
use crate::output::Output;
use crate::text::bytes;

/// Length of a message over an idle connection.
const MESSAGE_LEN: usize = 32;

pub(super) fn run(args: &StormArgs, output: &mut Output) -> Result<()> {
    let mut peer = Peer::start()?;
    // First, before other steps leave freed memory behind.
    hold(args, &mut peer, output)?;
    connect_at_once(args, &mut peer, output)?;
    drop(peer);
    incast::run(args, output)
}

/// All requests are sent before the first answer is read.
fn connect_at_once(args: &StormArgs, peer: &mut Peer, output: &mut Output) -> Result<()> {
    let connections = args.connects;
    let mut active = start(peer, connections)?;
    let prepared = Instant::now();
    active.resolve(connections)?;
    let (started, resolving) = (Instant::now(), prepared.elapsed());
    let latencies = active.connect()?;
    let took = started.elapsed();
    peer.answer()?;
    active.disconnect()?;
    peer.answer()?;
    if output.json {
        output.object(&json!({
            "type": "storm",
            "connects": connections,
            "established": latencies.count(),
            "resolving_us": resolving.as_secs_f64() * 1e6,
            "connecting_us": took.as_secs_f64() * 1e6,
        }))?;
    } else {
        let (each, took) = (
            took.as_nanos() as f64 / f64::from(connections),
            time(took.as_nanos() as f64),
        );
        output.line(&format!(
            "\n{connections} connects at once to one listener: all established in {took}, {} each",
            time(each)
        ))?;
    }
    tell_latencies("From the burst to established", &latencies, true, output)?;
    Ok(())
}

/// Many connections without traffic, then messages over some of them.
fn hold(args: &StormArgs, peer: &mut Peer, output: &mut Output) -> Result<()> {
    let connections = args.hold;
    let mut active = start(peer, connections)?;
    let mut left = connections;
    // The time for each connection of a wave, in µs: from creating its id until all of the wave are established.
    let mut waves = Vec::new();
    while left > 0 {
        let wave = left.min(args.connects);
        let started = Instant::now();
        active.resolve(wave)?;
        active.connect()?;
        let took_us = started.elapsed().as_secs_f64() * 1e6 / f64::from(wave);
        waves.push(took_us);
        left -= wave;
        let held = connections - left;
        if wave < connections {
            let memory = bytes(active.bytes_per_connection()?);
            progress(
                &format!(
                    "{held} connections held, {memory} each; the last {wave} took {took_us:.0} µs each"
                ),
                output,
            )?;
        }
    }
    let theirs = peer.answer()?["bytes_per_connection"].as_u64();
    let ours = active.bytes_per_connection()?;
    let messages = args.messages.min(connections);
    let latencies = active.exchange(messages, random())?;
    active.disconnect()?;
    peer.answer()?;
    if output.json {
        output.object(&json!({
            "type": "held",
            "connections": connections,
            "messages": latencies.count(),
            "waves_us": waves,
            "bytes_per_connection": ours,
            "peer_bytes_per_connection": theirs,
        }))?;
    } else {
        output.line(&format!(
            "{connections} connections held; of memory each takes {} where it connected, {} where \
             it was accepted",
            bytes(ours),
            theirs.map_or("?".to_owned(), bytes),
        ))?;
    }
    let name =
        format!("{messages} messages at once over connections drawn at random, there and back");
    tell_latencies(&name, &latencies, true, output)?;
    Ok(())
}

/// Makes the peer serve `connections` connections, and prepares to connect them.
fn start(peer: &mut Peer, connections: u32) -> Result<Active> {
    let listening = peer.call(Request::ServeStorm { connections })?;
    let listening = listening["listening"].as_array().into_iter().flatten();
    let to = listening.map(|address| address.as_str().unwrap_or_default().parse());
    let to = to.collect::<Result<Vec<_>, _>>()?;
    Active::new(software_provider()?, to, connections)
}

/// A number that differs between runs, because the standard library's hashers have random keys.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

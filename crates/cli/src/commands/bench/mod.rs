//! `bench`: measures the software device, compared with plain sockets in the same run.
//!
//! Uses two processes on the loopback interface, the second started by the first; resolving uses one. Yardstick and
//! subject are measured in turns, and the report has the median of the rounds' ratios, because noise of the machine
//! affects both.

mod args;
mod bandwidth;
mod chart;
mod connect;
mod latency;
mod memory;
pub(super) mod peer;
mod process;
mod relay;
mod report;
mod request;
mod resolve;
mod storm;
mod udp;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use portolan::provider::traits::Provider;
use portolan::{Connection, Connector, Options};
use serde_json::{Value, json};

pub(crate) use self::args::BenchCommand;
use self::process::Peer;
use self::request::Request;
use super::failure::explain;
use crate::exit::Outcome;
use crate::output::Output;
use crate::text::bytes;

/// Time limit for any step that should take milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest message.
const MESSAGE_MAX: usize = 4096;

/// Measures.
///
/// # Errors
///
/// A step fails.
pub(crate) fn run(command: &BenchCommand, output: &mut Output) -> Result<Outcome> {
    match command {
        BenchCommand::Connect(args) => connect::run(args, output)?,
        BenchCommand::Latency(args) => latency::run(args, output)?,
        BenchCommand::Bandwidth(args) => bandwidth::run(args, output)?,
        BenchCommand::Storm(args) => storm::run(args, output)?,
        BenchCommand::Resolve(args) => resolve::run(args, output)?,
    }
    output.flush()?;
    Ok(Outcome::Good)
}

/// Options of connections: queues for a few messages. Message memory is registered while connecting, so less of it
/// connects faster.
fn options() -> Options {
    Options::default()
        .send_depth(64)
        .receive_depth(4)
        .receive_size(MESSAGE_MAX)
        .posted_receives(0)
        .timeout(PATIENCE)
}

/// Options of connections that carry no data: one receive, as every RDMA program posts.
fn connect_options() -> Options {
    options().receive_depth(1)
}

/// A connection to the second process, which keeps its end open.
fn connect(provider: Arc<dyn Provider>, peer: &mut Peer) -> Result<Connection> {
    peer.ask(Request::Accept)?;
    let connector = Connector::new().provider(provider).options(options());
    let connection = connector.connect_to(peer.rdma).map_err(explain)?;
    peer.answer()?;
    Ok(connection)
}

/// The result of a stream.
#[derive(Debug, Clone, Copy)]
struct Streamed {
    bytes: u64,
    time: Duration,
}

impl Streamed {
    /// Bytes in a second.
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(f64::EPSILON)
    }

    /// The result as the second process reports it.
    fn json(&self) -> Value {
        json!({ "bytes": self.bytes, "ns": self.time.as_nanos() as u64 })
    }

    /// Parses the second process's report.
    fn from_json(value: &Value) -> Result<Streamed> {
        let figures = value["bytes"].as_u64().zip(value["ns"].as_u64());
        let (bytes, ns) = figures.context("the second process reported no stream figures")?;
        let time = Duration::from_nanos(ns);
        Ok(Streamed { bytes, time })
    }
}

/// Bytes per second, for people.
fn rate_text(rate: f64) -> String {
    format!("{}/s", bytes(rate as u64))
}

fn write_chart(file: Option<&Path>, chart: impl FnOnce() -> String) -> Result<()> {
    match file {
        None => Ok(()),
        Some(file) => std::fs::write(file, chart())
            .with_context(|| format!("cannot write {}", file.display())),
    }
}

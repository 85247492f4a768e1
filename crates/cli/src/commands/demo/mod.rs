//! `demo`: shows everything in a few seconds: resolves a name, connects two processes over the software device,
//! transfers data in each way, and disconnects. Then it draws the packets.

mod child;
pub(super) mod peer;
mod transfers;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use portolan::provider::software_provider;
use portolan::{Connection, Connector, Options, resolve};
use serde_json::json;

use super::failure::{explain, private_data_text};
use super::loopback;
use crate::args::DemoArgs;
use crate::decode::trace::Side;
use crate::exit::Outcome;
use crate::latency;
use crate::output::Output;
use crate::record::Recorder;
use crate::terminal::Paint;
use crate::text::{bytes, hex, without_padding};
use child::Peer;
use transfers::Transfers;

/// The name that is resolved.
const NAME: &str = "localhost";
/// Private data that the two processes exchange while connecting.
const GREETING: &[u8] = b"ahoy";
const PEER_GREETING: &[u8] = b"ahoy yourself";
/// Size of the second process's memory that the first one writes and reads.
const MEMORY_LEN: usize = 1 << 20;
/// The longest message.
const MAX_MESSAGE_LEN: usize = 256;
/// Time limit for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the second process to answer our disconnect.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the demonstration.
///
/// # Errors
///
/// Any step fails; all are expected to work.
pub(crate) fn run(args: &DemoArgs, output: &mut Output) -> Result<Outcome> {
    let started = Instant::now();
    if let Some(name) = loopback::that_is_down() {
        bail!(
            "the two processes connect over loopback: {}",
            loopback::advice(&name)
        );
    }
    let recorder = Recorder::start(args.record.pcap.as_deref(), !output.json)?;
    show_resolution(output)?;
    let outcome = show_connection(&recorder, output);
    heading(output, "On the wire")?;
    recorder.finish(output)?;
    let transfers = outcome?;
    show_latencies(&transfers, output)?;
    let took = started.elapsed();
    if output.json {
        output.object(&json!({ "type": "done", "seconds": took.as_secs_f64() }))?;
    } else {
        let line = format!("\nAll of it worked, in {:.2} s.", took.as_secs_f64());
        let line = output.theme.paint(Paint::Good, &line);
        output.line(&line)?;
    }
    output.flush()?;
    Ok(Outcome::Good)
}

fn heading(output: &mut Output, text: &str) -> Result<()> {
    if !output.json {
        let text = output.theme.paint(Paint::Bold, text);
        output.line(&format!("\n{text}"))?;
    }
    Ok(())
}

/// Resolves the name and lists the results.
fn show_resolution(output: &mut Output) -> Result<()> {
    let found = resolve(NAME)?;
    ensure!(!found.is_empty(), "{NAME} has no address");
    if !output.json {
        let line = output
            .theme
            .paint(Paint::Bold, &format!("{NAME} resolves to"));
        output.line(&line)?;
    }
    for resolved in &found {
        let address = resolved.addr.ip();
        let source = resolved.source.map(|source| source.ip().to_string());
        if output.json {
            output.object(&json!({
                "type": "resolved",
                "name": NAME,
                "address": address.to_string(),
                "source": source,
            }))?;
        } else {
            let source = source.unwrap_or_else(|| "none: no route".to_owned());
            output.line(&format!("  {address}  from source {source}"))?;
        }
    }
    Ok(())
}

/// Starts the second process, connects to it, transfers data, disconnects.
fn show_connection(recorder: &Arc<Recorder>, output: &mut Output) -> Result<Transfers> {
    let events = Arc::new(PeerEvents::new(recorder.clone()));
    let told = events.clone();
    let (peer, address) = Peer::start(move |time, event| told.note(time, event))?;
    let connector = Connector::new().provider(software_provider()?).options(
        Options::default()
            .receive_size(MAX_MESSAGE_LEN)
            .private_data(GREETING.to_vec())
            .timeout(CONNECT_TIMEOUT),
    );
    let start = Instant::now();
    let connection = connector.connect(&address).map_err(explain)?;
    let took = start.elapsed();
    let (local, remote) = connection
        .local_addr()
        .zip(connection.peer_addr())
        .context("the connection has no addresses")?;
    events.place(local.ip(), remote.ip());
    let note = |label: &str| recorder.event(Side::Active, local.ip(), remote.ip(), label);
    note("ESTABLISHED");
    report_connection(&connection, local, remote, took, output)?;

    heading(output, "Moving data")?;
    let transfers = Transfers::run(&connection, note)?;
    report_transfers(&transfers, output)?;

    connection.disconnect()?;
    connection.wait_disconnected(DISCONNECT_TIMEOUT)?;
    note("DISCONNECTED");
    drop(connection);
    let status = peer.join()?;
    ensure!(status.success(), "the second process failed: {status}");
    Ok(transfers)
}

/// Events of the second process, kept until the connection provides both addresses.
#[derive(Debug)]
struct PeerEvents {
    recorder: Arc<Recorder>,
    state: Mutex<PeerEventsState>,
}

#[derive(Debug, Default)]
struct PeerEventsState {
    /// Our address and the second process's.
    ends: Option<(IpAddr, IpAddr)>,
    waiting: Vec<(SystemTime, String)>,
}

impl PeerEvents {
    fn new(recorder: Arc<Recorder>) -> PeerEvents {
        PeerEvents {
            recorder,
            state: Mutex::default(),
        }
    }

    fn note(&self, time: SystemTime, event: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.ends {
            Some(ends) => self.show(ends, time, event),
            None => state.waiting.push((time, event.to_owned())),
        }
    }

    fn place(&self, local: IpAddr, remote: IpAddr) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ends = Some((local, remote));
        for (time, event) in std::mem::take(&mut state.waiting) {
            self.show((local, remote), time, &event);
        }
    }

    fn show(&self, (local, remote): (IpAddr, IpAddr), time: SystemTime, event: &str) {
        self.recorder
            .event_at(time, Side::Passive, remote, local, event);
    }
}

fn report_connection(
    connection: &Connection,
    local: SocketAddr,
    remote: SocketAddr,
    took: Duration,
    output: &mut Output,
) -> Result<()> {
    let data = connection.peer_private_data();
    if output.json {
        output.object(&json!({
            "type": "connected",
            "local": local.to_string(),
            "peer": remote.to_string(),
            "qp": connection.qp_num().value(),
            "private_data": hex(without_padding(data)),
            "time_us": took.as_secs_f64() * 1e6,
        }))?;
        return Ok(());
    }
    heading(output, "Connected two processes")?;
    output.line(&format!(
        "  {local} {} {remote} in {}, queue pair {}; the peer sends {}",
        output.theme.pick("→", "->"),
        latency::time(took.as_nanos() as f64),
        connection.qp_num(),
        private_data_text(data),
    ))?;
    Ok(())
}

fn report_transfers(transfers: &Transfers, output: &mut Output) -> Result<()> {
    for moved in &transfers.moved {
        let seconds = moved.time.as_secs_f64();
        if output.json {
            output.object(&json!({
                "type": "moved",
                "operation": moved.operation,
                "bytes": moved.len,
                "time_us": seconds * 1e6,
            }))?;
        } else {
            let rate = bytes((moved.len as f64 / seconds.max(f64::EPSILON)) as u64);
            output.line(&format!(
                "  {:<10} {:>8} in {:>9}, {rate}/s, {}",
                moved.operation,
                bytes(moved.len as u64),
                latency::time(moved.time.as_nanos() as f64),
                moved.checked,
            ))?;
        }
    }
    Ok(())
}

fn show_latencies(transfers: &Transfers, output: &mut Output) -> Result<()> {
    let latencies = &transfers.latencies;
    if output.json {
        output.object(&json!({ "type": "latency", "latency": latencies.json() }))?;
        return Ok(());
    }
    let count = latencies.count();
    heading(
        output,
        &format!(
            "Round trips of {count} messages of {} bytes",
            transfers::PING_LEN
        ),
    )?;
    if let Some(summary) = latencies.summary() {
        output.line(&format!("  {summary}"))?;
    }
    let theme = output.theme;
    for line in latency::plot(latencies, &theme) {
        output.line(&line)?;
    }
    Ok(())
}

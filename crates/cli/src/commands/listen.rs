//! `listen`: answers pings on any number of connections, one task each on one thread.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use portolan::tasks::AsyncListener;
use portolan::{Incoming, Keepalive, Options};
use serde_json::json;
use tokio::task::JoinSet;

use super::failure::private_data_text;
use super::loopback;
use super::messages;
use super::session::{Broken, Session};
use crate::args::ListenArgs;
use crate::decode::trace::Side;
use crate::exit::Outcome;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::record::{self, Recorder};
use crate::text::{hex, without_padding};

/// Maximum number of connections served at once. Further ones are rejected with a reason.
const MAX_CONNECTIONS: usize = 4096;
/// Maximum number of accepted requests that the peer has not confirmed. The software provider gives up the oldest of
/// them long before; the kernel's devices may not.
const MAX_UNCONFIRMED: usize = 4096;
/// Private data of such a rejection.
const BUSY: &[u8] = b"too many connections";
/// Time limit for a peer to confirm its connection.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);
/// Keepalive of silent peers, because an idle connection does not notice that its peer's machine is gone. The queue
/// pair's retries end before this time limit.
const KEEPALIVE: Keepalive = Keepalive::new(Duration::from_secs(5), Duration::from_secs(30));

/// Listens until interrupted, or until the requested number of connections have been established and have ended.
///
/// # Errors
///
/// The address cannot be listened on; the output or the recording cannot be written.
pub(crate) fn run(args: &ListenArgs, output: &mut Output) -> Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    record::during(&args.record, args.trace, output, |recorder, output| {
        runtime.block_on(async {
            let listener = AsyncListener::bind(&args.address).await?;
            let interrupt = Interrupt::install()?;
            serve(args, listener, recorder, &interrupt, output).await
        })
    })
}

/// How a connection ended.
struct Ended {
    peer: Option<SocketAddr>,
    /// Whether the peer confirmed its connection.
    was_established: bool,
    pings: u64,
    outcome: Result<(), Broken>,
}

async fn serve(
    args: &ListenArgs,
    listener: AsyncListener,
    recorder: &Arc<Recorder>,
    interrupt: &Interrupt,
    output: &mut Output,
) -> Result<Outcome> {
    let options =
        messages::rping_options(&args.private_data, ACCEPT_TIMEOUT).keepalive(Some(KEEPALIVE));
    let wanted = if args.once { Some(1) } else { args.count };
    let mut sessions = JoinSet::new();
    let established = Arc::new(AtomicUsize::new(0));
    let (mut ended, mut broken) = (0_u64, 0_u64);
    let local = listener.local_addr()?;
    loopback::warn_listener(local);
    output.listening(local)?;
    while wanted.is_none_or(|wanted| ended < wanted) {
        let connected = established.load(Ordering::Relaxed);
        let free = connected < MAX_CONNECTIONS
            && sessions.len().saturating_sub(connected) < MAX_UNCONFIRMED;
        let room = wanted.is_none_or(|wanted| ended + (sessions.len() as u64) < wanted);
        tokio::select! {
            () = interrupt.raised() => break,
            incoming = listener.accept(), if room => {
                let incoming = incoming?;
                report_request(&incoming, output)?;
                if free {
                    let (options, recorder) = (options.clone(), recorder.clone());
                    sessions.spawn(session(incoming, options, recorder, established.clone()));
                } else {
                    // If the peer is gone, no answer is needed.
                    let _ = incoming.reject(BUSY);
                }
            }
            Some(session) = sessions.join_next() => {
                let session = session.context("a session panicked")?;
                // A request that was never confirmed does not count as a connection.
                if session.was_established {
                    ended += 1;
                    broken += u64::from(session.outcome.is_err());
                }
                report_end(&session, output)?;
            }
        }
    }
    Ok(if broken == 0 {
        Outcome::Good
    } else {
        Outcome::CheckFailed
    })
}

/// Accepts one connection and serves it until it ends.
async fn session(
    incoming: Incoming,
    options: Options,
    recorder: Arc<Recorder>,
    established: Arc<AtomicUsize>,
) -> Ended {
    let peer = incoming.peer_addr();
    let requested = SystemTime::now();
    let connection = match incoming.accept_async(&options).await {
        Ok(connection) => connection,
        Err(error) => {
            return Ended {
                peer,
                was_established: false,
                pings: 0,
                outcome: Err(error.into()),
            };
        }
    };
    let ends = ends(connection.get_ref());
    note(&recorder, requested, ends, "CONNECT_REQUEST");
    note(&recorder, SystemTime::now(), ends, "ESTABLISHED");
    let mut session = Session::new(connection);
    established.fetch_add(1, Ordering::Relaxed);
    let outcome = session.serve().await;
    established.fetch_sub(1, Ordering::Relaxed);
    note(&recorder, SystemTime::now(), ends, "DISCONNECTED");
    Ended {
        peer,
        was_established: true,
        pings: session.pings(),
        outcome,
    }
}

/// Both addresses of a connection.
fn ends(connection: &portolan::Connection) -> Option<(IpAddr, IpAddr)> {
    Some((connection.local_addr()?.ip(), connection.peer_addr()?.ip()))
}

fn note(recorder: &Recorder, time: SystemTime, ends: Option<(IpAddr, IpAddr)>, label: &str) {
    if let Some((local, peer)) = ends {
        recorder.event_at(time, Side::Passive, local, peer, label);
    }
}

fn report_request(incoming: &Incoming, output: &mut Output) -> Result<()> {
    let peer = peer_text(incoming.peer_addr());
    let data = incoming.private_data();
    if output.json {
        output.object(&json!({
            "type": "connect_request",
            "peer": peer,
            "private_data": hex(without_padding(data)),
        }))?;
    } else {
        output.line(&format!("{peer} connects, {}", private_data_text(data)))?;
    }
    Ok(output.flush()?)
}

fn report_end(ended: &Ended, output: &mut Output) -> Result<()> {
    let peer = peer_text(ended.peer);
    let pings = ended.pings;
    if output.json {
        output.object(&json!({
            "type": "ended",
            "peer": peer,
            "established": ended.was_established,
            "pings": pings,
            "error": ended.outcome.as_ref().err().map(ToString::to_string),
        }))?;
    } else {
        let line = match &ended.outcome {
            Ok(()) => format!("{peer} disconnected after {pings} pings"),
            Err(error) if ended.was_established => {
                format!("{peer} lost after {pings} pings: {error}")
            }
            Err(error) => format!("{peer} did not connect after all: {error}"),
        };
        output.line(&line)?;
    }
    Ok(output.flush()?)
}

fn peer_text(peer: Option<SocketAddr>) -> String {
    peer.map_or_else(
        || "a peer without IP address".to_owned(),
        |peer| peer.to_string(),
    )
}

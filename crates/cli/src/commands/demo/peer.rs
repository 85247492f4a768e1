//! The demonstration's second process: offers memory for remote reads and writes, and echoes messages.
//!
//! It reports its steps on standard output, one object per line, for the first process.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use portolan::provider::verbs::Access;
use portolan::{Cause, Listener, Options};
use serde_json::{Value, json};

use super::{MAX_MESSAGE_LEN, MEMORY_LEN, PEER_GREETING};
use crate::commands::messages::Outbox;
use crate::exit::Outcome;

/// Its listening address: a free port on loopback.
const LISTEN_AT: &str = "127.0.0.1:0";
/// Time limit for silence of the first process.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Serves one connection until it ends.
///
/// # Errors
///
/// No connection arrives in time; the connection breaks; standard output is closed.
pub(crate) fn run() -> Result<Outcome> {
    let provider = portolan::provider::software_provider()?;
    let listener = Listener::bind_on(provider, LISTEN_AT.parse()?)?;
    say(json!({ "listening": listener.local_addr()?.to_string() }))?;
    let incoming = listener.accept_within(SILENCE_MAX)?;
    say_event("CONNECT_REQUEST")?;
    let connection = incoming.accept_with(
        &Options::default()
            .receive_size(MAX_MESSAGE_LEN)
            .private_data(PEER_GREETING.to_vec()),
    )?;
    say_event("ESTABLISHED")?;
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let memory = connection.share(MEMORY_LEN, access)?;
    let mut outbox = Outbox::new(MAX_MESSAGE_LEN);
    outbox.post_or_wait(&connection, &memory.remote().to_bytes())?;
    loop {
        match connection.receive_within(SILENCE_MAX) {
            Ok(message) => outbox.post_or_wait(&connection, &message)?,
            Err(error) if matches!(error.cause, Cause::Disconnected) => break,
            Err(error) => return Err(error.into()),
        }
    }
    say_event("DISCONNECTED")?;
    Ok(Outcome::Good)
}

fn say_event(name: &str) -> Result<()> {
    let time = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    say(json!({ "event": name, "time_ns": time.as_nanos() as u64 }))
}

fn say(object: Value) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{object}")
        .and_then(|()| stdout.flush())
        .context("the first process is gone")
}

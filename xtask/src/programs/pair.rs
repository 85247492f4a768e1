//! Plays a row: starts the server and, when it is ready, the clients.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::case::{Case, Ending, Expected, Server};
use super::ready::is_ready;
use super::running::Running;
use super::side::{Side, Sides};

/// Maximum of attempts if the client starts before the server is ready.
const TRIES_MAX: u32 = 5;
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Plays a row, and returns the output of its first client. Repeats it if the client started before the server was ready.
///
/// # Errors
/// The end that failed, and its output.
pub(super) fn play(sides: &Sides<'_>, case: &Case) -> Result<String> {
    let mut tries = 1;
    loop {
        match play_once(sides, case) {
            Err(error) if tries < TRIES_MAX && was_hasty(case, &error) => tries += 1,
            played => return played,
        }
    }
}

fn was_hasty(case: &Case, error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    case.haste.is_some_and(|haste| text.contains(haste))
}

fn play_once(sides: &Sides<'_>, case: &Case) -> Result<String> {
    let deadline = Instant::now() + sides.row_time_max;
    let mut server = match &case.server {
        Some(server) => Some((serve(&sides.server, server, deadline)?, server.expected)),
        None => None,
    };
    let mut clients = (0..case.clients)
        .map(|_| Running::start(&sides.client, &case.client))
        .collect::<Result<Vec<_>>>()?;
    let is_client_last = case.expected.ending == Ending::Stays;
    if is_client_last && let Some((running, expected)) = server.take() {
        finish_server(running, expected, deadline)?;
    }
    let called = finish_clients(&mut clients, case.expected, deadline);
    let Some((mut running, expected)) = server else {
        return called;
    };
    match called {
        Ok(said) => finish_server(running, expected, deadline).map(|()| said),
        // The server may wait forever for a client that failed.
        Err(error) => bail!("{error:#}; the server: {}", running.last_words()?),
    }
}

/// Starts a server and waits until it is ready.
fn serve(side: &Side<'_>, server: &Server, deadline: Instant) -> Result<Running> {
    let mut running = Running::start(side, &server.end)?;
    let started = Instant::now();
    while !is_ready(side, server.ready, started)? {
        let ended = running.ended()?.is_some();
        if ended || Instant::now() > deadline {
            let what = if ended { "ended" } else { "is not ready" };
            bail!("the server {what}: {}", running.last_words()?);
        }
        thread::sleep(LOOK_AGAIN);
    }
    Ok(running)
}

fn finish_clients(
    clients: &mut [Running],
    expected: Expected,
    deadline: Instant,
) -> Result<String> {
    let count = clients.len();
    let ended = clients
        .iter_mut()
        .map(|client| client.must_end(expected, deadline));
    let (said, failures): (Vec<_>, Vec<_>) = ended.partition(Result::is_ok);
    let mut failures = failures.into_iter().filter_map(Result::err);
    let Some(first) = failures.next() else {
        return Ok(said.into_iter().flatten().next().unwrap_or_default());
    };
    let failed = 1 + failures.count();
    Err(match count {
        1 => first.context("the client"),
        _ => first.context(format!(
            "{failed} of {count} clients failed, the first of them"
        )),
    })
}

fn finish_server(mut running: Running, expected: Expected, deadline: Instant) -> Result<()> {
    let ended = running.must_end(expected, deadline);
    ended.map(drop).context("the server")
}

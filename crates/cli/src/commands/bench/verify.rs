//! Data that both ends look at: what is done, and what each case's line says.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use portolan::{Connector, Listener};
use serde_json::json;

use super::args::VerifyArgs;
use crate::commands::failure::explain;
use crate::commands::ping::is_peers;
use crate::exit::Outcome;
use crate::output::{Output, complain};
use crate::verify::{self, Case, End, Initiator, cases};

/// How long the peer may take to say goodbye: what was to be shown is shown by then.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn run(args: &VerifyArgs, output: &mut Output) -> Result<Outcome> {
    match args.serve {
        true => serve(args, output),
        false => ask(args, output),
    }
}

/// Serves one connection.
fn serve(args: &VerifyArgs, output: &mut Output) -> Result<Outcome> {
    let listener = Listener::bind(&args.address).map_err(explain)?;
    let address = listener.local_addr()?;
    if output.json {
        output.object(&json!({ "type": "listening", "address": address.to_string() }))?;
    } else {
        output.line(&format!("listening on {address}"))?;
    }
    output.flush()?;
    let incoming = listener.accept()?;
    let connection = incoming.accept_with(&verify::options(args.timeout));
    let mut end = End::new(connection.map_err(explain)?, args.timeout)?;
    let served = match end.serve() {
        Ok(served) => served,
        Err(broken) => {
            complain(&broken);
            return Ok(Outcome::CheckFailed);
        }
    };
    // The peer has ended it: whether it heard our answer is its matter.
    let _ = end.close(FAREWELL_TIMEOUT);
    if output.json {
        output.object(&json!({ "type": "served", "requests": served }))?;
    } else {
        output.line(&format!("{served} requests served"))?;
    }
    Ok(Outcome::Good)
}

/// Asks a peer for every case.
fn ask(args: &VerifyArgs, output: &mut Output) -> Result<Outcome> {
    let connector = Connector::new().options(verify::options(args.timeout));
    let connection = match connector.connect(&args.address) {
        Ok(connection) => connection,
        Err(error) if is_peers(&error.cause) => {
            let error = explain(error);
            complain(&format_args!("{error:#}"));
            return Ok(Outcome::CheckFailed);
        }
        Err(error) => return Err(explain(error)),
    };
    let mut end = End::new(connection, args.timeout)?;
    let cases = cases(&args.operations, &args.sizes);
    let started = Instant::now();
    let (mut right, mut wrong, mut bytes) = (0, 0, 0);
    for (number, case) in (0..).zip(&cases) {
        let started = Instant::now();
        let found = end.ask(case, number);
        let time = started.elapsed();
        let error = match &found {
            Ok(Ok(())) => None,
            Ok(Err(wrong)) => Some(wrong.to_string()),
            Err(broken) => Some(broken.to_string()),
        };
        tell(case, time, error.as_deref(), output)?;
        match found {
            Ok(Ok(())) => right += 1,
            Ok(Err(_)) => wrong += 1,
            Err(_) => break,
        }
        bytes += u64::from(case.length);
    }
    let time = started.elapsed();
    // That is over: an answer that is lost takes nothing away from it.
    let _ = end.close(FAREWELL_TIMEOUT);
    let missing = cases.len() - right - wrong;
    if output.json {
        output.object(&json!({
            "type": "summary",
            "cases": cases.len(),
            "right": right,
            "wrong": wrong,
            "missing": missing,
            "bytes": bytes,
            "ns": u64::try_from(time.as_nanos()).context("it took centuries")?,
        }))?;
    } else {
        output.line(&format!(
            "{} cases: {right} right, {wrong} wrong, {missing} without an end; {} in {time:.1?}",
            cases.len(),
            crate::text::bytes(bytes)
        ))?;
    }
    Ok(match right == cases.len() {
        true => Outcome::Good,
        false => Outcome::CheckFailed,
    })
}

fn tell(case: &Case, time: Duration, error: Option<&str>, output: &mut Output) -> Result<()> {
    let operation = case.operation.name();
    let by = match case.initiator {
        Initiator::Asker => "this end",
        Initiator::Asked => "the peer",
    };
    if output.json {
        output.object(&json!({
            "type": "case",
            "operation": operation,
            "by_peer": case.initiator == Initiator::Asked,
            "bytes": case.length,
            "offset": case.offset,
            "ms": time.as_secs_f64() * 1e3,
            "right": error.is_none(),
            "error": error,
        }))?;
    } else {
        let verdict = error.unwrap_or("right");
        let (bytes, ms) = (case.length, time.as_secs_f64() * 1e3);
        output.line(&format!(
            "{operation:<12} by {by} {bytes:>8} bytes {ms:>10.2} ms  {verdict}"
        ))?;
    }
    Ok(output.flush()?)
}

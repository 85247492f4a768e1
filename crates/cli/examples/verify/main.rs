//! Sends, writes, reads and atomics whose data are checked by both ends of a connection. The peer is another
//! `portolan-verify serve`, or a C program over libibverbs (crates/lab/c/verify.c).
//!
//! One side is the asker, the other the asked. Every request names an operation, the side that executes it, and
//! the seed of the data:
//!
//! ```text
//! the asker executes:              asker              the asked executes:  asker
//!   REQUEST ->  prepares memory                         prepares memory, REQUEST ->
//!           <-  READY, with its address                                          operation
//!   operation                                                    <- VERDICT on what it read
//!   DONE    ->  looks at its memory                     looks at its memory
//!           <-  VERDICT
//! ```
//!
//! Messages are sends of 64 bytes over the same connection, so an operation has ended when the next message
//! arrives. Before the operation the memory holds the complement of the data, so that no byte is right by
//! chance. The memory around it is checked too.
//!
//! Each line of the output is a JSON object: `listening`, `case`, `summary` or `served`. The exit code is 1 if
//! data were wrong or the peer failed.

#![forbid(unsafe_code)]

mod end;
mod message;
mod pattern;
mod plan;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use portolan::{Connector, Listener};
use serde_json::{Value, json};

use end::{End, options};
use message::{Initiator, LENGTH_MAX, Operation};
use plan::{Case, SIZES, cases};

/// Time limit for the peer's disconnect. All cases are done by then.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(5);

type Failure = Box<dyn std::error::Error>;

/// Checks the data of sends, writes, reads and atomics at both ends of a connection.
#[derive(Debug, Parser)]
enum Command {
    /// Serve one connection
    Serve {
        /// Address to listen on: ADDR:PORT
        address: String,
        #[command(flatten)]
        limit: Limit,
    },
    /// Run every case with a peer
    Ask {
        /// The peer: ADDR:PORT
        address: String,
        #[command(flatten)]
        limit: Limit,
        /// Bytes of sends, writes and reads, instead of powers of two and odd sizes up to 8 MiB
        #[arg(long, value_delimiter = ',', default_values_t = SIZES, hide_default_value = true,
              value_parser = clap::value_parser!(u32).range(1..=i64::from(LENGTH_MAX)))]
        sizes: Vec<u32>,
        /// The operations
        #[arg(
            long,
            value_delimiter = ',',
            default_value = "send,write,read,fetch-add,compare-swap"
        )]
        operations: Vec<Operation>,
    },
}

#[derive(Debug, clap::Args)]
struct Limit {
    /// Time limit of each step, in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

impl Limit {
    fn duration(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

fn main() -> ExitCode {
    let outcome = match Command::parse() {
        Command::Serve { address, limit } => serve(&address, limit.duration()),
        Command::Ask {
            address,
            limit,
            sizes,
            operations,
        } => ask(&address, limit.duration(), &cases(&operations, &sizes)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("portolan-verify: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves one connection.
fn serve(address: &str, timeout: Duration) -> Result<bool, Failure> {
    let listener = Listener::bind(address)?;
    let address = listener.local_addr()?.to_string();
    print(&json!({ "type": "listening", "address": address }))?;
    let connection = listener.accept()?.accept_with(&options(timeout))?;
    let mut end = End::new(connection, timeout)?;
    let requests = end.serve()?;
    // The peer disconnects first and need not get the answer.
    let _ = end.close(DISCONNECT_TIMEOUT);
    print(&json!({ "type": "served", "requests": requests }))?;
    Ok(true)
}

/// Runs every case with a peer. Returns whether all data were right.
fn ask(address: &str, timeout: Duration, cases: &[Case]) -> Result<bool, Failure> {
    let connection = Connector::new()
        .options(options(timeout))
        .connect(address)?;
    let mut end = End::new(connection, timeout)?;
    let started = Instant::now();
    let (mut right, mut wrong, mut bytes) = (0, 0, 0);
    for (number, case) in (0..).zip(cases) {
        let started = Instant::now();
        let found = end.ask(case, number);
        let error = match &found {
            Ok(Ok(())) => None,
            Ok(Err(wrong)) => Some(wrong.to_string()),
            Err(broken) => Some(broken.to_string()),
        };
        print(&json!({
            "type": "case",
            "operation": case.operation.name(),
            "by_peer": case.initiator == Initiator::Asked,
            "bytes": case.length,
            "offset": case.offset,
            "ms": started.elapsed().as_secs_f64() * 1e3,
            "right": error.is_none(),
            "error": error,
        }))?;
        match found {
            Ok(Ok(())) => right += 1,
            Ok(Err(_)) => wrong += 1,
            Err(_) => break,
        }
        bytes += u64::from(case.length);
    }
    let ms = started.elapsed().as_secs_f64() * 1e3;
    // All cases are done, so a lost answer does not matter.
    let _ = end.close(DISCONNECT_TIMEOUT);
    print(&json!({
        "type": "summary",
        "cases": cases.len(),
        "right": right,
        "wrong": wrong,
        "missing": cases.len() - right - wrong,
        "bytes": bytes,
        "ms": ms,
    }))?;
    Ok(right == cases.len())
}

/// Prints a line and flushes it, because tests wait for it.
fn print(object: &Value) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{object}")?;
    stdout.flush()
}

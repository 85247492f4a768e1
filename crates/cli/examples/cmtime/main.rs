//! Measures each step of many simultaneous connections, like rdmacm-utils' cmtime. `cargo xtask figures`
//! compares the two. `PORTOLAN_PROVIDER` selects the provider.

#![forbid(unsafe_code)]

mod active;
mod clock;
mod passive;
mod table;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use portolan::cm::{CmId, QueuePairPlan};
use portolan::provider::verbs::{QpCap, QpInit, QpType};
use portolan::provider::{at, towards};

use active::{Round, measure};
use passive::Server;

/// Measures each step of many simultaneous connections, like cmtime.
#[derive(Debug, Parser)]
struct Args {
    /// Address and port of a `portolan-cmtime --listen`
    #[arg(
        value_name = "DEST",
        conflicts_with = "listen",
        required_unless_present = "listen"
    )]
    destination: Option<SocketAddr>,
    /// Be the peer at this address and port, until killed
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Bind ids to this address first, as an additional step
    #[arg(long, value_name = "ADDRESS", requires = "destination")]
    source: Option<IpAddr>,
    /// Simultaneous connections
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u32).range(1..=20_000))]
    count: u32,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = match (args.listen, args.destination) {
        (Some(address), _) => listen(address),
        (None, Some(destination)) => connect(&args, destination),
        (None, None) => Ok(()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Serves until the process is killed.
fn listen(address: SocketAddr) -> Result<()> {
    let chosen = at(address)?;
    let server = Server::start(chosen.provider.clone(), address)?;
    let (local, provider) = (server.local_addr()?, chosen.provider.name());
    writeln!(io::stdout(), "listening at {local}, provider {provider}")?;
    server.run()
}

fn connect(args: &Args, destination: SocketAddr) -> Result<()> {
    let source = args.source.map(|source| SocketAddr::new(source, 0));
    let chosen = towards(source, destination)?;
    let round = Round {
        destination,
        source: args.source,
        connections: args.count,
    };
    let taken = measure(chosen.provider.clone(), round)?;
    let mut stdout = io::stdout().lock();
    for line in table::lines(args.count, chosen.provider.name(), &taken) {
        writeln!(stdout, "{line}")?;
    }
    Ok(())
}

/// Prints to standard error.
fn complain(error: &dyn std::fmt::Display) {
    eprintln!("portolan-cmtime: {error}");
}

/// What queue pairs are created with: room for one message in each direction.
fn queue_pair_plan() -> QueuePairPlan {
    QueuePairPlan {
        pd: None,
        send_cq: None,
        recv_cq: None,
        srq: None,
        init: QpInit {
            qp_type: QpType::Rc,
            cap: QpCap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: false,
        },
    }
}

/// Creates an id's queue pair. The first one also creates the completion queues, which all others share, as in
/// cmtime.
fn create_queue_pair(id: &CmId, plan: &mut QueuePairPlan) -> portolan::Result<()> {
    id.create_planned_queue_pair(plan)?;
    if plan.send_cq.is_none() {
        plan.send_cq = id.send_completions().map(|completions| completions.cq);
        plan.recv_cq = id.recv_completions().map(|completions| completions.cq);
    }
    Ok(())
}

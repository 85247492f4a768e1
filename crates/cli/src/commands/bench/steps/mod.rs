//! Steps: what each step of many connections at once takes, as rdmacm-utils' cmtime has them, so that the
//! figures stand beside each other.

mod active;
mod clock;
mod passive;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use portolan::cm::{CmId, QueuePairPlan};
use portolan::provider::traits::Provider;
use portolan::provider::verbs::{QpCap, QpInit, QpType};
use portolan::provider::{at, software_provider, towards};
use serde_json::{Value, json};

use self::active::{Round, measure};
use self::clock::Taken;
use self::passive::Server;
use super::args::StepsArgs;
use super::process::Peer;
use super::report::progress;
use super::request::Request;
use crate::output::{Output, complain};

/// What queue pairs are made from: room for one message each way.
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

/// Gives an id a queue pair. The first one's completion queues are made along with it, and are those of all
/// that follow: as they are in cmtime.
fn create_queue_pair(id: &CmId, plan: &mut QueuePairPlan) -> portolan::Result<()> {
    id.create_planned_queue_pair(plan)?;
    if plan.send_cq.is_none() {
        plan.send_cq = id.send_completions().map(|completions| completions.cq);
        plan.recv_cq = id.recv_completions().map(|completions| completions.cq);
    }
    Ok(())
}

pub(super) fn run(args: &StepsArgs, output: &mut Output) -> Result<()> {
    if let Some(address) = args.listen {
        return listen(address, output);
    }
    let Some(destination) = args.destination else {
        let mut peer = Peer::start()?;
        let told = peer.call(Request::ServeSteps)?;
        let destination = told["listening"].as_str().unwrap_or_default().parse()?;
        return rounds(args, destination, &software_provider()?, output);
    };
    let source = args.source.map(|source| SocketAddr::new(source, 0));
    let chosen = towards(source, destination)?;
    rounds(args, destination, &chosen.provider, output)
}

/// Serves until the process is ended.
fn listen(address: SocketAddr, output: &mut Output) -> Result<()> {
    let chosen = at(address)?;
    let server = Server::start(chosen.provider.clone(), address)?;
    let (local, provider) = (server.local_addr()?, chosen.provider.name());
    if output.json {
        let listening =
            json!({ "type": "listening", "address": local.to_string(), "provider": provider });
        output.object(&listening)?;
    } else {
        output.line(&format!("listening at {local}, provider {provider}"))?;
    }
    output.flush()?;
    server.run()
}

/// As the second process: serves in a thread of its own, which ends with the process.
pub(super) fn serve(provider: &Arc<dyn Provider>, at: SocketAddr) -> Result<Value> {
    let server = Server::start(provider.clone(), at)?;
    let local = server.local_addr()?;
    thread::spawn(move || {
        if let Err(error) = server.run() {
            complain(&format_args!("{error:#}"));
        }
    });
    Ok(json!({ "listening": local.to_string() }))
}

fn rounds(
    args: &StepsArgs,
    destination: SocketAddr,
    provider: &Arc<dyn Provider>,
    output: &mut Output,
) -> Result<()> {
    let round = Round {
        destination,
        source: args.source,
        connections: args.count,
    };
    for number in 1..=args.rounds {
        let taken = measure(provider.clone(), round)?;
        if output.json {
            output.object(&object(number, args.count, provider.name(), &taken))?;
        } else {
            if args.rounds > 1 {
                progress(&format!("round {number}/{}", args.rounds), output)?;
            }
            for line in table(args.count, provider.name(), &taken) {
                output.line(&line)?;
            }
        }
        output.flush()?;
    }
    Ok(())
}

fn total_us(taken: &[Taken]) -> f64 {
    taken.iter().map(|taken| taken.total_us).sum()
}

fn object(round: u32, connections: u32, provider: &str, taken: &[Taken]) -> Value {
    let rounded = |us: f64| (us * 10.0).round() / 10.0;
    let steps = taken.iter().map(|taken| {
        json!({
            "step": taken.step.name(),
            "total_us": rounded(taken.total_us),
            "max_us": rounded(taken.max_us),
            "min_us": rounded(taken.min_us),
        })
    });
    json!({
        "type": "steps",
        "round": round,
        "provider": provider,
        "connections": connections,
        "steps": steps.collect::<Vec<_>>(),
        "total_us": rounded(total_us(taken)),
    })
}

/// Cmtime's table, column by column, with a line for all steps together.
fn table(connections: u32, provider: &str, taken: &[Taken]) -> Vec<String> {
    let connections = f64::from(connections);
    let mut lines = vec![
        format!("{connections} connections at once, provider {provider}"),
        "step              total ms     max ms     min us  us / conn".to_owned(),
    ];
    lines.extend(taken.iter().map(|taken| {
        format!(
            "{:<13}: {:>11.2}{:>11.2}{:>11.2}{:>11.2}",
            taken.step.name(),
            taken.total_us / 1e3,
            taken.max_us / 1e3,
            taken.min_us,
            taken.total_us / connections,
        )
    }));
    let total = total_us(taken);
    lines.push(format!(
        "{:<13}: {:>11.2}{:>33.2}",
        "all steps",
        total / 1e3,
        total / connections
    ));
    lines
}

#[cfg(test)]
mod tests {
    use super::clock::Step;
    use super::*;

    #[test]
    fn the_table_has_cmtimes_columns_and_the_sum_of_the_steps() {
        let taken = |step, total_us| Taken {
            step,
            total_us,
            max_us: 200.0,
            min_us: 1.5,
        };
        let taken = [
            taken(Step::CreateId, 1000.0),
            taken(Step::ResolveRoute, 3500.0),
        ];
        let lines = table(100, "kernel", &taken);
        assert_eq!(
            lines[2],
            "create id    :        1.00       0.20       1.50      10.00"
        );
        assert_eq!(
            lines[3],
            "resolve route:        3.50       0.20       1.50      35.00"
        );
        assert_eq!(
            lines[4],
            "all steps    :        4.50                            45.00"
        );
        let object = object(1, 100, "kernel", &taken);
        assert_eq!(object["total_us"], 4500.0);
        assert_eq!(object["steps"][1]["step"], "resolve route");
    }
}

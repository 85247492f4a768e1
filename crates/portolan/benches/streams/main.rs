//! Streams by turns with TCP, between two processes over the loopback interface.
//!
//! `cargo bench -p portolan --features tokio --bench streams -- [ROUNDS [MEASUREMENT [TRANSPORT]]]` prints a line for
//! each measurement: the medians of both, and the median of the rounds' ratios. `cargo xtask figures sockets` runs it.
//! With a transport, `TCP` or `streams`, only that one runs, for a profiler. The measurement
//! `one-process` has both ends of the round trips in this process.

mod calls;
mod ping_pong;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The argument by which the program starts its peer.
const SERVE: &str = "serve";
/// The measurement without a peer process.
const ONE_PROCESS: &str = "one-process";

/// The two transports that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Tcp,
    Stream,
}

/// The listeners of the peer.
struct Peer {
    process: Child,
    addresses: Vec<String>,
}

impl Peer {
    fn start() -> Result<Self, Error> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(SERVE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = process.stdout.take().ok_or("its output is a pipe")?;
        BufReader::new(output).read_line(&mut line)?;
        let addresses = line.split_whitespace().map(str::to_owned).collect();
        Ok(Self { process, addresses })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The peer: answers until the end of its input.
fn serve() -> Result<(), Error> {
    let mut addresses = ping_pong::serve()?;
    addresses.extend(calls::serve()?);
    println!("{}", addresses.join(" "));
    std::io::stdout().flush()?;
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}

/// What to measure, and how often.
struct Plan {
    rounds: usize,
    /// The name of the only measurement; `None` for all.
    only: Option<String>,
    /// The name of the only transport; `None` for both.
    transport: Option<String>,
}

impl Plan {
    fn has(&self, transport: &str) -> bool {
        self.transport
            .as_deref()
            .is_none_or(|only| only == transport)
    }
}

/// Measures by turns and prints the medians.
fn compare(
    what: &str,
    plan: &Plan,
    mut measure: impl FnMut(Transport) -> Result<Duration, Error>,
) -> Result<(), Error> {
    if plan.only.as_deref().is_some_and(|only| only != what) {
        return Ok(());
    }
    let (mut tcp, mut streams, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.rounds {
        let mut times = [f64::NAN; 2];
        for (time, transport, name) in [
            (0, Transport::Tcp, "TCP"),
            (1, Transport::Stream, "streams"),
        ] {
            if plan.has(name) {
                times[time] = measure(transport)?.as_secs_f64();
            }
        }
        let [one, other] = times;
        ratios.push(other / one);
        tcp.push(one * 1e6);
        streams.push(other * 1e6);
    }
    println!(
        "{what}: streams {:.2} us, TCP {:.2} us, ratio {:.3}",
        median(streams),
        median(tcp),
        median(ratios)
    );
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median of the times of calls.
fn p50(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).filter(|each| each != "--bench");
    let first = arguments.next();
    if first.as_deref() == Some(SERVE) {
        return serve();
    }
    let plan = Plan {
        rounds: first.map_or(Ok(7), |rounds| rounds.parse())?,
        only: arguments.next(),
        transport: arguments.next(),
    };
    if plan.only.as_deref() == Some(ONE_PROCESS) {
        return ping_pong::measure(&ping_pong::serve()?, &Plan { only: None, ..plan });
    }
    let peer = Peer::start()?;
    let (pings, calls) = peer.addresses.split_at(ping_pong::LISTENERS);
    ping_pong::measure(pings, &plan)?;
    calls::measure(calls, &plan)
}

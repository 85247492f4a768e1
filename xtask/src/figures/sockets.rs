//! `cargo xtask figures sockets`: streams and socket programs by turns with TCP.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use portolan_lab::machine::ensure_installed;
use rustix::process::{Pid, Signal, kill_process_group};

use super::{Marks, document};
use crate::install::PACKAGES;
use crate::namespace::Namespace;
use crate::programs::packages::MEASURED;
use crate::test::{Workspace, cargo};

pub(super) const MARKS: Marks = Marks {
    begin: "<!-- begin: `cargo xtask figures sockets` writes this -->\n",
    end: "<!-- end: `cargo xtask figures sockets` -->\n",
};

/// What the library's program measures: its name there, the row's subject, and the goal.
const ROUND_TRIPS: [(&str, &str, &str); 4] = [
    ("Polled", "64 bytes forth and back, polled", "at most 0.25"),
    ("Blocking", "the same, reads that block", "at most 1.1"),
    (
        "Sleeping",
        "the same, poll(2) of the descriptors",
        "at most 1.1",
    ),
    ("tonic unary", "tonic, unary call, p50", "at most 0.7"),
];
/// Requests of each run of redis-benchmark.
const REQUESTS: &str = "40000";
/// Time limit of one program.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The addresses of the ends of the Ethernet link.
const WEST: &str = "10.78.0.1";
/// See [`WEST`].
const EAST: &str = "10.78.0.2";

/// Measures streams and socket programs by turns with TCP, and writes docs/performance.md.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Number of rounds, in which TCP and streams take turns.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=50))]
    rounds: u32,
    /// Seconds of each run of iperf3.
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    seconds: u32,
    /// Only print the figures.
    #[arg(long)]
    print: bool,
}

/// A measurement of both transports.
struct Row {
    subject: String,
    unit: &'static str,
    streams: f64,
    tcp: f64,
    ratio: f64,
    goal: &'static str,
}

pub(super) fn write(arguments: &Arguments) -> Result<ExitCode> {
    let workspace = Workspace::here()?;
    ensure_installed(&MEASURED)?;
    workspace.cargo(&[&["build", "--quiet", "--release"], &PACKAGES[..]].concat())?;
    let portolan = workspace.target.join("release/portolan");
    let namespaces = [(); 3].map(|()| Namespace::new(workspace.is_root));
    let [one, west, east] = namespaces;
    let (one, west, east) = (one?, west?, east?);
    link(&west, &east)?;
    let mut rows = Vec::new();
    for (place, ends, goal) in [
        ("one host", [&one, &one], "at least 2"),
        (
            "two namespaces, a veth pair",
            [&west, &east],
            "at least 0.5",
        ),
    ] {
        rows.push(throughput(&portolan, arguments, place, ends, goal)?);
    }
    rows.extend(redis(&portolan, arguments.rounds, &one)?);
    rows.extend(library(&workspace, arguments.rounds)?);
    let text = markdown(&rows, arguments.rounds);
    println!("{text}");
    if !arguments.print {
        document(&workspace, MARKS, &text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn markdown(rows: &[Row], rounds: u32) -> String {
    let mut text = format!(
        "Medians of {rounds} rounds; a ratio is streams divided by TCP, the median of the rounds':\n\n\
         | subject | unit | streams | TCP | ratio | goal |\n|---|---|---|---|---|---|\n"
    );
    for row in rows {
        text += &row.text();
        text.push('\n');
    }
    text.trim_end().to_owned()
}

impl Row {
    fn text(&self) -> String {
        let Self {
            subject,
            unit,
            streams,
            tcp,
            ratio,
            goal,
        } = self;
        format!("| {subject} | {unit} | {streams:.1} | {tcp:.1} | {ratio:.2} | {goal} |")
    }
}

/// Joins two namespaces by a veth pair.
fn link(west: &Namespace, east: &Namespace) -> Result<()> {
    let other = east.process().to_string();
    let add = ["ip", "link", "add", "eth0", "type", "veth", "peer", "name"];
    run(west.command().args(add).args(["eth0", "netns", &other]))?;
    for (namespace, address) in [(west, WEST), (east, EAST)] {
        let with_length = format!("{address}/24");
        run(namespace
            .command()
            .args(["ip", "address", "add", &with_length, "dev", "eth0"]))?;
        run(namespace
            .command()
            .args(["ip", "link", "set", "eth0", "up"]))?;
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// A transport's command line.
fn over(portolan: &Path, streams: bool, words: &[&str]) -> Vec<String> {
    let exec = [&portolan.to_string_lossy(), "exec", "--sockets", "--"].map(str::to_owned);
    let exec = exec.into_iter().filter(|_| streams);
    exec.chain(words.iter().map(|word| (*word).to_owned()))
        .collect()
}

/// A server that is killed with its children on drop.
struct Server(Child);

impl Server {
    /// Starts it, and waits until it listens for TCP.
    fn start(namespace: &Namespace, words: &[String], port: u16) -> Result<Self> {
        let mut command = namespace.command();
        command.args(words).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.process_group(0);
        let mut server = Self(command.spawn()?);
        let until = Instant::now() + PATIENCE;
        while !listens(namespace, port)? {
            ensure!(server.0.try_wait()?.is_none(), "{words:?} ended early");
            ensure!(Instant::now() < until, "{words:?} does not listen");
            thread::sleep(LOOK_AGAIN);
        }
        Ok(server)
    }
}

/// Whether a program of the namespace listens on the port. A connection would tell as well, but the server would count
/// it as a client.
fn listens(namespace: &Namespace, port: u16) -> Result<bool> {
    let port = format!(":{port:04X} ");
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(namespace.table(table))?;
        let is_listener = |line: &str| line.contains(&port) && line.contains(" 0A ");
        if text.lines().any(is_listener) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Drop for Server {
    fn drop(&mut self) {
        // They may have ended already.
        if let Some(group) = Pid::from_raw(self.0.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// Runs a client and returns its output. No connection of it may fall back to TCP.
fn client(namespace: &Namespace, words: &[String], report: Option<&Path>) -> Result<String> {
    let mut command = namespace.command();
    command.args(words).stdin(Stdio::null());
    if let Some(report) = report {
        command.env("PORTOLAN_SOCKETS_REPORT", report);
        command.env("PORTOLAN_SOCKETS_TIMEOUT_MS", "60000");
    }
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut output = child.stdout.take().context("its output is a pipe")?;
    let reader = thread::spawn(move || {
        let mut said = String::new();
        output.read_to_string(&mut said).map(|_| said)
    });
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            bail!("{words:?} did not end in time");
        }
        thread::sleep(LOOK_AGAIN);
    };
    ensure!(status.success(), "{words:?} ended with {status}");
    if let Some(report) = report {
        let text = std::fs::read_to_string(report)?;
        File::create(report)?;
        ensure!(
            text.contains("): rsockets ") && text.contains("TCP 0 connected"),
            "TCP carried the data: {text}"
        );
    }
    Ok(reader.join().expect("the reader does not panic")?)
}

/// Measures both transports by turns. More is better unless `unit` is a time.
fn turns(
    subject: String,
    unit: &'static str,
    goal: &'static str,
    rounds: u32,
    measure: &mut dyn FnMut(bool) -> Result<f64>,
) -> Result<Row> {
    let (mut tcp, mut streams, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (one, other) = (measure(false)?, measure(true)?);
        tcp.push(one);
        streams.push(other);
        ratios.push(other / one);
    }
    let [streams, tcp, ratio] = [streams, tcp, ratios].map(median);
    let row = Row {
        subject,
        unit,
        streams,
        tcp,
        ratio,
        goal,
    };
    eprintln!("{}", row.text());
    Ok(row)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// iperf3 on one host, or between two namespaces.
fn throughput(
    portolan: &Path,
    arguments: &Arguments,
    place: &str,
    [server, client_end]: [&Namespace; 2],
    goal: &'static str,
) -> Result<Row> {
    let address = match std::ptr::eq(server, client_end) {
        true => "127.0.0.1",
        false => WEST,
    };
    let report = client_end.new_folder("iperf3")?.join("report");
    let ports = [5201, 5202];
    let mut servers = Vec::new();
    for (streams, port) in [false, true].into_iter().zip(ports) {
        let words = over(
            portolan,
            streams,
            &["iperf3", "-s", "-p", &port.to_string()],
        );
        servers.push(Server::start(server, &words, port)?);
    }
    let seconds = arguments.seconds.to_string();
    let mut measure = |streams: bool| {
        let port = ports[usize::from(streams)].to_string();
        let call = ["iperf3", "-c", address, "-p", &port, "-t", &seconds, "-J"];
        let words = over(portolan, streams, &call);
        let said = client(client_end, &words, streams.then_some(&*report))?;
        let said: serde_json::Value = serde_json::from_str(&said)?;
        let rate = said["end"]["sum_received"]["bits_per_second"].as_f64();
        Ok(rate.context("iperf3 says no rate")? / 1e9)
    };
    let subject = format!("iperf3, {place}");
    turns(subject, "Gbit/s", goal, arguments.rounds, &mut measure)
}

/// redis-benchmark with 50 clients, without a pipeline.
fn redis(portolan: &Path, rounds: u32, namespace: &Namespace) -> Result<Vec<Row>> {
    let report = namespace.new_folder("redis")?.join("report");
    let ports = [6379, 6380];
    let mut servers = Vec::new();
    for (streams, port) in [false, true].into_iter().zip(ports) {
        let text = port.to_string();
        let call = ["redis-server", "--port", &text, "--save", ""];
        let words = over(portolan, streams, &call);
        servers.push(Server::start(namespace, &words, port)?);
    }
    let mut rows = Vec::new();
    for test in ["GET", "SET"] {
        let mut measure = |streams: bool| {
            let port = ports[usize::from(streams)].to_string();
            let call = [
                "redis-benchmark",
                "-p",
                &port,
                "-t",
                test,
                "-c",
                "50",
                "-n",
                REQUESTS,
                "--csv",
            ];
            let words = over(portolan, streams, &call);
            let said = client(namespace, &words, streams.then_some(&*report))?;
            let line = said.lines().find(|line| line.contains(test));
            let rate = line.and_then(|line| line.split('"').nth(3)?.parse::<f64>().ok());
            Ok(rate.with_context(|| format!("redis-benchmark says no rate: {said}"))? / 1e3)
        };
        let subject = format!("redis-benchmark {test}, 50 clients");
        rows.push(turns(
            subject,
            "1000/s",
            "at least 1.3",
            rounds,
            &mut measure,
        )?);
    }
    Ok(rows)
}

/// Round trips and calls of tonic, which a program of the library measures by turns itself.
fn library(workspace: &Workspace, rounds: u32) -> Result<Vec<Row>> {
    let output = Command::new(cargo())
        .args(["bench", "--quiet", "--package", "portolan"])
        .args(["--features", "tokio", "--bench", "streams", "--"])
        .arg(rounds.to_string())
        .current_dir(&workspace.root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "cargo ended with {}",
        output.status
    );
    let said = String::from_utf8(output.stdout)?;
    let rows: Vec<Row> = said.lines().filter_map(measured).collect();
    ensure!(rows.len() == ROUND_TRIPS.len(), "it says: {said}");
    Ok(rows)
}

/// A line of that program.
fn measured(line: &str) -> Option<Row> {
    let (what, rest) = line.split_once(": streams ")?;
    let (_, subject, goal) = ROUND_TRIPS.iter().find(|(name, ..)| *name == what)?;
    let (streams, rest) = rest.split_once(" us, TCP ")?;
    let (tcp, ratio) = rest.split_once(" us, ratio ")?;
    Some(Row {
        subject: (*subject).into(),
        unit: "µs",
        streams: streams.parse().ok()?,
        tcp: tcp.parse().ok()?,
        ratio: ratio.parse().ok()?,
        goal,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_library_s_program_becomes_a_row() {
        let row = measured("Polled: streams 1.50 us, TCP 6.00 us, ratio 0.250").unwrap();
        assert_eq!(
            row.text(),
            "| 64 bytes forth and back, polled | µs | 1.5 | 6.0 | 0.25 | at most 0.25 |"
        );
        assert!(measured("Polled: streams 1.50 us").is_none());
        assert!(measured("another: streams 1 us, TCP 6 us, ratio 1").is_none());
    }

    #[test]
    fn the_middle_value_is_the_median() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert!(median(Vec::new()).is_nan());
    }
}

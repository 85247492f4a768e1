//! The second process: executes requests from its standard input and answers on its standard output.

use std::io::{self, BufRead, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;

use anyhow::{Context, Result};
use portolan::provider::traits::Provider;
use portolan::{Connection, Listener};
use serde_json::{Value, json};

use super::request::Request;
use super::{PATIENCE, bandwidth, connect_options, latency, memory, options, relay, storm, udp};
use crate::exit::Outcome;

/// Its listening address: a free port on loopback.
const LISTEN_AT: &str = "127.0.0.1:0";

/// Serves the first process until it closes its end.
///
/// # Errors
///
/// A request failed. The first process then gets no answer and sees this process end.
pub(crate) fn run() -> Result<Outcome> {
    let mut served = Served::start()?;
    say(&json!({
        "rdma": served.rdma.local_addr()?.to_string(),
        "tcp": served.tcp.local_addr()?.to_string(),
        "udp": served.udp.local_addr()?.to_string(),
    }))?;
    let (heard, requests) = mpsc::channel();
    thread::Builder::new().spawn(move || listen_to_first(&heard))?;
    for line in requests {
        let answer = served.serve(line?.parse()?)?;
        say(&answer)?;
    }
    Ok(Outcome::Good)
}

/// Forwards the first process's requests. Ends this process when the first one is gone, whatever it is doing.
fn listen_to_first(heard: &Sender<io::Result<String>>) {
    for line in io::stdin().lock().lines() {
        if heard.send(line).is_err() {
            return;
        }
    }
    std::process::exit(0);
}

struct Served {
    provider: Arc<dyn Provider>,
    rdma: Arc<Listener>,
    tcp: TcpListener,
    udp: UdpSocket,
    kept: Option<Connection>,
}

impl Served {
    fn start() -> Result<Served> {
        let provider = portolan::provider::software_provider()?;
        let rdma = Listener::bind_on(provider.clone(), LISTEN_AT.parse()?)?;
        Ok(Served {
            provider,
            rdma: Arc::new(rdma),
            tcp: TcpListener::bind(LISTEN_AT)?,
            udp: UdpSocket::bind(LISTEN_AT)?,
            kept: None,
        })
    }

    fn serve(&mut self, request: Request) -> Result<Value> {
        Ok(match request {
            Request::Accept => {
                let incoming = self.rdma.accept_within(PATIENCE)?;
                self.kept = Some(incoming.accept_with(&options())?);
                json!({ "accepted": true })
            }
            Request::EchoUdp { from, count } => {
                self.udp.connect(from)?;
                self.udp.set_nonblocking(true)?;
                say(&json!({ "ready": true }))?;
                udp::echo(&self.udp, count)?;
                json!({ "echoed": count })
            }
            Request::EchoMessages { count } => {
                say(&json!({ "ready": true }))?;
                latency::echo(self.connection()?, count)?;
                json!({ "echoed": count })
            }
            Request::ServeConnects => {
                let (tcp, rdma) = (self.tcp.try_clone()?, self.rdma.clone());
                // They end with the process.
                thread::Builder::new().spawn(move || explain(accept_tcp(&tcp)))?;
                thread::Builder::new().spawn(move || explain(accept_rdma(&rdma)))?;
                relay::serve(&self.udp)?;
                json!({ "serving": true })
            }
            Request::StreamDatagrams { to, time } => {
                udp::stream(to, time)?;
                json!({ "streamed": true })
            }
            Request::StreamWrites { to, size, time } => {
                let connection = self.connection()?;
                bandwidth::stream_writes(connection, to, size as usize, time)?.json()
            }
            Request::ServeStorm { connections } => {
                storm::serve(&self.provider, connections, |answer| say(&answer))?
            }
            Request::TellMemory => json!({ "resident_bytes": memory::resident_bytes()? }),
        })
    }

    fn connection(&self) -> Result<&Connection> {
        self.kept.as_ref().context("no connection was accepted")
    }
}

/// Accepts TCP connections: sends a byte on each and waits for its end.
fn accept_tcp(listener: &TcpListener) -> io::Result<()> {
    loop {
        let (mut stream, _) = listener.accept()?;
        stream.write_all(&[1])?;
        stream.read_to_end(&mut Vec::new())?;
    }
}

/// Accepts RDMA connections and waits for the end of each.
fn accept_rdma(listener: &Listener) -> portolan::Result<()> {
    loop {
        let connection = listener.accept()?.accept_with(&connect_options())?;
        connection.wait_disconnected(PATIENCE)?;
    }
}

/// Tells the user why no more connections are accepted. The first process only notices that its connects time out.
fn explain<E: std::fmt::Display>(ended: std::result::Result<(), E>) {
    if let Err(error) = ended {
        eprintln!("portolan: the accepting process: {error}");
    }
}

fn say(object: &Value) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{object}")
        .and_then(|()| stdout.flush())
        .context("the first process is gone")
}

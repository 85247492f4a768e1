//! The second process, from the first one's side.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use super::request::Request;

/// Time limit for its answer, beyond the time of the requested work.
const PATIENCE: Duration = Duration::from_secs(60);

/// The second process; killed when dropped.
#[derive(Debug)]
pub(super) struct Peer {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<Value>,
    patience: Duration,
    /// Time of the requested work.
    requested: Duration,
    /// Its address for RDMA connections.
    pub(super) rdma: SocketAddr,
    /// Its address for TCP connections, when requested.
    pub(super) tcp: SocketAddr,
    /// Its address for datagrams to echo, when requested.
    pub(super) udp: SocketAddr,
}

impl Peer {
    /// Starts it and waits until it listens.
    ///
    /// # Errors
    ///
    /// It cannot start, or it ends or stays silent instead of listening.
    pub(super) fn start() -> Result<Peer> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut command = Command::new(program);
        command.arg("bench-peer");
        Peer::run(command, PATIENCE)
    }

    fn run(mut command: Command, patience: Duration) -> Result<Peer> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the second process")?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, stdout) = pipes.context("the second process has no pipes")?;
        let (told, answers) = mpsc::channel();
        let read = move || {
            let lines = BufReader::new(stdout).lines();
            for line in lines.map_while(std::io::Result::ok) {
                // Ignore invalid JSON. If this fails, the first process has stopped waiting.
                let Ok(answer) = serde_json::from_str(&line) else {
                    continue;
                };
                if told.send(answer).is_err() {
                    break;
                }
            }
        };
        let reader = thread::Builder::new().spawn(read);
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut peer = Peer {
            child,
            requests,
            answers,
            patience,
            requested: Duration::ZERO,
            rdma: nowhere,
            tcp: nowhere,
            udp: nowhere,
        };
        // From here on, an error kills the process.
        reader.context("cannot start a thread")?;
        let greeting = peer.answer()?;
        let address = |name: &str| {
            let address = greeting[name].as_str().and_then(|text| text.parse().ok());
            address.with_context(|| format!("the second process reported no {name} address"))
        };
        (peer.rdma, peer.tcp, peer.udp) = (address("rdma")?, address("tcp")?, address("udp")?);
        Ok(peer)
    }

    /// Sends a request; the caller must then wait for the answer.
    ///
    /// # Errors
    ///
    /// The process has ended.
    pub(super) fn ask(&mut self, request: Request) -> Result<()> {
        self.requested = request.time();
        writeln!(self.requests, "{request}")
            .and_then(|()| self.requests.flush())
            .with_context(|| format!("the second process is gone at: {request}"))
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    ///
    /// The process ended or stays silent.
    pub(super) fn answer(&mut self) -> Result<Value> {
        // A later answer is not one to this request.
        let limit = self.patience + std::mem::take(&mut self.requested);
        self.answers.recv_timeout(limit).map_err(|_| {
            // It has printed the error on stderr, which is ours too.
            match self.child.try_wait() {
                Ok(Some(status)) => anyhow!("the second process ended early: {status}"),
                _ => anyhow!("the second process did not answer within {limit:?}"),
            }
        })
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    ///
    /// As for [`Peer::ask`] and [`Peer::answer`].
    pub(super) fn call(&mut self, request: Request) -> Result<Value> {
        self.ask(request)?;
        self.answer()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second process that takes 2.5 s for any request.
    const SLOW: &str = r#"a=127.0.0.1:1
        echo "{\"rdma\":\"$a\",\"tcp\":\"$a\",\"udp\":\"$a\"}"
        while read request; do sleep 2.5; echo 7; done"#;

    fn slow(patience: Duration) -> Peer {
        let mut command = Command::new("sh");
        command.args(["-c", SLOW]);
        Peer::run(command, patience).unwrap()
    }

    #[test]
    fn requested_work_may_take_its_time_and_then_the_usual_patience() {
        let to = SocketAddr::from(([127, 0, 0, 1], 1));
        let stream = |ms| Request::StreamDatagrams {
            to,
            time: Duration::from_millis(ms),
        };
        let mut peer = slow(Duration::from_secs(2));
        assert_eq!(peer.call(stream(2500)).unwrap(), 7);
        // The time of one request is not that of the next.
        let error = peer.call(Request::TellMemory).unwrap_err().to_string();
        assert!(error.contains("did not answer within 2s"), "{error}");
    }
}

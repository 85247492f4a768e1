//! A peer in a separate process, which can be stopped and killed.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use portolan::cm::EventChannel;
use portolan::provider::local_memory;
use portolan::provider::traits::Provider;
use portolan::software::SoftwareConfig;
use portolan::{Access, Connection, Incoming, Listener, RemoteMemory, SharedMemory};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::*;
use crate::low::*;

/// Environment variable with the UDP port whose group to join.
const GROUP_VARIABLE: &str = "PORTOLAN_TEST_LIBRARY_GROUP";
/// Environment variable with the value of `PORTOLAN_LOCAL` for a peer.
const LOCAL_VARIABLE: &str = "PORTOLAN_LOCAL";
/// Prefix of a peer's output lines, because the test runner prints too.
const MARK: &str = "@peer ";

/// A peer process. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a process in the group of a UDP port. It has joined when this returns.
    pub(crate) fn start(port: u16) -> Self {
        Self::start_with(port, "")
    }

    /// Starts it with this `PORTOLAN_LOCAL`.
    pub(crate) fn start_with(port: u16, local: &str) -> Self {
        let test = [
            "--ignored",
            "--exact",
            "process::peer_process",
            "--nocapture",
        ];
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(test)
            .env(GROUP_VARIABLE, port.to_string())
            .env(LOCAL_VARIABLE, local)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut peer = Self {
            child,
            commands,
            answers,
        };
        assert_eq!(peer.answer(), "joined");
        peer
    }

    /// Sends a command and returns the answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// Makes it listen on a free port of the loopback address.
    pub(crate) fn listen(&mut self) -> SocketAddr {
        self.ask("listen 127.0.0.1:0").parse().unwrap()
    }

    /// Sends a command without waiting for the answer.
    pub(crate) fn tell(&mut self, command: &str) {
        let commands = self.commands.as_mut().expect("its input is still open");
        writeln!(commands, "{command}").unwrap();
    }

    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let length = self.answers.read_line(&mut line).unwrap();
            assert_ne!(length, 0, "the peer process ended");
            if let Some(at) = line.find(MARK) {
                return line[at + MARK.len()..].trim_end().to_owned();
            }
        }
    }

    /// Makes it share memory on its connection.
    pub(crate) fn share(&mut self, length: usize) -> RemoteMemory {
        let answer = self.ask(&format!("share {length}"));
        let numbers: Vec<u64> = answer
            .split(' ')
            .map(|text| text.parse().unwrap())
            .collect();
        RemoteMemory::new(numbers[0], numbers[1], numbers[2] as u32)
    }

    /// Lets it end by itself, which drops all its objects.
    pub(crate) fn end(self) {
        let mut peer = self;
        // It reads commands until end of input.
        peer.commands = None;
        assert!(peer.child.wait().unwrap().success());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it; dropping the guard resumes it.
    pub(crate) fn stop(&self) -> Stopped {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::STOP).unwrap();
        let stat = format!("/proc/{}/stat", self.child.id());
        eventually("a stopped process", || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.rsplit(')')
                .next()
                .unwrap()
                .trim_start()
                .starts_with('T')
        });
        Stopped(pid)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A stopped process.
#[derive(Debug)]
pub(crate) struct Stopped(Pid);

impl Drop for Stopped {
    fn drop(&mut self) {
        // It is a child that has not been waited for, so the process id is valid.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Objects that a peer process has made.
#[derive(Default)]
struct Deeds {
    listener: Option<Listener>,
    incoming: Vec<Incoming>,
    connections: Vec<Connection>,
    memory: Vec<SharedMemory>,
    services: Vec<Passive>,
    /// Number of descriptors before the process joined.
    descriptors_before: usize,
}

/// Number of this process's descriptors, with the one that counts.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

impl Deeds {
    fn carry_out(&mut self, provider: &std::sync::Arc<dyn Provider>, command: &str) -> String {
        let (verb, argument) = command.split_once(' ').unwrap_or((command, ""));
        let outcome = match verb {
            "listen" => self.listen(provider, argument),
            "serve" => self.serve(provider, argument),
            "take" => self
                .take()
                .map(|incoming| self.incoming.push(incoming))
                .map(ok),
            "accept" => self.accept(),
            "connect" => self.connect(provider, argument),
            "share" => self.share(argument.parse().unwrap()),
            "echo" => {
                let connection = self.connections.pop().expect("a connection to echo on");
                thread::spawn(move || echo(&connection));
                Ok("ok".into())
            }
            "await-end" => Ok(self.await_end()),
            "threads" => Ok(lasting_threads().to_string()),
            "descriptors" => Ok((descriptors() - self.descriptors_before).to_string()),
            other => panic!("unknown command: {other}"),
        };
        outcome.unwrap_or_else(|error| format!("error {} {error}", error.errno()))
    }

    fn listen(&mut self, provider: &std::sync::Arc<dyn Provider>, at: &str) -> Answer {
        let listener = Listener::bind_on(provider.clone(), at.parse().unwrap())?;
        let address = listener.local_addr()?;
        self.listener = Some(listener);
        Ok(address.to_string())
    }

    /// Offers a datagram service without answering questions.
    fn serve(&mut self, provider: &std::sync::Arc<dyn Provider>, at: &str) -> Answer {
        assert_eq!(at, "127.0.0.1:0");
        let channel = EventChannel::open_on(provider.clone())?;
        let passive = Passive::listen_on(channel, UDP);
        let address = passive.address.to_string();
        self.services.push(passive);
        Ok(address)
    }

    fn take(&mut self) -> portolan::Result<Incoming> {
        let listener = self.listener.as_ref().expect("a listener");
        listener.accept_within(PATIENCE)
    }

    fn accept(&mut self) -> Answer {
        let connection = self.take()?.accept_with(&options())?;
        self.connections.push(connection);
        Ok("ok".into())
    }

    fn connect(&mut self, provider: &std::sync::Arc<dyn Provider>, to: &str) -> Answer {
        let connection = connector_on(provider.clone()).connect_to(to.parse().unwrap())?;
        self.connections.push(connection);
        Ok("ok".into())
    }

    /// Why its connection ends.
    fn await_end(&self) -> String {
        let connection = self.connections.last().expect("a connection");
        let ended = connection.receive_within(PATIENCE).map(drop);
        format!("{:?}", ended.map_err(|error| error.cause))
    }

    fn share(&mut self, length: usize) -> Answer {
        let connection = self.connections.last().expect("a connection");
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = connection.share(length, access)?;
        let remote = memory.remote();
        self.memory.push(memory);
        Ok(format!("{} {} {}", remote.addr, remote.length, remote.rkey))
    }
}

type Answer = portolan::Result<String>;

fn ok((): ()) -> String {
    "ok".into()
}

/// Returns each message until the other side disconnects.
pub(crate) fn echo(connection: &Connection) {
    while let Ok(message) = connection.receive() {
        let Ok(answer) = connection.buffer_from(&message) else {
            return;
        };
        let Ok(sent) = connection.send(answer) else {
            return;
        };
        if sent.wait().is_err() {
            return;
        }
    }
}

#[test]
#[ignore = "runs as a separate process, started by other tests"]
fn peer_process() {
    let Ok(port) = std::env::var(GROUP_VARIABLE) else {
        return;
    };
    let mut deeds = Deeds {
        descriptors_before: descriptors(),
        ..Deeds::default()
    };
    let mut config = SoftwareConfig::default();
    config.stack.local_memory = local_memory().unwrap();
    let provider: std::sync::Arc<dyn Provider> = start_with(port.parse().unwrap(), config);
    println!("{MARK}joined");
    for command in std::io::stdin().lines() {
        let answer = deeds.carry_out(&provider, &command.unwrap());
        println!("{MARK}{answer}");
    }
}

//! Runs the command and waits for it with time limits.

#![allow(dead_code, reason = "each test program uses its part of this")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Time limit of any command, even under valgrind and on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

#[path = "../../../lab/src/own_network.rs"]
#[allow(unreachable_pub, reason = "it is public where it belongs")]
pub(crate) mod own_network;

/// The command with a plain environment, in the test's own network.
pub(crate) fn portolan() -> Command {
    own_network::enter();
    let mut command = Command::new(env!("CARGO_BIN_EXE_portolan"));
    for variable in ["LC_ALL", "LC_CTYPE", "NO_COLOR", "PORTOLAN_PROVIDER"] {
        command.env_remove(variable);
    }
    command.env("LANG", "C").stdin(Stdio::null());
    command
}

/// Runs the command with arguments to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    let child = portolan()
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    output_of(child)
}

/// The output of a child with piped output, which must end in time.
pub(crate) fn output_of(mut child: Child) -> Output {
    let stdout = child.stdout.take().map(drain);
    let stderr = child.stderr.take().map(drain);
    let status = wait(&mut child);
    let collect = |reader: Option<std::thread::JoinHandle<Vec<u8>>>| {
        reader.map_or_else(Vec::new, |reader| reader.join().unwrap())
    };
    Output {
        status,
        stdout: collect(stdout),
        stderr: collect(stderr),
    }
}

/// Copies a program that a test is going to run. A child process copies, so that this process never has the file open
/// for writing. Otherwise a process that another test starts meanwhile would inherit the open file, and running the
/// program would fail with "Text file busy".
pub(crate) fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let copied = Command::new("cp")
        .args([from.as_ref(), to.as_ref()])
        .status();
    assert!(copied.unwrap().success());
}

/// Waits until a ping has reported its first answer. Its later output remains to be read.
pub(crate) fn await_answer(pinger: &mut Child) {
    let stdout = pinger.stdout.as_mut().unwrap();
    let mut told = Vec::new();
    while !told.ends_with(b" bytes from ") {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        told.push(byte[0]);
    }
}

fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

/// Waits for a child to end. After the time limit it kills the child and panics.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("a command did not end within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends SIGINT, like Ctrl-C.
pub(crate) fn interrupt(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

/// The standard output of a finished command.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The standard error of a finished command.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The JSON objects in a command's output, one per line.
pub(crate) fn objects(text: &str) -> Vec<serde_json::Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// A command that listens on a free port of a loopback address.
pub(crate) struct Listening {
    pub(crate) child: Child,
    /// The address that it listens on.
    pub(crate) address: String,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Listening {
    /// Starts `portolan listen` on port 0 of `ip` and waits until it prints its port.
    pub(crate) fn start(ip: &str, args: &[&str]) -> Listening {
        let at = format!("{ip}:0");
        Listening::command(&[&["listen", &at], args].concat())
    }

    /// Starts a command that listens on port 0, and waits until it prints its port.
    pub(crate) fn command(args: &[&str]) -> Listening {
        let mut child = portolan()
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = match line.trim().strip_prefix("listening on ") {
            Some(address) => address.to_owned(),
            None => serde_json::from_str::<serde_json::Value>(&line)
                .ok()
                .and_then(|object| Some(object["address"].as_str()?.to_owned()))
                .unwrap_or_else(|| panic!("it does not listen: {line:?}")),
        };
        Listening {
            child,
            address,
            stdout: Some(stdout),
        }
    }

    /// Reads the output up to the line that contains `what`, within the time limit.
    pub(crate) fn read_until(&mut self, what: &'static str) -> String {
        let mut stdout = self.stdout.take().unwrap();
        let (send, receive) = channel();
        std::thread::spawn(move || {
            let mut text = String::new();
            while !text.contains(what) && stdout.read_line(&mut text).unwrap() > 0 {}
            let _ = send.send((stdout, text));
        });
        let (stdout, text) = receive.recv_timeout(PATIENCE).expect(what);
        assert!(text.contains(what), "it ended: {text}");
        self.stdout = Some(stdout);
        text
    }

    /// Waits for its end. Returns its status and its output after the first line.
    pub(crate) fn finish(mut self) -> (ExitStatus, String) {
        let reader = drain(self.stdout.take().unwrap());
        let status = wait(&mut self.child);
        (status, String::from_utf8(reader.join().unwrap()).unwrap())
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `look` returns something, within a time limit.
pub(crate) fn eventually<T>(look: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

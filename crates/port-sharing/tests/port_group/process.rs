//! Members in separate processes, which can be killed.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use portolan_port_sharing::Trust;
use rustix::process::{Pid, Signal, kill_process};

use super::harness::*;

/// Environment variable with the port whose group to join.
const PORT_VARIABLE: &str = "PORTOLAN_TEST_GROUP_PORT";
/// Environment variable with limits on open files: soft and hard.
const OPEN_FILES_VARIABLE: &str = "PORTOLAN_TEST_OPEN_FILES";
/// Environment variable with another user to trust.
const TRUST_VARIABLE: &str = "PORTOLAN_TEST_TRUST";
/// Prefix of a member's output lines, because the test runner prints too.
const MARK: &str = "@member ";

/// A member in a separate process. Killed on drop.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    pub(crate) block: u8,
}

impl Process {
    /// Starts a process that joins the group of `port`.
    pub(crate) fn spawn(port: u16) -> Self {
        Self::start(port).joined()
    }

    /// Starts a process without waiting until it has joined.
    pub(crate) fn start(port: u16) -> Self {
        Self::run(Self::command(port))
    }

    /// Starts a process with a low limit on open files.
    pub(crate) fn start_with_open_files(port: u16, soft: u64, hard: u64) -> Self {
        let mut command = Self::command(port);
        command.env(OPEN_FILES_VARIABLE, format!("{soft} {hard}"));
        Self::run(command)
    }

    /// Starts a process as another user. Needs root.
    #[allow(dead_code, reason = "used by the tests that need root")]
    pub(crate) fn start_as(port: u16, uid: u32, trusted: Option<u32>) -> Self {
        let trust = trusted.map(|trusted| (TRUST_VARIABLE, trusted.to_string()));
        Self::start_as_with(port, uid, trust)
    }

    /// Starts a process as another user, with a low limit on open files. Needs root.
    #[allow(dead_code, reason = "used by the tests that need root")]
    pub(crate) fn start_as_with_open_files(port: u16, uid: u32, soft: u64, hard: u64) -> Self {
        Self::start_as_with(
            port,
            uid,
            Some((OPEN_FILES_VARIABLE, format!("{soft} {hard}"))),
        )
    }

    /// Starts a process in a PID namespace of its own. Needs root.
    #[allow(dead_code, reason = "used by the tests that need root")]
    pub(crate) fn start_in_pid_namespace(port: u16) -> Self {
        let inner = Self::command(port);
        let mut command = Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .arg(inner.get_program())
            .args(inner.get_args())
            .env(PORT_VARIABLE, port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Self::run(command)
    }

    fn start_as_with(port: u16, uid: u32, setting: Option<(&str, String)>) -> Self {
        use std::os::unix::process::CommandExt;
        // The user may have no access to the build folder.
        static COPIES: AtomicU32 = AtomicU32::new(0);
        let copy = COPIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("portolan-group-{}-{copy}", std::process::id());
        let program = std::env::temp_dir().join(name);
        // A child process copies. If this process had the file open for writing, a process that another test starts
        // meanwhile would inherit it, and running the program would fail with "Text file busy".
        let copied = Command::new("cp")
            .args([std::env::current_exe().unwrap(), program.clone()])
            .status();
        assert!(copied.unwrap().success());
        let mut command = Self::command_of(&program, port);
        command.uid(uid).gid(uid).current_dir("/");
        command.envs(setting);
        let process = Self::run(command);
        std::fs::remove_file(&program).unwrap();
        process
    }

    fn command(port: u16) -> Command {
        Self::command_of(&std::env::current_exe().unwrap(), port)
    }

    fn command_of(program: &std::path::Path, port: u16) -> Command {
        let mut command = Command::new(program);
        command
            .args([
                "--ignored",
                "--exact",
                "process::member_process",
                "--nocapture",
            ])
            .env(PORT_VARIABLE, port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    fn run(mut command: Command) -> Self {
        let mut spawned = None;
        // A new copy cannot be executed while a child that another test is starting still has it open for
        // writing.
        eventually("a process", || match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => false,
            result => {
                spawned = Some(result.unwrap());
                true
            }
        });
        let mut child = spawned.unwrap();
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            commands,
            answers,
            block: 0,
        }
    }

    /// Waits until the process has joined.
    pub(crate) fn joined(mut self) -> Self {
        let line = self.answer();
        self.block = line.strip_prefix("joined ").expect(&line).parse().unwrap();
        self
    }

    /// Waits until the process has failed to join, and returns the reason.
    pub(crate) fn refused(mut self) -> String {
        let line = self.answer();
        line.strip_prefix("refused ").expect(&line).to_owned()
    }

    /// Clock ticks (a hundredth of a second each) of processor time used so far.
    pub(crate) fn processor_ticks(&self) -> u64 {
        // Fields 14 and 15.
        let stat = self.stat();
        let fields: Vec<_> = stat.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    pub(crate) fn is_coordinator(&mut self) -> bool {
        self.ask("coordinator?") == "true"
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    /// Sends a command.
    pub(crate) fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    /// Waits for the answer to a command.
    pub(crate) fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.answers.read_line(&mut line).unwrap(),
                0,
                "the member process ended"
            );
            // The runner's output may precede it on the same line.
            if let Some(at) = line.find(MARK) {
                return line[at + MARK.len()..].trim_end().to_owned();
            }
        }
    }

    /// Kills it (`kill -9`) and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it (`kill -STOP`) and waits until it has stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        eventually("a stop", || self.has_stopped());
    }

    /// Whether all its threads have stopped: one of them may be handling a datagram.
    fn has_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        threads.into_iter().all(|thread| {
            let path = thread.unwrap().path();
            stat_in(path.to_str().unwrap()).starts_with("T ")
        })
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The fields of proc_pid_stat(5), from the third (the state) on.
    fn stat(&self) -> String {
        stat_in(&format!("/proc/{}", self.child.id()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The part of a process's or thread's `stat` after the name.
fn stat_in(directory: &str) -> String {
    let stat = std::fs::read_to_string(format!("{directory}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().to_owned()
}

/// The main function of a member process: joins, and executes commands until end of input.
#[test]
#[ignore = "runs as a process of its own, started by other tests"]
fn member_process() {
    let variable = |name| std::env::var(name).ok();
    let port = variable(PORT_VARIABLE).expect("a port").parse().unwrap();
    if let Some(limits) = variable(OPEN_FILES_VARIABLE) {
        let (soft, hard) = limits.split_once(' ').unwrap();
        limit_open_files(soft.parse().unwrap(), hard.parse().unwrap());
    }
    let mut config = config_on(port);
    if let Some(uid) = variable(TRUST_VARIABLE) {
        config.trust = Trust::Users(vec![uid.parse().unwrap()]);
    }
    let member = match Member::join(&config) {
        Ok(member) => member,
        Err(error) => return say(&format!("refused {error}")),
    };
    say(&format!("joined {}", member.group.block()));
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (verb, rest) = line.split_once(' ').unwrap_or((&line, ""));
        match verb {
            "dead?" => say(&member.knows_dead(rest.parse().unwrap()).to_string()),
            "lost?" => {
                let lost = member.claims.lost.lock().unwrap();
                say(&lost.contains(&format!("claim {rest}")).to_string());
            }
            "coordinator?" => say(&member.is_coordinator().to_string()),
            "claim" => say(&member.claim(rest)),
            "ask" => say(&member.ask(rest)),
            // The numbers in the bodies of waiting packets.
            "read" => say(&numbers(&member.read_block())),
            "delivered" => {
                let payloads: Vec<_> = member.delivered().into_iter().map(|d| d.payload).collect();
                say(&numbers(&payloads));
            }
            "exhaust" => {
                // The next descriptor would be the lowest free one.
                let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
                limit_open_files(next, next);
                say("used up");
            }
            "churn" => {
                for _ in 0..rest.parse().unwrap() {
                    drop(Member::join(&config).unwrap());
                }
                eventually("farewells", || member.group.status().members.len() == 1);
                say("done");
            }
            "descriptors" => say(&open_descriptors().to_string()),
            "members" => say(&member.group.status().members.len().to_string()),
            "counters" => say(&format!("{:?}", member.group.status().counters)),
            "fork" => fork_a_sleeper(),
            _ => panic!("unknown command {line:?}"),
        }
    }
}

fn limit_open_files(soft: u64, hard: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit {
        current: Some(soft),
        maximum: Some(hard),
    };
    setrlimit(Resource::Nofile, limit).unwrap();
}

fn say(text: &str) {
    println!("{MARK}{text}");
}

/// The big-endian numbers in the last four bytes of packet bodies.
fn numbers(packets: &[Vec<u8>]) -> String {
    let number = |packet: &Vec<u8>| {
        let body = body(packet);
        u32::from_be_bytes(body[body.len() - 4..].try_into().unwrap()).to_string()
    };
    packets.iter().map(number).collect::<Vec<_>>().join(" ")
}

/// Forks a child that outlives this process for a while, with all inherited descriptors.
#[allow(unsafe_code, reason = "fork(2) has no safe form")]
fn fork_a_sleeper() {
    // SAFETY: the child only writes, sleeps and ends with `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        std::thread::sleep(Duration::from_secs(60));
        // SAFETY: ends the child at once, without running the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    say(&child.to_string());
}

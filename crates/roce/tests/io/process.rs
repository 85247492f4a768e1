//! Two processes on one port: the peer is another run of this program.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::address::ip_to_gid;
use portolan_provider::verbs::{RemoteAddr, SendOp, WcStatus};
use portolan_roce::io::{Stack, StackConfig};
use portolan_wire::Qpn;
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{
    ALL_RIGHTS, End, Memory, PATIENCE, Shape, config, expect, pass_in_own_process, pattern, stack,
    until,
};
use crate::ud_end::UdEnd;

/// Environment variable with the peer's port, group name, IP address, local ACK timeout and bytes of memory.
const PEER_VARIABLE: &str = "PORTOLAN_TEST_IO_PEER";
/// Prefix of the peer's output lines, because the test runner prints too.
const MARK: &str = "@peer ";
/// Tolerates a peer that other tests keep from its processor for a while.
pub const SHAPE: Shape = Shape {
    memory: 1 << 20,
    timeout: 17,
    retry_cnt: 7,
    rnr_retry: 7,
    cqe: 256,
    depth: 64,
    pieces: 4,
    in_file: true,
};

/// A peer in a separate process. Killed on drop.
pub struct Peer {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    fn start(config: &StackConfig, ip: IpAddr) -> Self {
        Self::start_with(config, ip, SHAPE)
    }

    /// Starts one with the local ACK timeout and the length of memory of `shape`.
    fn start_with(config: &StackConfig, ip: IpAddr, shape: Shape) -> Self {
        let test = [
            "--ignored",
            "--exact",
            "process::peer_process",
            "--nocapture",
        ];
        let group = &config.group;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(test)
            .env(
                PEER_VARIABLE,
                format!(
                    "{} {} {ip} {} {}",
                    group.port, group.name_prefix, shape.timeout, shape.memory
                ),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            commands,
            answers,
        }
    }

    pub fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.answers.read_line(&mut line).unwrap(),
                0,
                "the peer process ended"
            );
            if let Some(at) = line.find(MARK) {
                return line[at + MARK.len()..].trim_end().to_owned();
            }
        }
    }

    /// After SIGSTOP, waits until every thread has stopped.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
        if signal == Signal::STOP {
            until("each thread is stopped", || {
                let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
                tasks.flatten().all(|task| is_stopped(&task.path()))
            });
        }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Connects an end here with one in a new process. Also returns that end's memory.
pub fn connect(ip: &str, shape: Shape) -> (End, Peer, RemoteAddr) {
    let (_, end, peer, remote) = connect_stack(ip, shape);
    (end, peer, remote)
}

/// The same, with the stack of the end here.
pub fn connect_stack(ip: &str, shape: Shape) -> (Arc<Stack>, End, Peer, RemoteAddr) {
    let config = config();
    let ip = ip.parse().unwrap();
    let stack = stack(&config);
    let end = End::new(&stack, ip, shape);
    // A stack without a handle lives only as long as its thread is needed, so keep a handle.
    std::mem::forget(stack.clone());
    let (peer, remote) = connect_end(&config, &end, shape);
    (stack, end, peer, remote)
}

/// Whether a thread with this directory is stopped, or gone.
fn is_stopped(task: &Path) -> bool {
    let Ok(stat) = std::fs::read_to_string(task.join("stat")) else {
        return true;
    };
    // The name before the state may contain anything (proc(5)).
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| state.starts_with(['T', 'Z', 'X']))
}

/// Repeats a request of an end of `stack` until it needs no packet.
#[allow(dead_code, reason = "for the tests over memory")]
pub fn until_without_packet(stack: &Stack, end: &End, op: SendOp, len: usize) {
    until("a request needs no packet", || {
        end.post(1, op, end.sge(0, len));
        end.expect(1);
        stack.counters().carried_out_in_memory > 0
    });
}

/// Connects an end with one in a new process.
pub fn connect_end(config: &StackConfig, end: &End, shape: Shape) -> (Peer, RemoteAddr) {
    let (mut peer, qpn, remote) = start_unconnected(config, end, shape);
    end.connect(end.ip, qpn, shape);
    peer.tell(&end.qp.qpn().value().to_string());
    assert_eq!(peer.answer(), "connected");
    (peer, remote)
}

/// Starts a process whose end waits for its peer's queue pair number. Returns the end's own number and its memory.
pub fn start_unconnected(config: &StackConfig, end: &End, shape: Shape) -> (Peer, Qpn, RemoteAddr) {
    let mut peer = Peer::start_with(config, end.ip, shape);
    let theirs = peer.answer();
    let mut words = theirs.split(' ').map(|word| word.parse::<u64>().unwrap());
    let mut word = || words.next().unwrap();
    let (qpn, addr, rkey) = (word() as u32, word(), word() as u32);
    (peer, Qpn::new(qpn), RemoteAddr { addr, rkey })
}

/// Memory of the peer's program, in no memory file, that contains 0x77.
#[allow(dead_code, reason = "for the tests over memory")]
pub fn program_memory(peer: &mut Peer) -> RemoteAddr {
    peer.tell("own 100000");
    let told = peer.answer();
    let (addr, rkey) = told.split_once(' ').unwrap();
    RemoteAddr {
        addr: addr.parse().unwrap(),
        rkey: rkey.parse().unwrap(),
    }
}

#[test]
fn two_processes_exchange_messages_of_every_size() {
    for ip in ["127.0.0.1", "::1"] {
        let (end, mut peer, _) = connect(ip, SHAPE);
        for (number, size) in (0u64..).zip([1, 64, 4096, 5000, 100_000, 500_000]) {
            peer.tell(&format!("echo {size}"));
            end.receive(number, end.sge(500_000, size));
            end.memory.write(0, &pattern(number, size));
            end.post(number, SendOp::Send, end.sge(0, size));
            end.expect(number);
            end.expect(number);
            assert!(end.memory.read(500_000, size) == pattern(number, size));
            assert_eq!(peer.answer(), "echoed");
        }
    }
}

#[test]
fn a_process_that_only_spins_on_memory_can_be_written_to_and_read_from() {
    let (end, mut peer, remote) = connect("127.0.0.1", SHAPE);
    for value in 1..=50u8 {
        peer.tell(&format!("spin {value}"));
        end.memory.write(0, &[value; 9000]);
        end.post(1, SendOp::RdmaWrite(remote), end.sge(0, 9000));
        assert_eq!(peer.answer(), format!("saw {value}"));
        end.expect(1);
        end.post(2, SendOp::RdmaRead(remote), end.sge(20_000, 9000));
        end.expect(2);
        assert_eq!(end.memory.read(20_000, 9000), [value; 9000]);
    }
}

#[test]
fn a_process_killed_in_the_middle_of_a_transfer_is_noticed() {
    // 2 s in total, so that a slow but living peer is not considered dead.
    let shape = Shape {
        timeout: 16,
        ..SHAPE
    };
    let (end, mut peer, remote) = connect("127.0.0.1", shape);
    let post = |number| end.post(number, SendOp::RdmaWrite(remote), end.sge(0, 1 << 20));
    (0..32).for_each(post);
    end.expect(0);
    peer.kill();
    let deadline = Instant::now() + PATIENCE;
    let mut posted = 32;
    let failed = loop {
        assert!(Instant::now() < deadline);
        let wc = end.poll();
        if wc.status != WcStatus::Success {
            break wc;
        }
        // Through memory, all may have completed before the process died.
        post(posted);
        posted += 1;
    };
    assert_eq!(failed.status, WcStatus::RetryExcErr);
    for number in failed.wr_id + 1..posted {
        let wc = end.poll();
        assert_eq!((wc.wr_id, wc.status), (number, WcStatus::WrFlushErr));
    }
}

/// Repeatedly stops a process that writes continuously, for several times as long as its connection may be
/// without an answer.
fn stop_a_writer(verb: &str) {
    // 134 ms, and 1.1 s in total.
    let shape = Shape {
        timeout: 15,
        ..SHAPE
    };
    let (end, mut peer, remote) = connect("127.0.0.1", shape);
    let mine = end.remote(0);
    peer.tell(&format!("{verb} {}", mine.addr));
    peer.tell(&mine.rkey.to_string());
    assert_eq!(peer.answer(), "writing");
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(100));
        peer.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(2500));
        peer.signal(Signal::CONT);
    }
    end.memory.write(0, &[1; 8]);
    end.post(1, SendOp::RdmaWrite(remote), end.sge(0, 8));
    end.expect(1);
    assert_eq!(peer.answer(), "wrote");
}

#[test]
fn a_process_stopped_while_its_progress_thread_works_loses_no_connection() {
    stop_a_writer("write-waiting");
}

#[test]
fn a_process_stopped_while_it_polls_loses_no_connection() {
    stop_a_writer("write-polling");
}

#[test]
fn every_process_of_a_group_gets_its_copy_of_a_datagram() {
    const DATAGRAMS: u64 = 20;
    let config = config();
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let stack = stack(&config);
    let number = config.group.port;
    let mut peers = [Peer::start(&config, ip), Peer::start(&config, ip)];
    for peer in &mut peers {
        // Its connected queue pair is not used.
        peer.answer();
        peer.tell("5");
        assert_eq!(peer.answer(), "connected");
        peer.tell(&format!("attach {number}"));
        assert_eq!(peer.answer(), "attached");
    }
    let end = UdEnd::new(&stack, ip);
    let ah = end.ah(group_of(number));
    for wr_id in 0..DATAGRAMS {
        end.memory.write(0, &[wr_id as u8 + 1; 8]);
        end.send(wr_id, 0, 8, &*ah, Qpn::MULTICAST);
        expect(end.poll(), wr_id);
    }
    for peer in &mut peers {
        peer.tell(&format!("hear {DATAGRAMS}"));
        assert_eq!(peer.answer(), "heard");
    }
    // A killed process does not prevent another's copies.
    peers[0].kill();
    end.send(99, 0, 8, &*ah, Qpn::MULTICAST);
    peers[1].tell("hear 1");
    assert_eq!(peers[1].answer(), "heard");
}

/// The group with this number.
fn group_of(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    IpAddr::from([239, 68, high, low])
}

#[test]
fn a_dropped_stack_leaves_no_descriptor_and_no_thread() {
    pass_in_own_process("process::coming_and_going_process");
}

/// The test itself, in a separate process where nothing else opens descriptors.
#[test]
#[ignore = "runs as a separate process, started by another test"]
fn coming_and_going_process() {
    let count = |of: &str| std::fs::read_dir(of).unwrap().count();
    let counts = || (count("/proc/self/fd"), count("/proc/self/task"));
    let config = config();
    let ip = "127.0.0.1".parse().unwrap();
    // Objects made once per process remain.
    drop(stack(&config));
    until("the first stack's thread is gone", || counts().1 <= 2);
    let before = counts();
    for _ in 0..20 {
        let [a, b] = [stack(&config), stack(&config)];
        let ends = [End::new(&a, ip, SHAPE), End::new(&b, ip, SHAPE)];
        assert!(counts().0 > before.0 && counts().1 > before.1);
        drop(ends);
    }
    // A thread that has ended may be listed for a moment longer.
    until("no thread is left", || counts() == before);
}

fn say(what: &str) {
    println!("{MARK}{what}");
}

/// The main function of a peer process: connects, and executes commands until end of input.
#[test]
#[ignore = "runs as a separate process, started by other tests"]
fn peer_process() {
    let told = std::env::var(PEER_VARIABLE).expect("what the peer is to be");
    let [port, name, ip, timeout, memory] = told.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let mut config = StackConfig::default();
    config.group.port = port.parse().unwrap();
    config.group.name_prefix = name.into();
    let ip = ip.parse().unwrap();
    let shape = Shape {
        timeout: timeout.parse().unwrap(),
        memory: memory.parse().unwrap(),
        ..SHAPE
    };
    let stack = stack(&config);
    let end = End::new(&stack, ip, shape);
    let (qpn, addr, rkey) = (end.qp.qpn().value(), end.memory.addr(), end.mr.rkey());
    say(&format!("{qpn} {addr} {rkey}"));
    let mut lines = std::io::stdin().lines();
    let theirs: u32 = lines.next().unwrap().unwrap().parse().unwrap();
    end.connect(ip, Qpn::new(theirs), shape);
    say("connected");
    let datagrams = UdEnd::new(&stack, ip);
    let (mut heard, mut owned) = (0, Vec::new());
    while let Some(line) = lines.next() {
        let line = line.unwrap();
        let (verb, number) = line.split_once(' ').unwrap();
        let number: usize = number.parse().unwrap();
        match verb {
            "echo" => {
                end.receive(1, end.sge(0, number));
                end.expect(1);
                end.post(2, SendOp::Send, end.sge(0, number));
                end.expect(2);
                say("echoed");
            }
            "own" => {
                let memory = Memory::new(number);
                memory.write(0, &vec![0x77; number]);
                let mr = memory.register(&end.pd, ALL_RIGHTS);
                say(&format!("{} {}", memory.addr(), mr.rkey()));
                owned.push((mr, memory));
            }
            "owned-has" => {
                let has = |memory: &Memory| {
                    let bytes = memory.read(0, memory.len());
                    bytes.iter().any(|byte| usize::from(*byte) == number)
                };
                say(&owned.iter().any(|(_, memory)| has(memory)).to_string());
            }
            "spin" => {
                until("the write arrives", || {
                    usize::from(end.memory.byte(8999)) == number
                });
                say(&format!("saw {number}"));
            }
            "write-waiting" | "write-polling" => {
                let rkey = lines.next().unwrap().unwrap().parse().unwrap();
                let addr = number as u64;
                let next: fn(&End) -> _ = match verb {
                    "write-waiting" => End::wait,
                    _ => End::poll,
                };
                say("writing");
                // Until the other end writes here.
                while end.memory.byte(0) == 0 {
                    for wr_id in 0..16 {
                        let remote = RemoteAddr {
                            addr: addr + 8,
                            rkey,
                        };
                        let sge = end.sge(8, SHAPE.memory - 8);
                        end.post(wr_id, SendOp::RdmaWrite(remote), sge);
                    }
                    for wr_id in 0..16 {
                        expect(next(&end), wr_id);
                    }
                }
                say("wrote");
            }
            "stamp" => {
                // Writes a word of its own to the other end for as long as it lives.
                let rkey = lines.next().unwrap().unwrap().parse().unwrap();
                let (addr, len) = (number as u64, end.memory.len() / 2);
                end.memory.write(0, &vec![0xee; len]);
                say("stamping");
                loop {
                    let remote = RemoteAddr { addr, rkey };
                    end.post(0, SendOp::RdmaWrite(remote), end.sge(0, len));
                    if end.poll().status != WcStatus::Success {
                        say("refused");
                        break;
                    }
                }
            }
            "datagrams" => say(&datagrams.qp.qpn().value().to_string()),
            "attach" => {
                let group = ip_to_gid(group_of(number as u16));
                datagrams.qp.attach_mcast(&group, 0).unwrap();
                for wr_id in 0..64 {
                    datagrams.receive(wr_id, wr_id as usize * 100, 100);
                }
                say("attached");
            }
            "hear" => {
                for _ in 0..number {
                    expect(datagrams.poll(), heard as u64);
                    let bytes = datagrams.memory.read(heard * 100 + 40, 8);
                    // Each contains its number, except the one after the last.
                    assert!(number == 1 || bytes == [heard as u8 + 1; 8]);
                    heard += 1;
                }
                say("heard");
            }
            _ => panic!("what is {line}?"),
        }
    }
}

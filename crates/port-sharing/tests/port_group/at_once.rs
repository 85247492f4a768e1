//! Processes that die at the same moment, so that the coordinator cannot announce one's death to the other.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portolan_port_sharing::{Block, CoordinatorService, Datagram, GroupConfig, PortGroup, Route};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::Signal;

use super::harness::*;
use super::hostile::{HELLO, OBSERVE, call};
use super::process::Process;

/// Limit on the turns until a coordinator has nothing to do: a few per connection.
const TURNS_MAX: usize = 100;

/// A coordinator service that kills other members when a member leaves, before the coordinator can announce
/// that.
#[derive(Debug, Default)]
struct Fate {
    names: Names,
    doomed: Arc<Mutex<Vec<OwnedFd>>>,
    left: Arc<Mutex<Vec<Block>>>,
}

impl CoordinatorService for Fate {
    fn reset(&mut self) {
        self.names.reset();
    }

    fn request(&mut self, member: Block, payload: &[u8]) -> Vec<u8> {
        self.names.request(member, payload)
    }

    fn member_left(&mut self, member: Block) {
        self.names.member_left(member);
        self.left.lock().unwrap().push(member);
        self.doomed.lock().unwrap().clear();
    }

    fn route(&mut self, datagram: &Datagram<'_>) -> Route {
        self.names.route(datagram)
    }
}

/// A coordinator without a thread: it runs only when the test calls it.
struct SteppedCoordinator {
    config: GroupConfig,
    group: PortGroup,
    claims: Arc<Claims>,
    doomed: Arc<Mutex<Vec<OwnedFd>>>,
    left: Arc<Mutex<Vec<Block>>>,
}

impl SteppedCoordinator {
    fn found() -> Self {
        let config = config();
        let (claims, fate) = (Arc::new(Claims::default()), Fate::default());
        let (doomed, left) = (Arc::clone(&fate.doomed), Arc::clone(&fate.left));
        let group = PortGroup::join(config.clone(), Box::new(fate), Arc::clone(&claims) as _);
        Self {
            config,
            group: group.unwrap(),
            claims,
            doomed,
            left,
        }
    }

    fn turn(&self) {
        self.group.process(&mut |_| {});
    }

    /// Runs it until it has nothing to do and no timer.
    fn settle(&self) {
        for _ in 0..TURNS_MAX {
            let limit = self.group.next_timeout();
            if !readable(self.group.as_fd(), limit.unwrap_or_default()) && limit.is_none() {
                return;
            }
            self.turn();
        }
        let status = self.group.status();
        panic!("the coordinator still has something to do after {TURNS_MAX} turns: {status:?}");
    }

    /// A member that has been admitted but has not read its welcome.
    fn member(&self) -> OwnedFd {
        let connection = call(&self.config);
        send(&connection, &HELLO, SendFlags::empty()).unwrap();
        self.settle();
        connection
    }

    fn members(&self) -> Vec<Block> {
        let members = self.group.status().members;
        members.iter().map(|member| member.block).collect()
    }

    /// Runs it until it has this many members, including itself, and then nothing to do. A process that another
    /// test is starting holds copies of all connections for a moment.
    fn settle_with(&self, members: usize) {
        eventually("the ends of all other members", || {
            self.turn();
            self.members().len() == members
        });
        self.settle();
    }

    /// Checks that only the coordinator is left, that all others are known to be dead, and that a newcomer gets
    /// a place.
    fn is_alone_after(&self, before: &[Block]) {
        self.settle_with(1);
        let dead: Vec<_> = before
            .iter()
            .filter(|block| **block != self.group.block())
            .collect();
        let (left, deaths) = (self.left.lock().unwrap(), self.claims.dead.lock().unwrap());
        for block in dead {
            assert!(left.contains(block), "{block} left: {left:?}");
            assert!(deaths.contains(block), "{block} is dead: {deaths:?}");
        }
        drop((left, deaths));
        let _next = self.member();
        assert_eq!(self.members().len(), 2);
    }
}

/// Reads everything that waits on a connection.
fn read_all(connection: &OwnedFd) {
    let mut buffer = [0; 8192];
    while recv(connection, &mut buffer, RecvFlags::DONTWAIT).is_ok_and(|(bytes, _)| bytes > 0) {}
}

#[test]
fn members_that_die_while_another_death_is_announced_are_dead_too() {
    // The error at the other end depends on whether data were unread when a connection closed.
    for has_read in [false, true] {
        let coordinator = SteppedCoordinator::found();
        let first = coordinator.member();
        let others: Vec<_> = (0..5).map(|_| coordinator.member()).collect();
        let before = coordinator.members();
        assert_eq!(before.len(), 7);
        if has_read {
            others.iter().for_each(read_all);
        }
        *coordinator.doomed.lock().unwrap() = others;
        drop(first);
        coordinator.is_alone_after(&before);
    }
}

#[test]
fn a_member_that_dies_with_unread_answers_and_announcements_is_dead() {
    let coordinator = SteppedCoordinator::found();
    let (deaf, other) = (coordinator.member(), coordinator.member());
    let before = coordinator.members();
    let ask = [&[5, 0, 0, 0, 0, 0, 0, 0, 1][..], b"echo ", &[b'x'; 4000]].concat();
    while send(&deaf, &ask, SendFlags::empty()).is_ok() {
        coordinator.turn();
    }
    drop(other);
    coordinator.settle_with(2);
    let waits = Duration::from_millis(100);
    assert!(
        !readable(coordinator.group.as_fd(), waits),
        "the coordinator waits for a member that reads nothing"
    );
    drop(deaf);
    coordinator.is_alone_after(&before);
}

#[test]
fn an_observer_that_leaves_before_its_answer_leaves_nothing_behind() {
    let coordinator = SteppedCoordinator::found();
    let member = coordinator.member();
    for turns in 0..3 {
        let observer = call(&coordinator.config);
        send(&observer, &OBSERVE, SendFlags::empty()).unwrap();
        (0..turns).for_each(|_| coordinator.turn());
        drop(observer);
        coordinator.settle();
    }
    assert_eq!(coordinator.members().len(), 2);
    drop(member);
    coordinator.settle_with(1);
}

#[test]
fn a_newcomer_that_leaves_before_its_welcome_leaves_no_socket_in_use() {
    let coordinator = SteppedCoordinator::found();
    let newcomer = call(&coordinator.config);
    send(&newcomer, &HELLO, SendFlags::empty()).unwrap();
    drop(newcomer);
    coordinator.settle();
    coordinator.settle_with(1);
    // The kernel keeps almost nothing for a block without a process.
    let [target, _] = loopbacks(coordinator.config.port);
    let sender = sender_to(target);
    for index in 1..4u32 {
        if index == u32::from(coordinator.group.block().index()) {
            continue;
        }
        for _ in 0..100 {
            sender.send(&packet(index << 16, &[0; 1000])).unwrap();
        }
    }
    let waiting = received_bytes(coordinator.config.port);
    assert!(
        waiting < 20_000,
        "{waiting} bytes are left on the port's sockets"
    );
}

/// Bytes waiting on the sockets of a port, from the kernel's table.
fn received_bytes(port: u16) -> u64 {
    let table = std::fs::read_to_string("/proc/net/udp").unwrap();
    let lines = table.lines().skip(1).map(str::split_whitespace);
    let queues = lines.filter_map(|mut fields| {
        let local = fields.nth(1)?;
        let (_, received) = fields.nth(2)?.split_once(':')?;
        let is_ours = local.ends_with(&format!(":{port:04X}"));
        is_ours.then(|| u64::from_str_radix(received, 16).unwrap())
    });
    queues.sum()
}

#[test]
fn processes_killed_at_once_leave_an_idle_coordinator_alone() {
    const ROUNDS: usize = 10;
    const KILLED: usize = 6;
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    assert!(coordinator.is_coordinator());
    for round in 0..ROUNDS {
        let starting: Vec<_> = (0..KILLED).map(|_| Process::start(config.port)).collect();
        let mut processes: Vec<_> = starting.into_iter().map(Process::joined).collect();
        let names: Vec<_> = (0..KILLED).map(|n| format!("claim name{n}")).collect();
        for (process, claim) in processes.iter_mut().zip(&names) {
            eventually(claim, || process.ask(claim) == "yours");
        }
        // In every other round some are stopped and have not read the announcements about the others.
        for process in processes.iter().take(round % 2 * KILLED / 2) {
            process.stop();
        }
        for process in &processes {
            process.signal(Signal::KILL);
        }
        drop(processes);
        eventually("their ends", || coordinator.ask("members") == "1");
    }
    let (ticks, since) = (coordinator.processor_ticks(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let ticks = coordinator.processor_ticks() - ticks;
    // This harness's own thread wakes up every 5 ms.
    assert!(ticks < 20, "{ticks} ticks in {:?}", since.elapsed());
}

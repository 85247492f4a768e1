//! Killed processes.

use std::time::{Duration, Instant};

use portolan_port_sharing::GroupConfig;
use portolan_provider::Cause;
use rustix::process::{Pid, Signal, kill_process};

use super::harness::*;
use super::process::Process;

/// A sleeping child forked by a process; killed on drop.
struct Sleeper(Pid);

impl Sleeper {
    fn forked_by(process: &mut Process) -> Self {
        let number = process.ask("fork").parse().unwrap();
        Self(Pid::from_raw(number).unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = kill_process(self.0, Signal::KILL);
    }
}

/// Sends numbered packets to queue pairs of a block.
struct Stream {
    socket: std::net::UdpSocket,
    qpn: u32,
    sent: u32,
}

impl Stream {
    fn to(port: u16, block: u8) -> Self {
        let [target, _] = loopbacks(port);
        Self {
            socket: sender_to(target),
            qpn: u32::from(block) << 16 | 0x1234,
            sent: 0,
        }
    }

    fn send(&mut self) {
        self.socket
            .send(&packet(self.qpn, &self.sent.to_be_bytes()))
            .unwrap();
        self.sent += 1;
    }

    /// The numbers that should have been received.
    fn expected(&self) -> String {
        (0..self.sent)
            .map(|n| n.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// Kills the coordinator while packets to the others arrive before, during and after.
fn kill_the_coordinator(processes: &mut Vec<Process>, port: u16) -> Duration {
    let coordinator = processes
        .iter_mut()
        .position(Process::is_coordinator)
        .expect("a coordinator");
    let mut streams: Vec<_> = processes
        .iter()
        .map(|p| Stream::to(port, p.block))
        .collect();
    for _ in 0..50 {
        streams.iter_mut().for_each(Stream::send);
    }
    let killed = Instant::now();
    processes[coordinator].kill();
    processes.swap_remove(coordinator);
    streams.swap_remove(coordinator);
    for _ in 0..50 {
        streams.iter_mut().for_each(Stream::send);
    }
    for process in processes.iter_mut() {
        assert_eq!(process.ask("ask echo there?"), "there?");
    }
    let took = killed.elapsed();
    for _ in 0..50 {
        streams.iter_mut().for_each(Stream::send);
    }
    for (process, stream) in processes.iter_mut().zip(&streams) {
        assert_eq!(
            process.ask("read"),
            stream.expected(),
            "block {}",
            process.block
        );
    }
    took
}

#[test]
fn survivors_of_a_killed_coordinator_miss_no_packet_and_elect_another_in_time() {
    let port = config().port;
    let mut processes: Vec<_> = (0..4).map(|_| Process::spawn(port)).collect();
    // The founder first, then each of its successors.
    while processes.len() > 1 {
        let took = kill_the_coordinator(&mut processes, port);
        assert!(took < ELECTION_MAX, "{took:?}");
        let coordinators = processes
            .iter_mut()
            .filter_map(|p| p.is_coordinator().then_some(p.block))
            .count();
        assert_eq!(coordinators, 1);
    }
    // The last one still admits newcomers.
    let newcomer = Process::spawn(port);
    assert_ne!(newcomer.block, processes[0].block);
}

#[test]
fn a_killed_member_affects_no_other_and_its_claims_and_block_become_free() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let mut member = Process::spawn(config.port);
    let mut other = Process::spawn(config.port);
    assert_eq!(member.ask("claim 7471"), "yours");
    let mut stream = Stream::to(config.port, other.block);
    for i in 0..100 {
        stream.send();
        if i == 50 {
            member.kill();
        }
    }
    assert_eq!(other.ask("read"), stream.expected());
    eventually("the coordinator's farewell", || {
        coordinator.ask("owner 7471") == "nobody"
    });
    assert_eq!(other.ask("claim 7471"), "yours");
    assert_eq!(coordinator.group.status().members.len(), 2);
}

#[test]
fn management_datagrams_are_delivered_after_the_coordinator_is_killed() {
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    let members: Vec<_> = (0..2).map(|_| Member::join(&config).unwrap()).collect();
    let [target, _] = loopbacks(config.port);
    let sender = sender_to(target);
    coordinator.kill();
    // Sent while there may be no coordinator: they wait on block 0's socket, which never closes.
    for member in &members {
        let index = member.group.block().index();
        sender.send(&packet(1, &[index, 0, 0, 0, index])).unwrap();
    }
    the_coordinator(&members);
    for member in &members {
        eventually("the waiting datagram", || !member.delivered().is_empty());
    }
}

#[test]
fn the_last_death_frees_the_port_and_the_names() {
    let config = config();
    let mut processes: Vec<_> = (0..3).map(|_| Process::spawn(config.port)).collect();
    assert!(name_exists(&config) && port_is_bound(config.port));
    for left in (0..3).rev() {
        processes[left].kill();
        if left > 0 {
            assert!(port_is_bound(config.port), "the survivors keep the port");
        }
    }
    eventually("freeing the names", || !name_exists(&config));
    eventually("freeing the port", || !port_is_bound(config.port));
    let founder = Member::join(&config).expect("a new group");
    assert!(founder.is_coordinator());
}

#[test]
fn all_processes_killed_at_once_leave_nothing() {
    let config = config();
    let mut processes: Vec<_> = (0..5).map(|_| Process::spawn(config.port)).collect();
    for process in &processes {
        process.signal(Signal::KILL);
    }
    processes.iter_mut().for_each(Process::kill);
    eventually("freeing the port", || !port_is_bound(config.port));
    assert!(!name_exists(&config));
}

#[test]
fn sixteen_processes_starting_at_once_become_one_group() {
    let config = config();
    let started: Vec<_> = (0..16).map(|_| Process::start(config.port)).collect();
    let mut processes: Vec<_> = started.into_iter().map(Process::joined).collect();
    assert_eq!(
        processes
            .iter_mut()
            .filter_map(|p| p.is_coordinator().then_some(()))
            .count(),
        1
    );
    let mut blocks: Vec<_> = processes.iter().map(|p| p.block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    assert_eq!(blocks.len(), 16);
}

#[test]
fn newcomers_are_admitted_while_coordinators_are_killed() {
    let config = config();
    let mut processes = vec![Process::spawn(config.port), Process::spawn(config.port)];
    for _ in 0..6 {
        let coordinator = processes
            .iter_mut()
            .position(Process::is_coordinator)
            .expect("a coordinator");
        let newcomers: Vec<_> = (0..2).map(|_| Process::start(config.port)).collect();
        processes[coordinator].kill();
        processes.swap_remove(coordinator);
        processes.extend(newcomers.into_iter().map(Process::joined));
        eventually("one coordinator", || {
            processes
                .iter_mut()
                .filter_map(|p| p.is_coordinator().then_some(()))
                .count()
                == 1
        });
        let mut blocks: Vec<_> = processes.iter().map(|p| p.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), processes.len(), "no block is given twice");
    }
}

#[test]
fn a_child_forked_by_the_coordinator_does_not_keep_its_place() {
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    let mut member = Process::spawn(config.port);
    let _child = Sleeper::forked_by(&mut coordinator);
    coordinator.kill();
    let killed = Instant::now();
    assert_eq!(member.ask("ask echo there?"), "there?");
    assert!(member.is_coordinator());
    let took = killed.elapsed();
    assert!(
        took < ELECTION_MAX,
        "{took:?}: the child sleeps for a minute"
    );
}

#[test]
fn a_forked_child_does_not_keep_the_port() {
    let config = config();
    let mut only = Process::spawn(config.port);
    let _child = Sleeper::forked_by(&mut only);
    only.kill();
    // The child sleeps for a minute, longer than this waits.
    eventually("freeing the port", || {
        !port_is_bound(config.port) && !name_exists(&config)
    });
}

/// A member that has not returned may be the listener that is not registered, and the sender would take a refusal as
/// final.
#[test]
fn while_members_may_return_a_new_coordinator_answers_for_none_of_them() {
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    let mut stopped = Process::spawn(config.port);
    let witness = Member::join(&config).unwrap();
    let [target, _] = loopbacks(config.port);
    let sender = sender_to(target);
    stopped.stop();
    coordinator.kill();
    // They belong to no registered member and wait on block 0's socket for the new coordinator.
    for _ in 0..20 {
        sender.send(&packet(1, &[0, 1])).unwrap();
    }
    // Requests are answered after the grace period, but the stopped process is still alive.
    assert_eq!(witness.claim("other"), "yours");
    assert!(witness.is_coordinator());
    sender.send(&packet(1, &[0, 1])).unwrap();
    eventually("the first datagrams", || {
        witness.group.status().counters.unrouted == 21
    });
    // The coordinator takes this one itself, although a member is missing.
    let local = packet(1, &[HERE, 2]);
    sender.send(&local).unwrap();
    eventually("a datagram to the coordinator itself", || {
        witness.delivered().iter().any(|got| got.payload == local)
    });
    stopped.signal(Signal::CONT);
    assert_eq!(stopped.ask("ask owner another"), "nobody");
    eventually("the end of the wait", || {
        sender.send(&packet(1, &[0, 2])).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        witness.delivered().len() > 1
    });
    let bodies: Vec<u8> = witness
        .delivered()
        .iter()
        .map(|got| body(&got.payload)[1])
        .collect();
    assert!(bodies.iter().all(|body| *body == 2), "{bodies:?}");
}

#[test]
fn a_stopped_member_keeps_its_block_through_a_change_of_coordinator() {
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    let mut stopped = Process::spawn(config.port);
    let witness = Member::join(&config).unwrap();
    assert_eq!(stopped.ask("claim 7471"), "yours");
    stopped.stop();
    coordinator.kill();
    eventually("an election", || witness.is_coordinator());
    // Requests are answered after the grace period.
    assert_eq!(witness.claim("other"), "yours");
    let newcomers: Vec<_> = (0..3).map(|_| Member::join(&config).unwrap()).collect();
    assert!(
        newcomers
            .iter()
            .all(|n| n.group.block().index() != stopped.block)
    );
    let mut stream = Stream::to(config.port, stopped.block);
    for _ in 0..20 {
        stream.send();
    }
    stopped.signal(Signal::CONT);
    assert_eq!(stopped.ask("read"), stream.expected());
    assert_eq!(stopped.ask("ask owner 7471"), stopped.block.to_string());
    assert_eq!(witness.group.status().members.len(), 5);
}

#[test]
fn a_new_owner_of_a_block_sees_no_packet_of_the_former() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let mut former = Process::spawn(config.port);
    let block = former.block;
    let mut stream = Stream::to(config.port, block);
    // Some are read, some wait in the socket when it dies, some arrive while the block is free.
    (0..20).for_each(|_| stream.send());
    former.ask("read");
    (0..20).for_each(|_| stream.send());
    former.kill();
    (0..200).for_each(|_| stream.send());
    eventually("the coordinator's farewell", || {
        coordinator.group.status().members.len() == 1
    });
    // Blocks are allocated in turn, so it takes a full round to reuse this one.
    for _ in 0..200 {
        let newcomer = Member::join(&config).unwrap();
        if newcomer.group.block().index() == block {
            assert_eq!(newcomer.read_block(), Vec::<Vec<u8>>::new());
            stream.send();
            assert_eq!(newcomer.read_block().len(), 1, "its own packets arrive");
            return;
        }
    }
    panic!("block {block} was never reused");
}

#[test]
fn a_group_whose_processes_are_all_stopped_is_not_taken_for_a_foreign_owner() {
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    let mut member = Process::spawn(config.port);
    member.stop();
    coordinator.kill();
    let hasty = GroupConfig {
        join_timeout: Duration::from_secs(1),
        ..config.clone()
    };
    let error = Member::join(&hasty).expect_err("no process can admit it");
    let Cause::GroupRefused(why) = &error.cause else {
        panic!("{error}")
    };
    assert!(why.contains("1 of them live"), "{why}");
    let named = format!("among them process {} (", member.pid());
    assert!(
        why.contains(&named) && why.ends_with(", which is stopped"),
        "{why}"
    );
    member.signal(Signal::CONT);
    let newcomer = Member::join(&config).expect("the member leads again");
    assert!(member.is_coordinator());
    assert_ne!(newcomer.group.block().index(), member.block);
}

#[test]
fn members_learn_of_a_death_and_of_no_other() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let witness = Member::join(&config).unwrap();
    let (mut killed, mut alive) = (Process::spawn(config.port), Process::spawn(config.port));
    killed.kill();
    for member in [&coordinator, &witness] {
        eventually("the news", || member.knows_dead(killed.block));
    }
    eventually("the news", || {
        alive.ask(&format!("dead? {}", killed.block)) == "true"
    });
    for member in [&coordinator, &witness] {
        assert!(!member.knows_dead(alive.block));
        assert!(!member.knows_dead(coordinator.group.block().index()));
    }
}

#[test]
fn a_new_coordinator_announces_the_old_ones_death_to_returning_members() {
    let config = config();
    let mut old = Process::spawn(config.port);
    let members = [(); 3].map(|()| Member::join(&config).unwrap());
    let mut other = Process::spawn(config.port);
    assert!(old.is_coordinator());
    old.kill();
    for member in &members {
        eventually("the news", || member.knows_dead(old.block));
    }
    eventually("the news", || {
        other.ask(&format!("dead? {}", old.block)) == "true"
    });
    let living = members.iter().map(|m| m.group.block().index());
    for block in living.chain([other.block]) {
        assert!(members.iter().all(|member| !member.knows_dead(block)));
    }
}

#[test]
fn a_member_that_reads_nothing_for_a_while_finally_learns_of_every_death() {
    let config = config();
    let _coordinator = Member::join(&config).unwrap();
    let mut stopped = Process::spawn(config.port);
    stopped.stop();
    let killed: Vec<u8> = (0..10)
        .map(|_| {
            let mut short_lived = Process::spawn(config.port);
            short_lived.kill();
            short_lived.block
        })
        .collect();
    stopped.signal(Signal::CONT);
    for block in killed {
        eventually("the news", || {
            stopped.ask(&format!("dead? {block}")) == "true"
        });
    }
}

#[test]
fn a_member_that_dies_before_it_returns_to_a_new_coordinator_is_announced_as_dead() {
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    let mut stopped = Process::spawn(config.port);
    let members = [(); 2].map(|()| Member::join(&config).unwrap());
    stopped.stop();
    coordinator.kill();
    the_coordinator(&members);
    for member in &members {
        eventually("the announcement of the coordinator's death", || {
            member.knows_dead(coordinator.block)
        });
        assert!(
            !member.knows_dead(stopped.block),
            "it is stopped but not dead"
        );
    }
    stopped.kill();
    for member in &members {
        eventually("the announcement of the member's death", || {
            member.knows_dead(stopped.block)
        });
    }
}

#[test]
fn a_claim_of_a_stopped_owner_is_given_away_only_after_a_wait_and_the_owner_learns_of_it() {
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    let mut stopped = Process::spawn(config.port);
    let witness = Member::join(&config).unwrap();
    for name in ["kept", "lost"] {
        assert_eq!(stopped.ask(&format!("claim {name}")), "yours");
    }
    stopped.stop();
    let killed = Instant::now();
    coordinator.kill();
    // Its bound name shows that it is alive, so the coordinator waits for it.
    assert_eq!(witness.claim("lost"), "yours");
    let waited = killed.elapsed();
    assert!(waited >= Duration::from_secs(2), "only {waited:?}");
    stopped.signal(Signal::CONT);
    eventually("the news", || stopped.ask("lost? lost") == "true");
    let own = witness.group.block().to_string();
    assert_eq!(stopped.ask("ask owner lost"), own);
    assert_eq!(stopped.ask("ask owner kept"), stopped.block.to_string());
    assert_eq!(stopped.ask("lost? kept"), "false");
}

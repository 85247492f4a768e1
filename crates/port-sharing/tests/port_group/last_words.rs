//! Datagrams that a process sent before its death are delivered before the announcement of its death.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use portolan_port_sharing::{Block, GroupConfig, MemberService, PortGroup};

use super::harness::*;
use super::process::Process;

/// A delivery to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Came {
    Datagram,
    Death(u8),
}

/// A member without registrations that records deliveries in order.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<Came>>);

impl Notes {
    fn add(&self, came: Came) {
        self.0.lock().unwrap().push(came);
    }

    fn all(&self) -> Vec<Came> {
        self.0.lock().unwrap().clone()
    }
}

impl MemberService for Notes {
    fn replay(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn replayed(&self, _: &[u8], _: &[u8]) {}

    fn report(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn peer_death(&self, blocks: &[Block]) {
        blocks
            .iter()
            .for_each(|block| self.add(Came::Death(block.index())));
    }
}

/// A member without a thread: it runs only when the test calls it.
struct Still {
    group: PortGroup,
    notes: Arc<Notes>,
}

impl Still {
    fn join(config: &GroupConfig) -> Self {
        let notes = Arc::new(Notes::default());
        let group = PortGroup::join(
            config.clone(),
            Box::new(Names::default()),
            Arc::clone(&notes) as _,
        );
        let group = group.unwrap();
        Self { group, notes }
    }

    fn process(&self) {
        self.group.process(&mut |_| self.notes.add(Came::Datagram));
    }

    fn knows_dead(&self, block: u8) -> bool {
        self.notes.all().contains(&Came::Death(block))
    }

    /// Deliveries, without the deaths of others than `block`: a new coordinator takes every process it does not
    /// find for dead.
    fn came(&self, block: u8) -> Vec<Came> {
        let mut came = self.notes.all();
        came.retain(|came| match came {
            Came::Datagram => true,
            Came::Death(dead) => *dead == block,
        });
        came
    }

    /// Sends it management datagrams as any process of the host could.
    fn is_sent(&self, config: &GroupConfig, count: usize) {
        let index = self.group.block().index();
        let [target, _] = loopbacks(config.port);
        let sender = sender_to(target);
        for _ in 0..count {
            sender.send(&packet(1, &[index, 0, 0, 0, index])).unwrap();
        }
    }
}

/// Stops the coordinator, sends it a datagram for each member, then kills it.
fn coordinator_dies_with_datagrams_unread(
    config: &GroupConfig,
    coordinator: &mut Process,
    members: &[Still],
) {
    coordinator.stop();
    for member in members {
        member.is_sent(config, 1);
    }
    coordinator.kill();
}

#[test]
fn a_new_coordinator_gets_the_old_ones_unread_datagrams_before_its_death() {
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    let members = [Still::join(&config)];
    coordinator_dies_with_datagrams_unread(&config, &mut coordinator, &members);
    let [successor] = members;
    eventually("the news", || {
        successor.process();
        successor.knows_dead(coordinator.block)
    });
    let expected = [Came::Datagram, Came::Death(coordinator.block)];
    assert_eq!(successor.came(coordinator.block), expected);
}

#[test]
fn a_member_that_returns_to_a_new_coordinator_gets_pending_datagrams_before_a_death() {
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    let members = [Still::join(&config), Still::join(&config)];
    coordinator_dies_with_datagrams_unread(&config, &mut coordinator, &members);
    let [successor, other] = members;
    eventually("the announcement at the new coordinator", || {
        successor.process();
        successor.knows_dead(coordinator.block)
    });
    assert!(successor.group.status().is_coordinator);
    assert!(other.notes.all().is_empty(), "it has not run yet");
    eventually("the announcement at the other member", || {
        other.process();
        successor.process();
        other.knows_dead(coordinator.block)
    });
    let expected = [Came::Datagram, Came::Death(coordinator.block)];
    assert_eq!(other.came(coordinator.block), expected);
}

#[test]
fn datagrams_for_a_member_that_does_not_return_are_bounded_and_dropped() {
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    let mut lost = Process::spawn(config.port);
    let successor = Still::join(&config);
    lost.stop();
    coordinator.kill();
    eventually("the election", || {
        successor.process();
        successor.group.status().is_coordinator
    });
    let [target, _] = loopbacks(config.port);
    let sender = sender_to(target);
    for _ in 0..2_000 {
        sender
            .send(&packet(1, &[lost.block, 0, 0, 0, lost.block]))
            .unwrap();
        successor.process();
    }
    let unheld = successor.group.status().counters.no_member;
    assert!(unheld >= 1_000, "{unheld} of 2000 were released at once");
    eventually("the end of its time to return", || {
        successor.process();
        std::thread::sleep(Duration::from_millis(5));
        successor.group.status().counters.no_member == 2_000
    });
    lost.kill();
}

#[test]
fn the_coordinator_gets_all_that_a_member_sent_before_its_death() {
    // More than the coordinator reads in one turn.
    const COUNT: usize = 600;
    let config = config();
    let coordinator = Still::join(&config);
    let started = Process::start(config.port);
    let driven = std::sync::atomic::AtomicBool::new(false);
    let mut member = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !driven.load(std::sync::atomic::Ordering::Relaxed) {
                coordinator.process();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let member = started.joined();
        driven.store(true, std::sync::atomic::Ordering::Relaxed);
        member
    });
    coordinator.is_sent(&config, COUNT);
    member.kill();
    eventually("the news", || {
        coordinator.process();
        coordinator.knows_dead(member.block)
    });
    let came = coordinator.came(member.block);
    assert_eq!(came.len(), COUNT + 1);
    assert_eq!(came.last(), Some(&Came::Death(member.block)));
}

//! What a process sent before it died comes before the news of its death.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use portolan_port_sharing::{Block, GroupConfig, MemberService, PortGroup};

use super::harness::*;
use super::process::Process;

/// What came to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Came {
    Datagram,
    Death(u8),
}

/// A member that has nothing to register, and notes what comes in its order.
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

/// A member without a thread: it does something only when the test has it.
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

    /// What came, except the deaths of others than `block`: a new coordinator holds all that it does not find for dead.
    fn came(&self, block: u8) -> Vec<Came> {
        let mut came = self.notes.all();
        came.retain(|came| match came {
            Came::Datagram => true,
            Came::Death(dead) => *dead == block,
        });
        came
    }

    /// A management datagram for it, as any process of the host sends one.
    fn is_sent(&self, config: &GroupConfig, count: usize) {
        let index = self.group.block().index();
        let [target, _] = loopbacks(config.port);
        let sender = sender_to(target);
        for _ in 0..count {
            sender.send(&packet(1, &[index, 0, 0, 0, index])).unwrap();
        }
    }
}

/// Has the coordinator stopped, then sends it the datagram of each, then kills it.
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
fn a_new_coordinator_hears_what_the_old_one_left_unread_before_it_hears_of_its_death() {
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
fn a_member_that_comes_back_to_a_new_coordinator_hears_what_came_meanwhile_before_it_hears_of_a_death()
 {
    let config = config();
    let mut coordinator = Process::spawn(config.port);
    let members = [Still::join(&config), Still::join(&config)];
    coordinator_dies_with_datagrams_unread(&config, &mut coordinator, &members);
    let [successor, other] = members;
    eventually("the news at the new coordinator", || {
        successor.process();
        successor.knows_dead(coordinator.block)
    });
    assert!(successor.group.status().is_coordinator);
    assert!(other.notes.all().is_empty(), "it did nothing yet");
    eventually("the news at the other", || {
        other.process();
        successor.process();
        other.knows_dead(coordinator.block)
    });
    let expected = [Came::Datagram, Came::Death(coordinator.block)];
    assert_eq!(other.came(coordinator.block), expected);
}

#[test]
fn what_waits_for_a_member_that_does_not_come_back_is_given_up_and_bounded() {
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
    assert!(unheld >= 1_000, "{unheld} of 2000 were let go at once");
    eventually("the end of its time to come back", || {
        successor.process();
        std::thread::sleep(Duration::from_millis(5));
        successor.group.status().counters.no_member == 2_000
    });
    lost.kill();
}

#[test]
fn the_coordinator_hears_all_that_a_member_sent_before_it_hears_of_its_death() {
    // More than the coordinator reads in a turn.
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

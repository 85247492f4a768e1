use proptest::prelude::*;

use super::*;

const USER: u32 = 1000;

fn set<const N: usize>(blocks: [Block; N]) -> BlockSet {
    blocks.into_iter().collect()
}

fn block(index: u8) -> Block {
    Block::new(index).unwrap()
}

fn credentials(uid: u32) -> Credentials {
    Credentials { pid: 42, uid }
}

/// The registry of a group's founder, which has block 1.
fn founder(now: Instant) -> Registry {
    Registry::new(block(1), Own::certain(USER), set([]), set([]), now)
}

/// A connection that has not sent its hello.
fn connect(registry: &mut Registry, id: ConnectionId, now: Instant) {
    registry
        .connected(id, credentials(USER), &Trust::SameUser, now)
        .unwrap();
}

#[test]
fn a_newcomer_gets_a_block_and_may_ask() {
    let now = Instant::now();
    let mut registry = founder(now);
    connect(&mut registry, 20, now);
    assert_eq!(
        registry.asks(20, 1, now),
        Ask::Violation,
        "not before it has a block"
    );
    assert_eq!(registry.hello(20, VERSION, None), Hello::Newcomer);
    assert_eq!(registry.candidates().next(), Some(block(2)));
    registry.give(20, block(2));
    assert_eq!(registry.asks(20, 1, now), Ask::Answer(block(2)));
    assert_eq!(registry.connection(block(2)), Some(20));
    assert_eq!(
        registry.hello(20, VERSION, None),
        Hello::Violation,
        "once is enough"
    );
    assert_eq!(registry.closed(20, now), Some(block(2)));
    assert_eq!(registry.connection(block(2)), None);
    assert_eq!(registry.closed(20, now), None);
}

#[test]
fn a_block_just_left_is_the_last_to_be_reused() {
    let now = Instant::now();
    let mut registry = founder(now);
    connect(&mut registry, 20, now);
    registry.give(20, block(2));
    registry.closed(20, now);
    let candidates: Vec<_> = registry.candidates().collect();
    assert_eq!(candidates.len(), 126);
    assert_eq!(candidates.first(), Some(&block(3)));
    assert_eq!(candidates.last(), Some(&block(2)));
}

#[test]
fn an_untrusted_user_and_another_version_are_refused() {
    let now = Instant::now();
    let mut registry = founder(now);
    let refused = registry.connected(20, credentials(1001), &Trust::SameUser, now);
    assert_eq!(
        refused,
        Err(Hello::Refuse(Refusal::NotTrusted { uid: 1001 }))
    );
    connect(&mut registry, 21, now);
    let hello = registry.hello(21, VERSION + 1, None);
    assert_eq!(
        hello,
        Hello::Refuse(Refusal::Version {
            coordinator: VERSION
        })
    );
}

#[test]
fn strangers_are_limited_in_number_and_time() {
    let now = Instant::now();
    let mut registry = founder(now);
    let ids = 20..20 + STRANGERS_MAX as u64;
    ids.clone().for_each(|id| connect(&mut registry, id, now));
    let one_more = registry.connected(1000, credentials(USER), &Trust::SameUser, now);
    assert!(matches!(one_more, Err(Hello::Later(_))));
    assert_eq!(registry.next_timeout(now), Some(now + HELLO_TIMEOUT));
    assert!(
        registry
            .overdue(now + HELLO_TIMEOUT - Duration::from_millis(1))
            .is_empty()
    );
    let late = now + HELLO_TIMEOUT;
    assert_eq!(registry.overdue(late), ids.collect::<Vec<_>>());
    for id in registry.overdue(late) {
        registry.closed(id, late);
    }
    connect(&mut registry, 1000, late);
}

#[test]
fn a_new_coordinator_answers_when_all_members_have_registered_again() {
    let now = Instant::now();
    let mut registry = Registry::new(
        block(1),
        Own::certain(USER),
        set([block(1), block(5)]),
        set([]),
        now,
    );
    connect(&mut registry, 20, now);
    assert_eq!(
        registry.hello(20, VERSION, Some(block(5))),
        Hello::Returns(block(5))
    );
    registry.admit(20, block(5));
    assert!(matches!(registry.asks(20, 1, now), Ask::Later(_)));
    registry.replayed(block(5));
    assert!(
        matches!(registry.asks(20, 1, now), Ask::Later(_)),
        "its own registrations are missing"
    );
    registry.replayed(block(1));
    assert_eq!(registry.asks(20, 1, now), Ask::Answer(block(5)));
}

#[test]
fn a_request_is_not_answered_before_an_earlier_one_of_its_member_that_was_postponed() {
    let now = Instant::now();
    let blocks = set([block(1), block(5)]);
    let mut registry = Registry::new(block(1), Own::certain(USER), blocks, set([]), now);
    for (id, member) in [(20, block(6)), (21, block(7))] {
        connect(&mut registry, id, now);
        registry.give(id, member);
    }
    registry.replayed(block(1));
    assert!(matches!(registry.asks(20, 3, now), Ask::Later(_)));
    // The grace period ends.
    registry.replayed(block(5));
    assert!(matches!(registry.asks(20, 4, now), Ask::Later(_)));
    assert_eq!(registry.asks(21, 9, now), Ask::Answer(block(7)));
    // The member repeats them in order, with a new one behind them.
    assert_eq!(registry.asks(20, 3, now), Ask::Answer(block(6)));
    assert_eq!(registry.asks(20, 4, now), Ask::Answer(block(6)));
    assert_eq!(registry.asks(20, 5, now), Ask::Answer(block(6)));
}

#[test]
fn a_postponed_request_that_its_member_gives_up_holds_back_no_later_one_for_long() {
    let now = Instant::now();
    let blocks = set([block(1), block(5)]);
    let mut registry = Registry::new(block(1), Own::certain(USER), blocks, set([]), now);
    connect(&mut registry, 20, now);
    registry.give(20, block(6));
    registry.replayed(block(1));
    assert!(matches!(registry.asks(20, 3, now), Ask::Later(_)));
    registry.replayed(block(5));
    assert!(matches!(registry.asks(20, 4, now), Ask::Later(_)));
    // It repeats the second one only.
    assert_eq!(registry.asks(20, 4, now), Ask::Answer(block(6)));
    assert_eq!(registry.asks(20, 5, now), Ask::Answer(block(6)));
}

#[test]
fn a_new_coordinator_does_not_wait_forever_for_missing_members() {
    let now = Instant::now();
    let mut registry = Registry::new(
        block(1),
        Own::certain(USER),
        set([block(1), block(5)]),
        set([]),
        now,
    );
    connect(&mut registry, 20, now);
    registry.give(20, block(6));
    registry.replayed(block(1));
    assert_eq!(registry.grace(now), Some(REPLAY_GRACE));
    let late = now + REPLAY_GRACE;
    assert!(matches!(
        registry.asks(20, 1, late - Duration::from_millis(1)),
        Ask::Later(_)
    ));
    assert_eq!(registry.asks(20, 1, late), Ask::Answer(block(6)));
    // The missing member may listen to a service without a registered listener.
    assert!(registry.is_incomplete(late));
    assert!(!registry.is_incomplete(now + RETURN_TIME_MAX));
    // A member that returns later is still accepted.
    connect(&mut registry, 21, late);
    assert_eq!(
        registry.hello(21, VERSION, Some(block(5))),
        Hello::Returns(block(5))
    );
    registry.admit(21, block(5));
    registry.replayed(block(5));
    assert!(!registry.is_incomplete(late));
}

#[test]
fn a_member_that_disconnects_before_it_registered_again_is_waited_for_until_it_is_dead() {
    let now = Instant::now();
    let mut registry = Registry::new(block(1), Own::certain(USER), set([block(5)]), set([]), now);
    connect(&mut registry, 20, now);
    registry.admit(20, block(5));
    registry.closed(20, now);
    assert!(registry.grace(now).is_some() && registry.is_incomplete(now));
    assert_eq!(registry.take_retiring(now), [block(5)]);
    registry.retired(block(5));
    assert_eq!(registry.grace(now), None);
    assert!(!registry.is_incomplete(now));
}

#[test]
fn a_new_coordinator_detects_a_member_that_died_before_it_returned_and_does_not_wait_for_it() {
    let now = Instant::now();
    let mut registry = Registry::new(
        block(1),
        Own::certain(USER),
        set([block(1), block(5)]),
        set([]),
        now,
    );
    registry.replayed(block(1));
    assert_eq!(registry.take_retiring(now), [block(5)]);
    assert_eq!(registry.next_timeout(now), Some(now + RETIRE_INTERVAL));
    assert!(registry.grace(now).is_some(), "its name is still bound");
    registry.retired(block(5));
    assert_eq!(registry.dead(), set([block(5)]));
    assert_eq!(registry.grace(now), None);
    assert!(!registry.is_incomplete(now));
    assert_eq!(registry.next_timeout(now), None);
}

#[test]
fn a_connected_block_cannot_be_reclaimed_twice() {
    let now = Instant::now();
    let mut registry = founder(now);
    connect(&mut registry, 20, now);
    registry.give(20, block(2));
    connect(&mut registry, 21, now);
    assert!(matches!(
        registry.hello(21, VERSION, Some(block(2))),
        Hello::Later(_)
    ));
    let own = registry.hello(21, VERSION, Some(block(1)));
    assert_eq!(own, Hello::Refuse(Refusal::BlockTaken { block: block(1) }));
}

#[test]
fn a_block_is_retired_once_its_name_is_free() {
    let now = Instant::now();
    let mut registry = founder(now);
    connect(&mut registry, 20, now);
    registry.give(20, block(2));
    assert!(registry.take_retiring(now).is_empty());
    registry.closed(20, now);
    assert_eq!(registry.take_retiring(now), [block(2)]);
    assert!(
        registry.take_retiring(now).is_empty(),
        "not repeated at once"
    );
    assert_eq!(registry.next_timeout(now), Some(now + RETIRE_INTERVAL));
    assert_eq!(registry.take_retiring(now + RETIRE_INTERVAL), [block(2)]);
    registry.retired(block(2));
    assert_eq!(registry.next_timeout(now), None);
}

#[test]
fn only_the_name_of_a_departed_block_is_looked_at_and_only_once_in_an_interval() {
    let now = Instant::now();
    let later = now + RETIRE_INTERVAL;
    let mut registry = founder(now);
    assert_eq!(registry.absent(block(77), now), Absent::Dead, "never given");
    assert_eq!(registry.absent(block(1), now), Absent::Alive, "its own");
    connect(&mut registry, 20, now);
    registry.give(20, block(2));
    assert_eq!(registry.absent(block(2), now), Absent::Alive);
    registry.closed(20, now);
    assert_eq!(registry.absent(block(2), now), Absent::Unknown);
    registry.looked(block(2), false, now);
    assert_eq!(registry.absent(block(2), now), Absent::Alive);
    assert_eq!(registry.absent(block(2), later), Absent::Unknown);
    registry.looked(block(2), true, later);
    assert_eq!(registry.absent(block(2), later), Absent::Dead);
    // It returns and leaves again.
    connect(&mut registry, 21, later);
    registry.admit(21, block(2));
    assert_eq!(registry.absent(block(2), later), Absent::Alive);
    registry.closed(21, later);
    assert_eq!(registry.absent(block(2), later), Absent::Unknown);
    registry.retired(block(2));
    assert_eq!(registry.absent(block(2), later), Absent::Dead);
}

#[test]
fn a_new_coordinator_stops_waiting_once_the_last_member_has_registered_or_is_dead() {
    let now = Instant::now();
    let mut registry = Registry::new(
        block(1),
        Own::certain(USER),
        set([block(5), block(6)]),
        set([]),
        now,
    );
    connect(&mut registry, 20, now);
    registry.admit(20, block(5));
    registry.replayed(block(5));
    assert!(matches!(registry.asks(20, 1, now), Ask::Later(_)));
    registry.retired(block(6));
    assert_eq!(registry.asks(20, 1, now), Ask::Answer(block(5)));
}

/// An event at a coordinator.
#[derive(Clone, Debug)]
enum Happening {
    Connect {
        uid: u32,
    },
    Hello {
        connection: usize,
        version: u8,
        rejoin: Option<u8>,
    },
    Replayed {
        connection: usize,
    },
    Ask {
        connection: usize,
    },
    Close {
        connection: usize,
    },
    Pass {
        ms: u64,
    },
}

fn happening() -> impl Strategy<Value = Happening> {
    let connection = 0..24usize;
    prop_oneof![
        4 => (USER..USER + 2).prop_map(|uid| Happening::Connect { uid }),
        4 => (connection.clone(), 0..3u8, proptest::option::of(0..8u8)).prop_map(
            |(connection, version, rejoin)| Happening::Hello { connection, version, rejoin }
        ),
        1 => connection.clone().prop_map(|connection| Happening::Replayed { connection }),
        2 => connection.clone().prop_map(|connection| Happening::Ask { connection }),
        2 => connection.prop_map(|connection| Happening::Close { connection }),
        1 => (0..1500u64).prop_map(|ms| Happening::Pass { ms }),
    ]
}

proptest! {
    #[test]
    fn in_any_sequence_of_events_each_block_has_one_connection_and_asks_for_itself(
        happenings in proptest::collection::vec(happening(), 0..200)
    ) {
        let mut now = Instant::now();
        let own = block(3);
        let mut registry = Registry::new(own, Own::certain(USER), set([own, block(4), block(5)]), set([]), now);
        // The block of each connection, if it has one.
        let mut model: Vec<(ConnectionId, Option<Block>)> = Vec::new();
        let mut next_id = 16;
        for happening in happenings {
            match happening {
                Happening::Connect { uid } => {
                    next_id += 1;
                    let strangers = model.iter().filter(|(_, b)| b.is_none()).count();
                    let connected =
                        registry.connected(next_id, credentials(uid), &Trust::SameUser, now);
                    prop_assert_eq!(connected.is_ok(), uid == USER && strangers < STRANGERS_MAX);
                    if connected.is_ok() {
                        model.push((next_id, None));
                    }
                }
                Happening::Hello { connection, version, rejoin } => {
                    let Some((id, has)) = model.get_mut(connection) else { continue };
                    let rejoin = rejoin.and_then(Block::new);
                    match registry.hello(*id, version, rejoin) {
                        Hello::Newcomer => {
                            prop_assert!(has.is_none() && version == VERSION);
                            let given = registry.candidates().next().unwrap();
                            registry.give(*id, given);
                            *has = Some(given);
                        }
                        Hello::Returns(block) => {
                            prop_assert!(has.is_none() && Some(block) == rejoin);
                            registry.admit(*id, block);
                            *has = Some(block);
                        }
                        Hello::Violation => prop_assert!(has.is_some()),
                        Hello::Later(_) | Hello::Refuse(_) => prop_assert!(has.is_none()),
                    }
                }
                Happening::Replayed { connection } => {
                    let Some((_, Some(block))) = model.get(connection) else { continue };
                    registry.replayed(*block);
                }
                Happening::Ask { connection } => {
                    let Some((id, has)) = model.get(connection) else { continue };
                    match registry.asks(*id, 1, now) {
                        Ask::Answer(block) => prop_assert_eq!(Some(block), *has),
                        Ask::Later(after) => {
                            prop_assert!(has.is_some() && after <= REPLAY_GRACE);
                            prop_assert!(registry.grace(now).is_some());
                        }
                        Ask::Violation => prop_assert!(has.is_none()),
                    }
                }
                Happening::Close { connection } => {
                    if connection < model.len() {
                        let (id, has) = model.remove(connection);
                        prop_assert_eq!(registry.closed(id, now), has);
                    }
                }
                Happening::Pass { ms } => {
                    now += Duration::from_millis(ms);
                    for id in registry.overdue(now) {
                        prop_assert_eq!(registry.closed(id, now), None);
                        model.retain(|(connection, _)| *connection != id);
                    }
                    for block in registry.take_retiring(now) {
                        prop_assert!(model.iter().all(|(_, has)| *has != Some(block)));
                        registry.retired(block);
                    }
                }
            }
            let mut blocks: Vec<_> = model.iter().filter_map(|(_, has)| *has).collect();
            prop_assert!(!blocks.contains(&own) && !blocks.contains(&Block::COORDINATOR));
            for (id, has) in &model {
                prop_assert_eq!(registry.member(*id), *has);
                if let Some(block) = has {
                    prop_assert_eq!(registry.connection(*block), Some(*id));
                    prop_assert!(registry.candidates().all(|candidate| candidate != *block));
                }
            }
            blocks.sort_unstable();
            prop_assert_eq!(registry.members().map(|(b, _)| b).collect::<Vec<_>>(), blocks);
        }
    }
}

#[test]
fn dead_processes_are_remembered_until_their_block_is_reused() {
    let now = Instant::now();
    let mut registry = Registry::new(
        block(1),
        Own::certain(USER),
        set([block(1)]),
        set([block(9)]),
        now,
    );
    connect(&mut registry, 20, now);
    registry.give(20, block(5));
    assert_eq!(registry.dead(), set([block(9)]));
    registry.closed(20, now);
    assert!(registry.is_departed(block(5)), "it may only have left");
    assert_eq!(registry.dead(), set([block(9)]));
    registry.retired(block(5));
    assert_eq!(registry.dead(), set([block(5), block(9)]));
    connect(&mut registry, 21, now);
    registry.give(21, block(9));
    assert_eq!(registry.dead(), set([block(5)]));
}

#[test]
fn observers_are_limited_in_number_and_time() {
    let now = Instant::now();
    let mut registry = founder(now);
    for id in 0..=OBSERVERS_MAX as u64 {
        connect(&mut registry, id, now);
    }
    for id in 0..OBSERVERS_MAX as u64 {
        assert_eq!(registry.observes(id, VERSION, now), Ok(()));
        assert!(registry.is_observer(id));
        assert_eq!(registry.asks(id, 1, now), Ask::Violation, "it has no block");
    }
    let one_more = OBSERVERS_MAX as u64;
    assert_eq!(
        registry.observes(one_more, VERSION, now),
        Err(Hello::Later(LATER_MIN))
    );
    assert_eq!(registry.observes(0, VERSION, now), Err(Hello::Violation));
    registry.closed(0, now);
    assert_eq!(registry.observes(one_more, VERSION, now), Ok(()));
    assert!(registry.overdue(now).is_empty());
    assert_eq!(registry.next_timeout(now), Some(now + OBSERVER_TIMEOUT));
    assert_eq!(
        registry.overdue(now + OBSERVER_TIMEOUT).len(),
        OBSERVERS_MAX
    );
}

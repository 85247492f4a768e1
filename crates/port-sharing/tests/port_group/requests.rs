//! Requests to the coordinator, in whichever process it is.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portolan_port_sharing::{PortGroup, REQUEST_BYTES_MAX};
use portolan_provider::Cause;

use super::harness::*;

/// Longer than a test takes that waits for nothing.
const LONG: Duration = Duration::from_secs(20);

#[test]
fn coordinator_and_members_get_the_same_answers() {
    let config = config();
    let members: Vec<_> = (0..3).map(|_| Member::join(&config).unwrap()).collect();
    let owner = members[1].group.block();
    assert_eq!(members[1].claim("7471"), "yours");
    for member in &members {
        assert_eq!(member.ask("owner 7471"), owner.to_string());
    }
    assert_eq!(members[1].claim("7471"), "yours");
    assert_eq!(members[0].claim("7471"), format!("taken by {owner}"));
    assert_eq!(members[2].claim("7471"), format!("taken by {owner}"));
}

#[test]
fn a_member_that_leaves_loses_its_claims() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let member = Member::join(&config).unwrap();
    assert_eq!(member.claim("7471"), "yours");
    drop(member);
    eventually("the coordinator's farewell", || {
        coordinator.ask("owner 7471") == "nobody"
    });
}

#[test]
fn claims_outlive_the_coordinator_and_stay_exclusive() {
    let config = config();
    let mut members: Vec<_> = (0..4).map(|_| Member::join(&config).unwrap()).collect();
    for round in 0..3 {
        let own: Vec<_> = members
            .iter()
            .map(|m| format!("{round}-{}", m.group.block()))
            .collect();
        for (member, name) in members.iter().zip(&own) {
            assert_eq!(member.claim(name), "yours");
        }
        let coordinator = the_coordinator(&members);
        let gone = members.swap_remove(coordinator);
        let gone_name = format!("{round}-{}", gone.group.block());
        drop(gone);
        // Right after the coordinator's end, from all members at once: no member gets another's name.
        let asked = Instant::now();
        std::thread::scope(|scope| {
            for member in &members {
                let (own, gone_name) = (&own, &gone_name);
                scope.spawn(move || {
                    for name in own.iter().filter(|name| *name != gone_name) {
                        let mine = *name == format!("{round}-{}", member.group.block());
                        let answer = member.ask(&format!("claim {name}"));
                        assert_eq!(answer == "yours", mine, "{name}: {answer}");
                    }
                });
            }
        });
        let took = asked.elapsed();
        assert!(took < ELECTION_MAX, "an election took {took:?}");
        assert_eq!(members[0].ask(&format!("owner {gone_name}")), "nobody");
    }
}

#[test]
fn many_claims_are_replayed_to_a_new_coordinator() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let members: Vec<_> = (0..2).map(|_| Member::join(&config).unwrap()).collect();
    for i in 0..2000 {
        assert_eq!(members[0].claim(&format!("a{i}")), "yours");
    }
    let owner = members[0].group.block().to_string();
    let epoch = members[0].group.epoch();
    drop(coordinator);
    for i in (0..2000).step_by(97) {
        assert_eq!(members[1].ask(&format!("owner a{i}")), owner);
    }
    assert_eq!(members[0].group.epoch(), epoch + 1);
}

#[test]
fn requests_need_no_progress_thread_and_may_come_from_many_threads() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let group = PortGroup::join(
        config.clone(),
        Box::new(Names::default()),
        Arc::new(Claims::default()),
    )
    .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let group = &group;
            scope.spawn(move || {
                for i in 0..50 {
                    let text = format!("{thread}.{i}");
                    let answer = group
                        .request(format!("echo {text}").as_bytes(), ASK)
                        .unwrap();
                    assert_eq!(answer, text.as_bytes(), "each gets its own answer");
                }
            });
        }
    });
    drop(coordinator);
    // This process becomes the coordinator during a request.
    assert_eq!(group.request(b"echo alone", ASK).unwrap(), b"alone");
    assert!(group.status().is_coordinator);
}

#[test]
fn pending_requests_survive_a_change_of_coordinator() {
    let config = config();
    let mut members: Vec<_> = (0..5).map(|_| Member::join(&config).unwrap()).collect();
    let stop = AtomicBool::new(false);
    let answered = AtomicU32::new(0);
    let last = Arc::clone(&members.last().unwrap().group);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (stop, answered, last) = (&stop, &answered, &last);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let text = format!("{thread}");
                    let answer = last
                        .request(format!("echo {text}").as_bytes(), ASK)
                        .unwrap();
                    assert_eq!(answer, text.as_bytes());
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Coordinators leave one after the other until only the asker is left.
        while members.len() > 1 {
            let before = answered.load(Ordering::Relaxed);
            eventually("some answers", || {
                answered.load(Ordering::Relaxed) > before + 20
            });
            let coordinator = the_coordinator(&members);
            // The asker stays, even when it is the coordinator.
            drop(members.remove(if coordinator == members.len() - 1 {
                0
            } else {
                coordinator
            }));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_delivery_may_make_requests() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let group = PortGroup::join(
        config.clone(),
        Box::new(Names::default()),
        Arc::new(Claims::default()),
    )
    .unwrap();
    let [target, _] = loopbacks(config.port);
    for i in 0..10u8 {
        sender_to(target)
            .send(&packet(1, &[group.block().index(), i]))
            .unwrap();
    }
    let answers = Mutex::new(Vec::new());
    eventually("deliveries", || {
        readable(group.as_fd(), Duration::from_millis(5));
        group.process(&mut |datagram| {
            let question = format!("echo {}", body(datagram.payload)[1]);
            answers
                .lock()
                .unwrap()
                .push(group.request(question.as_bytes(), ASK).unwrap());
        });
        answers.lock().unwrap().len() == 10
    });
    let mut answers = answers.into_inner().unwrap();
    answers.sort();
    let expected: Vec<_> = (0..10).map(|i| i.to_string().into_bytes()).collect();
    assert_eq!(answers, expected);
    drop(coordinator);
}

/// A coordinator that is not driven any more, and its member.
fn silent_coordinator_and_member() -> (PortGroup, Member) {
    let config = config();
    let coordinator = PortGroup::join(
        config.clone(),
        Box::new(Names::default()),
        Arc::new(Claims::default()),
    )
    .unwrap();
    let member = std::thread::scope(|scope| {
        let driver = scope.spawn(|| {
            eventually("a member", || {
                coordinator.process(&mut |_| {});
                coordinator.status().members.len() == 2
            });
        });
        let member = Member::join(&config).unwrap();
        driver.join().unwrap();
        member
    });
    (coordinator, member)
}

#[test]
fn requests_of_a_process_that_leaves_fail_at_once() {
    let (_coordinator, member) = silent_coordinator_and_member();
    let refused = || {
        let error = member.group.request(b"echo", LONG).unwrap_err();
        assert!(matches!(error.cause, Cause::GroupRefused(_)), "{error}");
    };
    let asked = Instant::now();
    std::thread::scope(|scope| {
        let _waiting = [(); 3].map(|()| scope.spawn(refused));
        // They have begun to wait, or have not begun: the end is the same.
        std::thread::sleep(Duration::from_millis(20));
        member.group.leave();
    });
    refused();
    assert!(asked.elapsed() < LONG / 2);
}

#[test]
fn a_request_without_an_answer_ends_at_its_deadline() {
    let (_coordinator, member) = silent_coordinator_and_member();
    let asked = Instant::now();
    let error = member
        .group
        .request(b"echo", Duration::from_millis(100))
        .unwrap_err();
    assert_eq!(
        error.cause,
        Cause::GroupSilent {
            pid: std::process::id(),
            stopped: false,
            open_files: None,
            after_ms: 100,
        }
    );
    let took = asked.elapsed();
    assert!(
        took >= Duration::from_millis(100) && took < Duration::from_secs(5),
        "{took:?}"
    );
}

#[test]
fn a_request_that_is_too_long_is_refused() {
    let config = config();
    let coordinator = Member::join(&config).unwrap();
    let error = coordinator
        .group
        .request(&vec![0; REQUEST_BYTES_MAX + 1], ASK)
        .unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
    let longest = [&b"echo "[..], &vec![b'x'; REQUEST_BYTES_MAX - 5]].concat();
    let member = Member::join(&config).unwrap();
    assert_eq!(
        member.group.request(&longest, ASK).unwrap().len(),
        REQUEST_BYTES_MAX - 5
    );
}

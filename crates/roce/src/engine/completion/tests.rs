use portolan_provider::verbs::WcOpcode;
use portolan_wire::Qpn;
use proptest::prelude::*;

use super::*;

fn wc(wr_id: u64, status: WcStatus) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        status,
        opcode: WcOpcode::Recv,
        qp_num: Qpn::new(1),
        ..WorkCompletion::EMPTY
    }
}

fn ok(wr_id: u64) -> WorkCompletion {
    wc(wr_id, WcStatus::Success)
}

fn queue(capacity: u32) -> CompletionQueue {
    CompletionQueue::new(capacity, 100).expect("a modest queue")
}

/// Takes everything as owners do: until a poll returns fewer than its room.
fn drain(cq: &mut CompletionQueue) -> alloc::vec::Vec<u64> {
    let mut taken = alloc::vec::Vec::new();
    let mut out = [ok(0); 4];
    loop {
        let count = cq.poll(&mut out);
        taken.extend(out.iter().take(count).map(|wc| wc.wr_id));
        if count < out.len() {
            return taken;
        }
    }
}

#[test]
fn completions_are_taken_oldest_first() {
    let mut cq = queue(10);
    for wr_id in 0..10 {
        cq.push(ok(wr_id), false).expect("room");
    }
    assert_eq!(drain(&mut cq), (0..10).collect::<alloc::vec::Vec<_>>());
    assert!(cq.is_empty());
}

#[test]
fn only_a_limited_number_of_completions_is_searched_for_a_queue_pair() {
    let (own, other) = (Qpn::new(7), Qpn::new(8));
    let of = |qp_num| WorkCompletion { qp_num, ..ok(1) };
    let mut cq = CompletionQueue::new(2000, 2000).expect("a modest queue");
    assert!(!cq.may_have(own));
    for _ in 0..LOOKED_AT_MAX {
        cq.push(of(other), false).unwrap();
    }
    assert!(!cq.may_have(own));
    cq.push(of(other), false).unwrap();
    assert!(cq.may_have(own), "there are too many to tell");
    drain(&mut cq);
    cq.push(of(own), false).unwrap();
    assert!(cq.may_have(own) && !cq.may_have(other));
}

#[test]
fn capacities_of_zero_and_beyond_the_limit_are_refused() {
    for capacity in [0, 101, u32::MAX] {
        let error = CompletionQueue::new(capacity, 100).expect_err("absurd");
        assert_eq!(error.errno(), portolan_provider::error::errno::EINVAL);
    }
}

#[test]
fn an_overflow_is_an_error_and_loses_only_what_did_not_fit() {
    let mut cq = queue(2);
    cq.push(ok(1), false).expect("room");
    cq.push(ok(2), false).expect("room");
    assert!(!cq.is_overflowed());
    assert_eq!(cq.push(ok(3), false), Err(CqOverflow { capacity: 2 }));
    assert!(cq.is_overflowed());
    assert_eq!(drain(&mut cq), [1, 2]);
}

#[test]
fn an_armed_queue_notifies_once() {
    let mut cq = queue(10);
    cq.arm(false);
    assert!(!cq.take_notification());
    cq.push(ok(1), false).expect("room");
    cq.push(ok(2), false).expect("room");
    assert!(cq.take_notification());
    assert!(!cq.take_notification());
    cq.push(ok(3), false).expect("room");
    assert!(!cq.take_notification());
}

#[test]
fn a_queue_that_was_never_armed_does_not_notify() {
    let mut cq = queue(10);
    cq.push(ok(1), true).expect("room");
    assert!(!cq.take_notification());
}

#[test]
fn a_completion_between_the_last_poll_and_arming_is_not_missed() {
    let mut cq = queue(10);
    assert!(drain(&mut cq).is_empty());
    cq.push(ok(1), false).expect("room");
    cq.arm(false);
    assert!(cq.take_notification());
}

#[test]
fn completions_found_by_polling_do_not_notify_after_arming() {
    let mut cq = queue(10);
    cq.push(ok(1), false).expect("room");
    drain(&mut cq);
    cq.arm(false);
    assert!(!cq.take_notification());
}

#[test]
fn arming_after_a_notification_and_before_polling_waits_for_the_next_completion() {
    let mut cq = queue(10);
    cq.arm(false);
    cq.push(ok(1), false).expect("room");
    assert!(cq.take_notification());
    cq.arm(false);
    assert!(!cq.take_notification());
    drain(&mut cq);
    cq.push(ok(2), false).expect("room");
    assert!(cq.take_notification());
}

#[test]
fn what_is_queued_when_the_event_is_taken_needs_no_other_one() {
    let mut cq = queue(10);
    cq.arm(false);
    cq.push(ok(1), false).expect("room");
    assert!(cq.take_notification());
    cq.push(ok(2), false).expect("room");
    cq.event_taken();
    cq.arm(false);
    assert!(!cq.take_notification());
    assert_eq!(drain(&mut cq), [1, 2]);
    cq.push(ok(3), false).expect("room");
    assert!(cq.take_notification());
}

#[test]
fn what_the_owner_leaves_after_it_took_an_event_notifies_again() {
    for solicited_only in [false, true] {
        let mut cq = queue(10);
        for wr_id in 0..3 {
            cq.push(ok(wr_id), false).expect("room");
        }
        for left in [true, true, false] {
            cq.event_taken();
            cq.arm(solicited_only);
            assert!(!cq.take_notification());
            assert_eq!(cq.poll(&mut [ok(0)]), 1);
            assert_eq!(cq.take_notification(), left);
        }
    }
}

#[test]
fn a_completion_that_was_taken_alone_does_not_notify_after_arming() {
    let mut cq = queue(10);
    cq.push(ok(1), false).expect("room");
    assert_eq!(cq.poll(&mut [ok(0)]), 1);
    cq.arm(false);
    assert!(!cq.take_notification());
    assert!(cq.is_armed());
}

#[test]
fn a_queue_armed_for_solicited_completions_waits_for_one_or_a_failure() {
    for (completion, solicited, notified) in [
        (ok(1), false, false),
        (ok(1), true, true),
        (wc(1, WcStatus::WrFlushErr), false, true),
    ] {
        let mut cq = queue(10);
        cq.arm(true);
        cq.push(completion, solicited).expect("room");
        assert_eq!(cq.take_notification(), notified, "{completion:?}");
    }
}

#[test]
fn arming_for_any_completion_widens_and_for_solicited_ones_does_not_narrow() {
    for order in [[true, false], [false, true]] {
        let mut cq = queue(10);
        for solicited_only in order {
            cq.arm(solicited_only);
        }
        cq.push(ok(1), false).expect("room");
        assert!(cq.take_notification(), "{order:?}");
    }
}

proptest! {
    /// The owner arms, polls until empty, and sleeps until notified, while completions arrive at any time. It
    /// must never sleep while one waits.
    #[test]
    fn an_owner_that_arms_and_then_polls_never_sleeps_on_a_completion(
        arrivals in proptest::collection::vec((0u8..4, any::<bool>()), 1..60),
    ) {
        let mut cq = queue(100);
        let mut arrivals = arrivals.into_iter();
        let mut come = |cq: &mut CompletionQueue| {
            let Some((count, solicited)) = arrivals.next() else { return false };
            for _ in 0..count {
                cq.push(ok(0), solicited).expect("room");
            }
            true
        };
        loop {
            cq.arm(false);
            if !come(&mut cq) { break }
            drain(&mut cq);
            if !come(&mut cq) { break }
            let asleep = !cq.take_notification();
            prop_assert!(!asleep || cq.is_empty());
        }
    }

    /// The owner takes each event, arms, and polls once, before or after arming, while completions arrive at any time. It
    /// takes no more than it has room for, and must never sleep while others wait.
    #[test]
    fn an_owner_that_polls_once_for_each_event_never_sleeps_on_a_completion(
        arrivals in proptest::collection::vec(0u8..3, 1..50),
        rounds in proptest::collection::vec((any::<bool>(), 1usize..5), 1..40),
    ) {
        let mut cq = queue(100);
        let mut arrivals = arrivals.into_iter();
        let mut come = |cq: &mut CompletionQueue| {
            for _ in 0..arrivals.next().unwrap_or(0) {
                cq.push(ok(0), false).expect("room");
            }
        };
        cq.arm(false);
        for (arms_first, room) in rounds {
            come(&mut cq);
            if !cq.take_notification() {
                prop_assert!(cq.is_empty());
                continue;
            }
            come(&mut cq);
            cq.event_taken();
            come(&mut cq);
            let mut out = [ok(0); 4];
            if arms_first {
                cq.arm(false);
                come(&mut cq);
                cq.poll(&mut out[..room]);
            } else {
                cq.poll(&mut out[..room]);
                come(&mut cq);
                cq.arm(false);
            }
        }
    }
}

#[test]
fn resizing_keeps_waiting_completions_in_order_and_refuses_a_smaller_size() {
    let mut cq = queue(3);
    for wr_id in 0..3 {
        cq.push(ok(wr_id), false).expect("room");
    }
    for capacity in [0, 2, 101] {
        let error = cq.resize(capacity, 100).expect_err("out of range");
        assert_eq!(error.errno(), portolan_provider::error::errno::EINVAL);
        assert_eq!(cq.capacity(), 3);
    }
    cq.resize(5, 100).expect("it grows");
    for wr_id in 3..5 {
        cq.push(ok(wr_id), false).expect("room");
    }
    assert!(cq.push(ok(5), false).is_err());
    cq.resize(5, 100).expect("as it is");
    assert_eq!(drain(&mut cq), [0, 1, 2, 3, 4]);
    cq.resize(1, 100).expect("it shrinks");
    cq.push(ok(6), false).expect("room for one");
    assert!(cq.push(ok(7), false).is_err());
}

#[test]
fn resizing_keeps_the_queue_armed() {
    let mut cq = queue(3);
    cq.arm(false);
    cq.resize(10, 100).expect("it grows");
    cq.push(ok(1), false).expect("room");
    assert!(cq.take_notification());
}

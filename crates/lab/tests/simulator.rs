//! Tests of the simulator: it is repeatable, covers what it should, and finds defects.

use portolan_lab::simulator::{
    Campaign, Hunt, Mutant, SEEDS_TO_CATCH, Summary, hunt, run_many, run_seed, trace_seed,
};

/// Number of seeds in these tests. `cargo xtask simulate` runs many more.
const SEEDS: u64 = 400;

fn campaign(start: u64, count: u64) -> Summary {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    run_many(
        Campaign {
            start,
            count,
            threads,
        },
        |_| {},
    )
}

/// In this run one side sends almost all that it may, and then a message that no receive of its peer can take.
#[test]
fn a_side_that_sends_all_it_may_and_a_message_that_is_too_long_finds_content_for_both() {
    run_seed(774_070).expect("nothing wrong");
}

#[test]
fn a_seed_gives_the_same_run_on_another_thread_and_when_traced() {
    for seed in 0..20 {
        let here = run_seed(seed).expect("nothing wrong");
        let elsewhere = std::thread::spawn(move || run_seed(seed).expect("nothing wrong"));
        let (traced, lines) = trace_seed(seed);
        assert_eq!(here.digest, elsewhere.join().unwrap().digest, "seed {seed}");
        assert_eq!(here.digest, traced.unwrap().digest, "seed {seed}, traced");
        assert!(!lines.is_empty());
    }
    assert_ne!(run_seed(1).unwrap().digest, run_seed(2).unwrap().digest);
}

/// A simulator in which nothing happens would find nothing.
#[test]
fn everything_possible_happens_and_nothing_fails() {
    let summary = campaign(0, SEEDS);
    assert!(summary.failures.is_empty(), "{}", summary.failures[0]);
    assert_eq!(summary.passed(), SEEDS);
    assert_eq!(
        summary.runs.len(),
        3,
        "runs of each class: {:?}",
        summary.runs
    );
    for what in [
        "conversation completed",
        "crash",
        "deaths at one instant",
        "news of a death",
        "news of a death for a dead process",
        "corrupt packet dropped",
        "rejected as stale",
        "communication established by data",
        "request sent again",
        "duplicate request",
        "timeout",
        "NAK",
        "RNR NAK",
        "MRA",
        "request refused",
        "question answered",
        "question refused",
        "question unanswered",
        "key refused",
        "answer of a destroyed id given again",
        "group left before its event",
        "group left while joining",
        "membership beyond the limit",
        "datagram forwarded",
        "datagram kept for the next coordinator",
        "coordinator elected",
        "datagram dropped: wrong key",
        "datagram received",
        "id migrated with waiting events",
        "ports of a dead process freed",
        "packet for no queue pair",
        "region revoked",
        "stall",
        "socket buffer full",
        "dropped: stale read",
        "send success",
        "receive success",
        "LocLenErr",
        "LocProtErr",
        "RemAccessErr",
        "RemInvReqErr",
        "RetryExcErr",
        "RnrRetryExcErr",
        "WrFlushErr",
        "atomic carried out",
        "message over an unreliable connection",
        "message lost on an unreliable connection",
        "datagram to a group received",
        "limit event of a shared receive queue",
        "stream: bytes read",
        "stream: crash",
        "stream: ended in order",
        "stream: failed",
        "stream: flushed work",
        "stream: keepalive",
        "stream: receiver not ready",
        "stream: write to mapped memory",
        "RDMA_CM_EVENT_ADDR_ERROR",
        "RDMA_CM_EVENT_DISCONNECTED",
        "RDMA_CM_EVENT_ESTABLISHED",
        "RDMA_CM_EVENT_MULTICAST_ERROR",
        "RDMA_CM_EVENT_MULTICAST_JOIN",
        "RDMA_CM_EVENT_REJECTED",
        "RDMA_CM_EVENT_TIMEWAIT_EXIT",
        "RDMA_CM_EVENT_UNREACHABLE",
    ] {
        assert!(
            summary.tally.contains_key(what),
            "never: {what}; {:#?}",
            summary.tally
        );
    }
}

#[test]
fn every_planted_defect_is_found_and_each_failure_shows_its_seed_and_what_led_to_it() {
    let mutants: Vec<Mutant> = Mutant::all().collect();
    assert!(mutants.len() >= 55);
    let mut missed = Vec::new();
    for mutant in mutants {
        let Hunt { caught, .. } = hunt(mutant);
        let Some(failure) = caught else {
            missed.push(mutant);
            continue;
        };
        let text = failure.to_string();
        assert!(text.contains(&format!("--seed {}", failure.seed)), "{text}");
        assert!(
            !failure.trace.is_empty(),
            "{mutant:?} fails without a trace"
        );
        // The defect is removed after the hunt.
        run_seed(failure.seed).expect("nothing is wrong without the defect");
    }
    assert!(missed.is_empty(), "{SEEDS_TO_CATCH} seeds: {missed:?}");
}

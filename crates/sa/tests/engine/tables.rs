//! Multi-packet tables: complete, or an error that says what is missing.

use std::time::Duration;

use portolan_sa::engine::{Answer, Config, Failure, Request};
use portolan_wire::sa::{PathRecord, Query, SA_DATA_LEN};

use crate::administrator::Administrator;
use crate::network::{Faults, Network, Random};

const SEGMENTS: usize = 100;
const STRIDE: usize = PathRecord::LEN;
const DEADLINE: Duration = Duration::from_secs(300);

/// Distinct records that fill a hundred segments and end in the middle of the last.
fn table() -> Vec<u8> {
    let records = (SEGMENTS * SA_DATA_LEN).div_euclid(STRIDE);
    let mut bytes = Vec::new();
    for number in 0..records as u64 {
        let record = PathRecord {
            service_id: number,
            dlid: number as u16,
            ..Default::default()
        };
        let at = bytes.len();
        bytes.resize(at + STRIDE, 0);
        record.emit(&mut bytes[at..]).expect("fits");
    }
    assert_eq!(bytes.len().div_ceil(SA_DATA_LEN), SEGMENTS);
    bytes
}

fn ask(faults: Faults, seed: u8, deadline: Duration) -> (Network, Result<Answer, Failure>) {
    let administrator = Administrator::new(table(), STRIDE);
    let mut network = Network::new(Config::default(), seed, administrator, faults);
    let request = Request::table(&Query::<PathRecord>::new()).expect("fits");
    let id = network
        .engine
        .submit(network.now, request, network.now + deadline)
        .expect("room");
    network.run();
    let (over, outcome) = network.outcomes.pop_front().expect("an outcome");
    assert_eq!((over, network.outcomes.len()), (id, 0));
    (network, outcome)
}

fn is_whole(answer: &Answer) -> bool {
    let Answer::Table { data, stride } = answer else {
        return false;
    };
    let records = answer.records::<PathRecord>();
    *data == table()
        && *stride == STRIDE
        && records.len() * STRIDE == data.len()
        && records
            .iter()
            .enumerate()
            .all(|(number, record)| record.service_id == number as u64)
}

#[test]
fn a_hundred_segments_arrive_complete_over_a_good_network() {
    let (network, outcome) = ask(Faults::None, 1, DEADLINE);
    assert!(is_whole(&outcome.expect("whole")));
    assert_eq!(network.administrator.questions, 1);
    // The request, the segments, and three acknowledgements: for the first segment, the window and
    // the last segment.
    assert_eq!(network.sent(), 1 + SEGMENTS + 3);
}

#[test]
fn whichever_datagram_is_lost_the_table_arrives_complete() {
    let (network, _) = ask(Faults::None, 1, DEADLINE);
    for lost in 0..network.sent() {
        let (_, outcome) = ask(Faults::LoseOne(lost), 1, DEADLINE);
        assert!(is_whole(&outcome.expect("whole")), "lost {lost}");
    }
}

#[test]
fn whichever_datagram_is_late_the_table_arrives_complete() {
    let (network, _) = ask(Faults::None, 1, DEADLINE);
    for late in 0..network.sent() {
        let (_, outcome) = ask(Faults::SwapOne(late), 1, DEADLINE);
        assert!(is_whole(&outcome.expect("whole")), "late {late}");
    }
}

#[test]
fn loss_repetition_and_reordering_never_make_a_table_short() {
    let (mut whole, mut timed_out) = (0, 0);
    for seed in 0..2000u64 {
        let mut random = Random(seed);
        let faults = Faults::Random {
            loss: random.below(50),
            repeat: random.below(40),
            jitter_us: [0, 100, 2_000, 300_000][random.below(4) as usize],
            random,
        };
        match ask(faults, seed as u8, DEADLINE) {
            (_, Ok(answer)) => {
                assert!(
                    is_whole(&answer),
                    "seed {seed}: a table that is not the one"
                );
                whole += 1;
            }
            (network, Err(Failure::TimedOut { tries, .. })) => {
                assert!(tries > 0 && network.now >= DEADLINE, "seed {seed}");
                timed_out += 1;
            }
            (_, Err(other)) => panic!("seed {seed}: {other}"),
        }
    }
    assert!(whole >= 1900, "{whole} came whole, {timed_out} not in time");
}

#[test]
fn a_network_that_loses_everything_is_an_error_at_the_deadline() {
    let faults = Faults::Random {
        loss: 100,
        repeat: 0,
        jitter_us: 0,
        random: Random(1),
    };
    let deadline = Duration::from_secs(5);
    let (network, outcome) = ask(faults, 1, deadline);
    let failure = outcome.expect_err("nothing came");
    let Failure::TimedOut {
        after,
        tries,
        last: None,
    } = failure
    else {
        panic!("{failure}");
    };
    assert_eq!(after, deadline);
    assert!(tries >= 3, "{tries}");
    assert_eq!(network.now, Duration::from_secs(1) + deadline);
    assert_eq!(failure.errno(), 110);
}

#[test]
fn an_empty_table_has_no_records_and_is_not_an_error() {
    let administrator = Administrator::new(Vec::new(), 0);
    let mut network = Network::new(Config::default(), 1, administrator, Faults::None);
    let request = Request::table(&Query::<PathRecord>::new()).expect("fits");
    let now = network.now;
    network
        .engine
        .submit(now, request, now + DEADLINE)
        .expect("room");
    network.run();
    let (_, outcome) = network.outcomes.pop_front().expect("an outcome");
    assert_eq!(outcome.expect("whole").records::<PathRecord>(), []);
}

#[test]
fn many_parallel_tables_stay_within_the_bound_on_memory() {
    let config = Config {
        reassembly_bytes_max: 3 * SEGMENTS * SA_DATA_LEN,
        ..Config::default()
    };
    let administrator = Administrator::new(table(), STRIDE);
    let mut network = Network::new(config, 1, administrator, Faults::None);
    let request = Request::table(&Query::<PathRecord>::new()).expect("fits");
    for _ in 0..20 {
        let now = network.now;
        network
            .engine
            .submit(now, request.clone(), now + DEADLINE)
            .expect("room");
    }
    network.run();
    assert_eq!(network.outcomes.len(), 20);
    let refused = network
        .outcomes
        .iter()
        .filter(|(_, outcome)| matches!(outcome, Err(Failure::LimitReached { .. })));
    assert!(refused.count() >= 10);
    let whole = network
        .outcomes
        .iter()
        .filter(|(_, outcome)| outcome.is_ok());
    assert!(whole.count() >= 1, "the others come whole");
}

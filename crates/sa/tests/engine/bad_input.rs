//! Invalid answers: each is dropped and counted or fails the query with a specific error; none
//! succeeds.

use std::time::Duration;

use portolan_sa::MadAddress;
use portolan_sa::engine::{Config, Engine, Failure, Request};
use portolan_sa::transport::Mad;
use portolan_wire::Qpn;
use portolan_wire::mad::{MadHeaderRepr, Method, RmppFlags, RmppHeader, RmppStatus, RmppType};
use portolan_wire::sa::{PathRecord, Query, SaPacket, Status};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::administrator::{abort, answer, response, segment};
use crate::network::SA;

const DEADLINE: Duration = Duration::from_secs(10);
const NOW: Duration = Duration::from_secs(1);
const STRIDE: u16 = (PathRecord::LEN / 8) as u16;

/// An engine with one query in flight, and the header of its request.
fn asked(config: Config, table: bool) -> (Engine, MadHeaderRepr) {
    let mut engine = Engine::new(config, [3; 32]);
    engine.set_target(NOW, Some(SA));
    let query = Query::<PathRecord>::new().numb_path(1);
    let request = match table {
        true => Request::table(&query),
        false => Request::get(&query),
    };
    engine
        .submit(NOW, request.expect("fits"), NOW + DEADLINE)
        .expect("room");
    let sent = engine.poll_transmit().expect("sent");
    let header = *SaPacket::new_checked(sent.mad.as_slice())
        .expect("right")
        .mad();
    (engine, header)
}

fn outcome(engine: &mut Engine) -> Option<Failure> {
    let (_, outcome) = engine.poll_outcome()?;
    Some(outcome.expect_err("never a success"))
}

/// The next RMPP packet that the engine sends to the administrator.
fn said(engine: &mut Engine) -> Option<RmppHeader> {
    let sent = engine.poll_transmit()?;
    let packet = SaPacket::new_checked(sent.mad.as_slice()).expect("right");
    assert!(sent.answer_within.is_zero());
    Some(packet.sa().rmpp)
}

/// Checks that the query times out at its deadline.
fn times_out(engine: &mut Engine) {
    for _ in 0..100 {
        let Some(due) = engine.poll_timeout() else {
            break;
        };
        engine.handle_timeout(due);
        while engine.poll_transmit().is_some() {}
    }
    let failure = outcome(engine).expect("over");
    assert!(matches!(failure, Failure::TimedOut { .. }), "{failure}");
    assert!(engine.is_empty());
}

#[test]
fn answers_of_the_wrong_transaction_source_method_attribute_and_class_are_dropped_and_counted() {
    let (mut engine, request) = asked(Config::default(), false);
    let right = answer(&request, 0, &[1]);
    let other = |change: fn(&mut MadHeaderRepr)| {
        let mut header = request;
        change(&mut header);
        answer(&header, 0, &[1])
    };
    engine.handle_mad(NOW, &SA, &other(|header| header.tid ^= 1));
    engine.handle_mad(NOW, &SA, &other(|header| header.tid ^= 0x8000_0000));
    assert_eq!(engine.counters().unknown_transaction, 2);
    engine.handle_mad(NOW, &MadAddress::gsi(8, 0, 0), &right);
    let from_qp = MadAddress {
        qpn: Qpn::new(5),
        ..SA
    };
    engine.handle_mad(NOW, &from_qp, &right);
    assert_eq!(engine.counters().wrong_source, 2);
    engine.handle_mad(NOW, &SA, &other(|header| header.method = Method::GET_TABLE));
    engine.handle_mad(NOW, &SA, &other(|header| header.method = Method::DELETE));
    let mut echo = right;
    echo[3] = Method::GET.0;
    engine.handle_mad(NOW, &SA, &echo);
    assert_eq!(engine.counters().wrong_method, 3);
    engine.handle_mad(NOW, &SA, &other(|header| header.attribute_id = 0x31));
    assert_eq!(engine.counters().wrong_attribute, 1);
    let mut class = right;
    class[1] = 4;
    engine.handle_mad(NOW, &SA, &class);
    engine.handle_mad(NOW, &SA, &right[..255]);
    engine.handle_mad(NOW, &SA, &[]);
    assert_eq!(engine.counters().malformed, 3);
    times_out(&mut engine);
}

#[test]
fn an_answer_after_the_deadline_is_dropped() {
    let (mut engine, request) = asked(Config::default(), false);
    times_out(&mut engine);
    engine.handle_mad(NOW + DEADLINE, &SA, &answer(&request, 0, &[]));
    assert!(engine.poll_outcome().is_none());
    assert_eq!(engine.counters().unknown_transaction, 1);
}

#[test]
fn every_status_of_the_administrator_is_a_distinct_error() {
    for (status, errno) in [
        (0x0100, 12),
        (0x0200, 22),
        (0x0300, 6),
        (0x0400, 5),
        (0x0500, 22),
        (0x0600, 22),
        (0x0700, 13),
        (0x0002, 5),
        (0x0004, 5),
        (0x0008, 95),
        (0x000C, 95),
        (0x001C, 22),
        (0xFF00, 5),
    ] {
        for table in [false, true] {
            let (mut engine, request) = asked(Config::default(), table);
            engine.handle_mad(NOW, &SA, &answer(&request, status, &[]));
            let failure = outcome(&mut engine).expect("over");
            assert_eq!(failure, Failure::Status(Status(status)));
            assert_eq!(failure.errno(), errno, "{status:#06x}");
        }
    }
}

/// Feeds the engine segments that `change` altered. Returns the query's failure and the last RMPP
/// packet sent.
fn segments(
    table: &[u8],
    numbers: impl IntoIterator<Item = u32>,
    change: impl Fn(u32, &mut Mad),
) -> (Option<Failure>, Option<RmppHeader>) {
    let config = Config {
        table_bytes_max: 4000,
        ..Config::default()
    };
    let (mut engine, request) = asked(config, true);
    let mut last = None;
    for number in numbers {
        let mut mad = segment(&request, table, STRIDE, number);
        change(number, &mut mad);
        engine.handle_mad(NOW, &SA, &mad);
        while let Some(rmpp) = said(&mut engine) {
            last = Some(rmpp);
        }
        if let Some(failure) = outcome(&mut engine) {
            return (Some(failure), last);
        }
    }
    times_out(&mut engine);
    (None, last)
}

const FLAGS: usize = 26;
const SEGMENT: std::ops::Range<usize> = 28..32;
const PAYLOAD: std::ops::Range<usize> = 32..36;

fn put(mad: &mut Mad, field: std::ops::Range<usize>, value: u32) {
    mad[field].copy_from_slice(&value.to_be_bytes());
}

#[test]
fn an_endless_table_is_stopped_at_the_limit() {
    let table = vec![7; 200 * 100];
    // The first segment does not announce the total length.
    let (failure, said) = segments(&table, 1..=100, |number, mad| {
        if number == 1 {
            put(mad, PAYLOAD, 0);
        }
    });
    assert!(
        matches!(failure, Some(Failure::LimitReached { limit: 4000, .. })),
        "{failure:?}"
    );
    let said = said.expect("a stop");
    assert_eq!(said.rmpp_type, RmppType::STOP);
    assert_eq!(said.status, RmppStatus::RESOURCES_EXHAUSTED);
    // A table that announces too great a length is stopped at its first segment.
    let (failure, _) = segments(&table, 1..=1, |_, _| {});
    assert!(matches!(failure, Some(Failure::LimitReached { .. })));
    // So is a segment number far beyond the limit.
    let (failure, _) = segments(&[7; 800], 2..=2, |_, mad| put(mad, SEGMENT, u32::MAX));
    assert!(matches!(failure, Some(Failure::LimitReached { .. })));
}

#[test]
fn a_table_shorter_than_it_announces_is_cut_off_not_short() {
    let table = vec![7; 1920];
    let (failure, said) = segments(&table, 1..=4, |number, mad| {
        if number == 4 {
            mad[FLAGS] |= RmppFlags::LAST.bits();
        }
    });
    assert!(
        matches!(failure, Some(Failure::Truncated { found: 880, .. })),
        "{failure:?}"
    );
    assert_eq!(said.expect("an abort").rmpp_type, RmppType::ABORT);
}

#[test]
fn a_table_of_one_packet_that_announces_more_is_cut_off() {
    let (failure, _) = segments(&[7; 1920], 1..=1, |_, mad| {
        mad[FLAGS] |= RmppFlags::LAST.bits()
    });
    assert!(
        matches!(failure, Some(Failure::Truncated { .. })),
        "{failure:?}"
    );
}

#[test]
fn a_table_that_stalls_is_an_error_at_the_deadline() {
    let (failure, said) = segments(&[7; 1920], 1..=5, |_, _| {});
    assert_eq!(failure, None, "and it timed out");
    assert_eq!(said.expect("acknowledged").rmpp_type, RmppType::ACK);
}

#[test]
fn a_table_that_ends_within_a_record_is_cut_off() {
    let (failure, _) = segments(&[7; 1900], 1..=10, |_, _| {});
    assert!(
        matches!(failure, Some(Failure::Truncated { found: 1900, .. })),
        "{failure:?}"
    );
}

#[test]
fn records_shorter_than_the_standards_or_of_no_length_are_malformed() {
    for stride in [0u16, 7] {
        let offset = 44..46;
        let (failure, _) = segments(&[7; 1920], 1..=10, |_, mad| {
            mad[offset.clone()].copy_from_slice(&stride.to_be_bytes());
        });
        assert!(
            matches!(failure, Some(Failure::Malformed(_))),
            "{failure:?}"
        );
    }
}

#[test]
fn a_table_without_the_multi_packet_protocol_is_malformed() {
    let (failure, _) = segments(&[7; 192], 1..=1, |_, mad| mad[FLAGS] = 0);
    assert!(
        matches!(failure, Some(Failure::Malformed(_))),
        "{failure:?}"
    );
}

#[test]
fn segments_that_contradict_each_other_are_aborted_with_the_standards_code() {
    use RmppStatus as Code;
    type Change = fn(u32, &mut Mad);
    let table = [7; 1920];
    let cases: [(&str, &[u32], Change, Code); 8] = [
        (
            "first flag elsewhere",
            &[1, 2],
            |n, mad| mad[FLAGS] |= u8::from(n == 2) << 1,
            Code::INCONSISTENT_FIRST_AND_SEGMENT_NUMBER,
        ),
        (
            "no first flag",
            &[1],
            |_, mad| mad[FLAGS] &= !2,
            Code::INCONSISTENT_FIRST_AND_SEGMENT_NUMBER,
        ),
        (
            "number zero",
            &[2],
            |_, mad| put(mad, SEGMENT, 0),
            Code::INCONSISTENT_FIRST_AND_SEGMENT_NUMBER,
        ),
        (
            "two ends",
            &[1, 10, 9],
            |n, mad| mad[FLAGS] |= u8::from(n == 9) << 2,
            Code::INCONSISTENT_LAST_AND_PAYLOAD_LENGTH,
        ),
        (
            "more behind the end",
            &[1, 3, 2],
            |n, mad| mad[FLAGS] |= u8::from(n == 2) << 2,
            Code::INCONSISTENT_LAST_AND_PAYLOAD_LENGTH,
        ),
        (
            "an end too long",
            &[1, 10],
            |n, mad| {
                if n == 10 {
                    put(mad, PAYLOAD, 221)
                }
            },
            Code::INCONSISTENT_LAST_AND_PAYLOAD_LENGTH,
        ),
        (
            "an end too short",
            &[1, 10],
            |n, mad| {
                if n == 10 {
                    put(mad, PAYLOAD, 19)
                }
            },
            Code::INCONSISTENT_LAST_AND_PAYLOAD_LENGTH,
        ),
        (
            "another version",
            &[1],
            |_, mad| mad[24] = 2,
            Code::UNSUPPORTED_VERSION,
        ),
    ];
    for (what, numbers, change, code) in cases {
        let (failure, said) = segments(&table, numbers.iter().copied(), change);
        assert!(
            matches!(failure, Some(Failure::Malformed(_))),
            "{what}: {failure:?}"
        );
        let said = said.expect("an abort");
        assert_eq!(
            (said.rmpp_type, said.status),
            (RmppType::ABORT, code),
            "{what}"
        );
    }
    let (failure, said) = segments(&table, [1], |_, mad| mad[25] = 9);
    assert!(matches!(failure, Some(Failure::Malformed(_))));
    assert_eq!(said.expect("an abort").status, Code::BAD_TYPE);
}

#[test]
fn an_abort_is_an_error_and_a_temporary_one_restarts_the_query() {
    let (mut engine, request) = asked(Config::default(), true);
    let bad = RmppStatus::BAD_TYPE;
    engine.handle_mad(NOW, &SA, &segment(&request, &[7; 1920], STRIDE, 1));
    engine.handle_mad(NOW, &SA, &abort(&request, bad));
    assert_eq!(outcome(&mut engine), Some(Failure::Aborted(bad)));

    let (mut engine, request) = asked(Config::default(), true);
    engine.handle_mad(NOW, &SA, &segment(&request, &[7; 1920], STRIDE, 1));
    engine.handle_mad(NOW, &SA, &abort(&request, RmppStatus::TOO_MANY_RETRIES));
    while engine.poll_transmit().is_some() {}
    let due = engine.poll_timeout().expect("a pause");
    engine.handle_timeout(due);
    let sent = engine.poll_transmit().expect("asked again");
    let again = *SaPacket::new_checked(sent.mad.as_slice())
        .expect("right")
        .mad();
    assert_ne!(again.tid, request.tid, "as another transaction");
    engine.handle_mad(due, &SA, &segment(&request, &[7; 1920], STRIDE, 2));
    assert_eq!(
        engine.counters().unknown_transaction,
        1,
        "the old one is forgotten"
    );
    times_out(&mut engine);
}

#[test]
fn a_repeated_segment_is_acknowledged_again_at_once() {
    let (mut engine, request) = asked(Config::default(), true);
    let first = segment(&request, &[7; 1920], STRIDE, 1);
    for _ in 0..2 {
        engine.handle_mad(NOW, &SA, &first);
        let said = said(&mut engine).expect("acknowledged");
        assert_eq!((said.rmpp_type, said.data1), (RmppType::ACK, 1));
    }
    assert_eq!(engine.counters().repeated_segments, 1);
}

#[test]
fn the_repeated_end_of_a_table_is_acknowledged_again() {
    let (mut engine, request) = asked(Config::default(), true);
    let last = segment(&request, &[7; 192], STRIDE, 1);
    engine.handle_mad(NOW, &SA, &last);
    assert!(
        engine
            .poll_outcome()
            .is_some_and(|(_, outcome)| outcome.is_ok())
    );
    assert_eq!(said(&mut engine).expect("acknowledged").data1, 1);
    engine.handle_mad(NOW, &SA, &last);
    assert_eq!(said(&mut engine).expect("acknowledged again").data1, 1);
    engine.handle_mad(NOW, &MadAddress::gsi(8, 0, 0), &last);
    assert_eq!(said(&mut engine), None, "but to nobody else");
    assert!(engine.poll_outcome().is_none());
}

proptest! {
    #[test]
    fn no_datagrams_break_the_engine_and_every_query_ends_by_its_deadline(
        steps in vec((any::<[u8; 12]>(), 0..12u32, 0..30u64, 0..6u8, any::<[u8; 2]>()), 0..40),
        table: bool,
    ) {
        let (mut engine, request) = asked(Config { table_bytes_max: 2000, ..Config::default() }, table);
        let mut request = request;
        let mut now = NOW;
        for (rmpp, number, wait_ds, kind, changed) in steps {
            now += Duration::from_millis(100 * wait_ds);
            engine.handle_timeout(now);
            let mut mad = match kind {
                0 => answer(&response(&request, 0), 0, &rmpp),
                1 => abort(&request, RmppStatus(rmpp[0])),
                _ => segment(&request, &[7; 1920], STRIDE, number.clamp(1, 10)),
            };
            if kind == 2 {
                mad[24..36].copy_from_slice(&rmpp);
            }
            if kind == 3 {
                mad[usize::from(changed[0])] = changed[1];
            }
            engine.handle_mad(now, &SA, &mad);
            while let Some(sent) = engine.poll_transmit() {
                let packet = SaPacket::new_checked(sent.mad.as_slice());
                let header = *packet.expect("engines send what they should").mad();
                if !sent.answer_within.is_zero() {
                    request = header;
                }
            }
        }
        engine.handle_timeout(NOW.max(now) + DEADLINE);
        prop_assert!(engine.is_empty());
        prop_assert_eq!(engine.poll_timeout(), None);
        prop_assert!(engine.poll_outcome().is_some());
        prop_assert!(engine.poll_outcome().is_none());
    }
}

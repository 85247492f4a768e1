//! Right and wrong answers to a client of the subnet administrator: nothing panics, memory stays bounded, every
//! query ends by its deadline, and a table is complete or an error.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use portolan_sa::MadAddress;
use portolan_sa::engine::{Answer, Config, Engine, Request};
use portolan_wire::sa::{
    McMemberRecord, NodeRecord, PathRecord, Query, Record, SaPacket, ServiceRecord,
};

const TABLE_BYTES_MAX: usize = 4000;
const DEADLINE: Duration = Duration::from_secs(60);

#[derive(Arbitrary, Debug)]
struct Datagram<'a> {
    after_ms: u16,
    /// The number of the query that it answers.
    question: u8,
    /// Whether to repair the headers, so that the rest is parsed.
    whole: bool,
    status: u8,
    /// The packet from its multi-packet header on.
    body: &'a [u8],
}

fuzz_target!(|input: (u8, Vec<Datagram<'_>>)| {
    let (kinds, datagrams) = input;
    let config = Config {
        in_flight_max: 3,
        queries_max: 6,
        table_bytes_max: TABLE_BYTES_MAX,
        reassembly_bytes_max: 2 * TABLE_BYTES_MAX,
        window: 4,
        ..Config::default()
    };
    let administrator = MadAddress::gsi(7, 0, 0);
    let mut engine = Engine::new(config, [7; 32]);
    let mut now = Duration::from_secs(1);
    engine.set_target(now, Some(administrator));
    for number in 0..6 {
        let request = match kinds >> number & 1 {
            0 => Request::get(&Query::<ServiceRecord>::new()),
            _ => Request::table(&Query::<PathRecord>::new()),
        };
        let submitted = engine.submit(now, request.expect("fits"), now + DEADLINE);
        submitted.expect("room");
    }
    let mut questions = Vec::new();
    let mut over = 0;
    for datagram in datagrams.iter().take(100) {
        now += Duration::from_millis(datagram.after_ms.into());
        engine.handle_timeout(now);
        let mut mad = [0; 256];
        let from = match datagram.body.len() {
            0 => 0,
            _ if datagram.whole => 24,
            _ => 0,
        };
        let len = datagram.body.len().min(256 - from);
        mad[from..from + len].copy_from_slice(&datagram.body[..len]);
        if datagram.whole && !questions.is_empty() {
            let question: &[u8; 256] = &questions[usize::from(datagram.question) % questions.len()];
            mad[..24].copy_from_slice(&question[..24]);
            mad[3] |= 0x80;
            mad[4] = datagram.status;
        }
        engine.handle_mad(now, &administrator, &mad);
        while let Some(transmit) = engine.poll_transmit() {
            SaPacket::new_checked(transmit.mad.as_slice()).expect("engines send valid packets");
            if !transmit.answer_within.is_zero() {
                questions.push(*transmit.mad);
            }
        }
        while let Some((_, outcome)) = engine.poll_outcome() {
            over += 1;
            let Ok(answer) = outcome else { continue };
            if let Answer::Table { data, stride } = &answer {
                assert!(data.len() <= TABLE_BYTES_MAX);
                let expected = if data.is_empty() {
                    0
                } else {
                    data.len().div_ceil(*stride)
                };
                assert_eq!(
                    answer.records::<PathRecord>().len(),
                    expected,
                    "none is left out"
                );
            }
            show::<NodeRecord>(&answer);
            show::<McMemberRecord>(&answer);
            show::<ServiceRecord>(&answer);
        }
    }
    engine.handle_timeout(now + DEADLINE);
    while engine.poll_outcome().is_some() {
        over += 1;
    }
    assert_eq!((over, engine.len(), engine.poll_timeout()), (6, 0, None));
});

fn show<R: Record + std::fmt::Display>(answer: &Answer) {
    for record in answer.records::<R>() {
        let _ = record.to_string();
    }
}

//! Buffers that limit the rate are replaced by larger ones.

use portolan_rsocket::{Config, Signalling};

use crate::link::{Side, connected, quiesce, small};

const GROWN: u32 = 16_000;

fn pair() -> [Side; 2] {
    let config = Config {
        grown_send_buffer: GROWN,
        grown_receive_buffer: GROWN,
        ..small(Signalling::Immediate, 64)
    };
    connected([config; 2])
}

/// Sends numbered bytes in pieces of `length`. Returns the most that was taken at once.
fn transfer(sides: &mut [Side; 2], total: usize, length: usize) -> usize {
    let bytes: Vec<u8> = (0..total).map(|at| (at % 251) as u8).collect();
    let (mut written, mut most, mut read) = (0, 0, Vec::new());
    while read.len() < total {
        let mut now = 0;
        while let more @ 1.. = sides[0].write(&bytes[written..total.min(written + length)]) {
            written += more;
            now += more;
        }
        most = most.max(now);
        quiesce(sides).unwrap();
        read.extend(sides[1].read(usize::MAX));
        quiesce(sides).unwrap();
    }
    assert!(read == bytes, "other bytes than were sent");
    most
}

#[test]
fn buffers_that_limit_the_rate_are_replaced_and_the_bytes_stay_in_order() {
    let mut sides = pair();
    let before = transfer(&mut sides, 2000, 2000);
    assert!(before <= 1000, "{before}");
    transfer(&mut sides, 30_000, 30_000);
    let after = transfer(&mut sides, 60_000, 60_000);
    assert!(after > GROWN as usize / 2, "{after}");
}

#[test]
fn without_memory_for_larger_buffers_a_stream_goes_on_with_the_first() {
    let mut sides = pair();
    for side in &mut sides {
        side.has_memory = false;
    }
    let most = transfer(&mut sides, 60_000, 60_000);
    assert!(most <= 1000, "{most}");
    assert!(
        sides
            .iter()
            .all(|side| side.endpoint.wants_to_grow().is_none())
    );
}

#[test]
fn a_stream_of_short_messages_keeps_its_buffers() {
    let mut sides = pair();
    for _ in 0..100 {
        transfer(&mut sides, 300, 300);
        sides.swap(0, 1);
    }
    let most = transfer(&mut sides, 2000, 2000);
    assert!(most <= 1000, "{most}");
}

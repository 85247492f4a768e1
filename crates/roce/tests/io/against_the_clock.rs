//! Latency in microseconds; runs with nothing in parallel.

use std::time::{Duration, Instant};

use portolan_provider::verbs::SendOp;

use crate::harness::{PATIENCE, Pair, Shape, expect, until};

#[test]
fn a_write_reaches_a_program_that_just_stopped_polling_and_spins_on_memory_at_once() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    let begun = Instant::now();
    let mut waits = Vec::new();
    while waits.len() < 50 {
        assert!(begun.elapsed() < PATIENCE, "always interrupted: {waits:?}");
        let round = waits.len() as u8 + 1;
        // Like ib_write_lat of perftest: it polls while its own write is in progress, and then only reads
        // memory. It polls long enough for the progress thread to notice.
        assert!(b.try_poll().is_none());
        b.post(1, SendOp::RdmaWrite(a.remote(64)), b.sge(64, 8));
        let (polling, mut done) = (Instant::now(), None);
        until("its own write is done", || {
            done = b.try_poll().or(done);
            done.is_some() && polling.elapsed() > Duration::from_millis(3)
        });
        expect(done.unwrap(), 1);
        let last_poll = Instant::now();
        until("it has stopped polling for a moment", || {
            last_poll.elapsed() > Duration::from_micros(300)
        });
        let is_a_moment_ago = last_poll.elapsed() < Duration::from_millis(1);
        a.memory.write(0, &[round; 8]);
        let written = Instant::now();
        a.post(2, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8));
        until("the write arrives", || b.memory.byte(7) == round);
        if is_a_moment_ago {
            waits.push(written.elapsed());
        } else {
            b.memory.write(7, &[0]);
        }
        a.expect(2);
    }
    waits.sort();
    // If it were considered a poller for 2 ms, they would be slow.
    assert!(waits[25] < Duration::from_micros(500), "{waits:?}");
}

//! Latency in microseconds; runs with nothing in parallel.

use std::time::{Duration, Instant};

use portolan_provider::verbs::{SendData, SendFlags, SendOp, SendWr, WorkCompletion};

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

#[test]
fn a_message_reaches_a_program_at_once_that_polled_its_other_queue_last_before_its_sleep() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    let other = b.device.create_cq(16, None, 0).unwrap();
    let mut waits = Vec::new();
    for _ in 0..50 {
        b.receive(1, b.sge(64, 64));
        b.receive(2, b.sge(64, 64));
        b.cq.arm(true).unwrap();
        // As a stream does that sleeps until it receives: its sends complete at the other queue.
        assert_eq!(other.poll(&mut [WorkCompletion::EMPTY]).unwrap(), 0);
        // This wakes only the progress thread, as an acknowledgement does.
        a.post(1, SendOp::Send, a.sge(0, 8));
        std::thread::sleep(Duration::from_micros(200));
        let sent = Instant::now();
        let sge = [a.sge(0, 8)];
        let solicited = SendWr {
            wr_id: 2,
            op: SendOp::Send,
            data: SendData::Sges(&sge),
            flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
            ud: None,
            srq: None,
        };
        a.qp.post_send(&solicited).unwrap();
        b.sleep(Instant::now() + PATIENCE);
        waits.push(sent.elapsed());
        for end in [b, a] {
            end.expect(1);
            end.expect(2);
        }
    }
    waits.sort();
    // If that poll counted as one of a poller, the progress thread would leave the message to it for 1 ms.
    assert!(waits[25] < Duration::from_micros(500), "{waits:?}");
}

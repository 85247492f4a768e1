//! Bytes arrive unchanged, whichever way they are moved and waited for.

use std::time::Instant;

use portolan_provider::verbs::{SendData, SendFlags, SendOp, SendWr};

use crate::harness::{End, PATIENCE, Pair, Shape, expect, pattern, until};

const BOTH: [&str; 2] = ["127.0.0.1", "::1"];

#[test]
fn messages_of_every_size_arrive_unchanged_by_send_write_and_read() {
    for ip in BOTH {
        let shape = Shape {
            memory: 8 << 20,
            ..Shape::default()
        };
        let pair = Pair::new(ip, shape);
        let (a, b) = (&pair.a, &pair.b);
        let sizes = [0, 1, 7, 256, 4095, 4096, 4097, 65_536, 1 << 20, 8 << 20];
        for (number, size) in (0u64..).zip(sizes) {
            let bytes = pattern(number, size);
            a.memory.write(0, &bytes);

            b.receive(number, b.sge(0, size));
            a.post(number, SendOp::Send, a.sge(0, size));
            a_and_b(&pair, number, size);
            assert!(
                b.memory.read(0, size) == bytes,
                "send of {size} bytes over {ip}"
            );

            b.memory.write(0, &vec![0; size]);
            a.post(number, SendOp::RdmaWrite(b.remote(0)), a.sge(0, size));
            poll_both(&pair, number);
            assert!(
                b.memory.read(0, size) == bytes,
                "write of {size} bytes over {ip}"
            );

            a.memory.write(0, &vec![0; size]);
            a.post(number, SendOp::RdmaRead(b.remote(0)), a.sge(0, size));
            poll_both(&pair, number);
            assert!(
                a.memory.read(0, size) == bytes,
                "read of {size} bytes over {ip}"
            );
        }
    }
}

/// Waits for the send at one end and the receive at the other.
fn a_and_b(pair: &Pair, wr_id: u64, size: usize) {
    let (mut sent, mut received) = (false, false);
    let deadline = Instant::now() + PATIENCE;
    while !(sent && received) {
        assert!(
            Instant::now() < deadline,
            "sent {sent}, received {received}"
        );
        if let Some(wc) = pair.a.try_poll() {
            expect(wc, wr_id);
            sent = true;
        }
        if let Some(wc) = pair.b.try_poll() {
            assert_eq!(expect(wc, wr_id).byte_len as usize, size);
            received = true;
        }
    }
}

/// Waits for a one-sided operation while the other end polls too.
fn poll_both(pair: &Pair, wr_id: u64) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline);
        if let Some(wc) = pair.a.try_poll() {
            expect(wc, wr_id);
            return;
        }
        assert_eq!(pair.b.try_poll(), None);
    }
}

#[test]
fn a_thread_asleep_on_the_event_channel_is_woken_for_each_message() {
    for ip in BOTH {
        let pair = Pair::new(ip, Shape::default());
        let (a, b) = (&pair.a, &pair.b);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..500 {
                    b.receive(number, b.sge(0, 64));
                    expect(b.wait(), number);
                    b.post(number, SendOp::Send, b.sge(0, 64));
                    expect(b.wait(), number);
                }
            });
            for number in 0..500 {
                // The peer posts its receive at any time; RNR NAKs bridge the gap.
                a.receive(number, a.sge(64, 64));
                a.memory.write(0, &pattern(number, 64));
                a.post(number, SendOp::Send, a.sge(0, 64));
                expect(a.wait(), number);
                expect(a.wait(), number);
                assert_eq!(a.memory.read(64, 64), pattern(number, 64));
            }
        });
    }
}

#[test]
fn a_program_that_only_spins_on_its_memory_sees_complete_writes() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    const LEN: usize = 20_000;
    for round in 1..=100u8 {
        a.memory.write(0, &vec![round; LEN]);
        a.post(1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, LEN));
        until("the write arrives", || b.memory.byte(LEN - 1) == round);
        assert!(
            b.memory.read(0, LEN).iter().all(|byte| *byte == round),
            "the last byte arrived before the rest"
        );
        // Neither end has polled until here.
        a.expect(1);
    }
}

#[test]
fn a_stream_is_sent_to_its_end_even_if_its_owner_stops_polling() {
    const STREAM: usize = 20;
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    for round in 1..=100u8 {
        // It counts as a poller, for which the end of a stream waits.
        assert!(a.try_poll().is_none());
        a.memory.write(0, &[round; STREAM]);
        for at in 0..STREAM {
            let (remote, from) = (b.remote(at), a.sge(at, 1));
            a.post(at as u64, SendOp::RdmaWrite(remote), from);
        }
        until("the last write arrives", || {
            b.memory.byte(STREAM - 1) == round
        });
        for number in 0..STREAM as u64 {
            a.expect(number);
        }
    }
}

#[test]
fn a_stream_of_small_messages_keeps_its_order_with_both_queues_full() {
    const COUNT: u64 = 20_000;
    const DEPTH: u64 = 64;
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..DEPTH {
                b.receive(number, b.sge(number as usize * 64, 64));
            }
            for number in 0..COUNT {
                let slot = (number % DEPTH) as usize * 64;
                b.expect(number);
                assert_eq!(b.memory.read(slot, 8), number.to_le_bytes());
                b.receive(number + DEPTH, b.sge(slot, 64));
            }
        });
        let mut done = 0;
        for number in 0..COUNT {
            while number - done >= DEPTH {
                a.expect(done);
                done += 1;
            }
            let slot = (number % DEPTH) as usize * 64;
            a.memory.write(slot, &number.to_le_bytes());
            a.post(number, SendOp::Send, a.sge(slot, 64));
        }
        for number in done..COUNT {
            a.expect(number);
        }
    });
}

#[test]
fn many_queue_pairs_share_the_sockets_without_mixing_their_bytes() {
    let config = crate::harness::config();
    let stacks = [
        crate::harness::stack(&config),
        crate::harness::stack(&config),
    ];
    let ip = "127.0.0.1".parse().unwrap();
    let shape = Shape {
        memory: 1 << 14,
        ..Shape::default()
    };
    let pairs: Vec<_> = (0..100)
        .map(|_| {
            let (a, b) = (
                End::new(&stacks[0], ip, shape),
                End::new(&stacks[1], ip, shape),
            );
            a.connect(ip, b.qp.qpn(), shape);
            b.connect(ip, a.qp.qpn(), shape);
            (a, b)
        })
        .collect();
    for round in 0..10 {
        for (number, (a, b)) in (0u64..).zip(&pairs) {
            a.memory.write(0, &pattern(round * 1000 + number, 1 << 14));
            a.post(round, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 1 << 14));
        }
        for (number, (a, b)) in (0u64..).zip(&pairs) {
            a.expect(round);
            assert!(b.memory.read(0, 1 << 14) == pattern(round * 1000 + number, 1 << 14));
        }
    }
}

#[test]
fn inline_bytes_and_immediate_data_arrive_even_if_the_memory_changes_at_once() {
    let pair = Pair::new("::1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    let mut bytes = pattern(1, 200);
    let post = |wr_id, op, bytes: &[u8]| {
        a.qp.post_send(&SendWr {
            wr_id,
            op,
            data: SendData::Inline(bytes),
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        })
        .unwrap();
    };
    b.receive(1, b.sge(0, 200));
    b.receive(2, b.sge(0, 0));
    let (send_imm, write_imm) = (0x1122_3344, 0x5566_7788);
    post(1, SendOp::SendWithImm(send_imm), &bytes);
    bytes.fill(0);
    post(
        2,
        SendOp::RdmaWriteWithImm(b.remote(4096), write_imm),
        &pattern(2, 99),
    );
    a.expect(1);
    a.expect(2);
    let (sent, written) = (b.expect(1), b.expect(2));
    assert_eq!((sent.byte_len, sent.imm_data), (200, Some(send_imm)));
    assert_eq!((written.byte_len, written.imm_data), (99, Some(write_imm)));
    assert_eq!(b.memory.read(0, 200), pattern(1, 200));
    assert_eq!(b.memory.read(4096, 99), pattern(2, 99));
}

#[test]
fn a_receive_buffer_that_is_much_too_small_slows_transfers_and_loses_nothing() {
    const LEN: usize = 1 << 20;
    let mut config = crate::harness::config();
    config.group.receive_buffer_bytes = 64 << 10;
    config.local_memory = false;
    let stacks = [
        crate::harness::stack(&config),
        crate::harness::stack(&config),
    ];
    let ip = "127.0.0.1".parse().unwrap();
    let shape = Shape::default();
    let pairs: Vec<_> = (0..8)
        .map(|_| {
            let ends = [0, 1].map(|number: usize| End::new(&stacks[number], ip, shape));
            ends[0].connect(ip, ends[1].qp.qpn(), shape);
            ends[1].connect(ip, ends[0].qp.qpn(), shape);
            ends
        })
        .collect();
    for (number, [a, b]) in (0u64..).zip(&pairs) {
        a.memory.write(0, &pattern(number, LEN));
        a.post(number, SendOp::RdmaWrite(b.remote(0)), a.sge(0, LEN));
    }
    for (number, [a, b]) in (0u64..).zip(&pairs) {
        a.expect(number);
        assert!(b.memory.read(0, LEN) == pattern(number, LEN));
    }
    let (sent, received) = (stacks[0].counters(), stacks[1].counters());
    assert!(
        sent.sent_packets > received.received_packets,
        "the test must lose something"
    );
}

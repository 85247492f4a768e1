//! The ends of a stream, its iomaps, and peers that break the rules.

use portolan_rsocket::{Close, Config, Control, Message, Phase, Signalling, Violation};

use crate::link::{PROGRAM_BYTES, Side, connected, deliver, quiesce, small};

fn pair() -> [Side; 2] {
    connected([small(Signalling::Immediate, 64); 2])
}

#[test]
fn a_side_that_has_ended_its_direction_still_reads_what_the_peer_sends() {
    let mut sides = pair();
    assert_eq!(sides[0].write(b"question"), 8);
    sides[0].endpoint.close(Close::Write);
    sides[0].settle();
    assert_eq!(sides[0].write(b"more"), 0);
    quiesce(&mut sides).unwrap();
    assert_eq!(sides[1].read(100), b"question");
    assert!(sides[1].endpoint.is_read_closed());
    assert!(!sides[1].endpoint.is_write_closed());
    assert_eq!(sides[1].write(b"answer"), 6);
    sides[1].endpoint.close(Close::Write);
    sides[1].settle();
    quiesce(&mut sides).unwrap();
    assert_eq!(sides[0].read(100), b"answer");
    for side in &sides {
        assert_eq!(side.endpoint.phase(), Phase::Disconnected);
    }
}

#[test]
fn sides_that_end_at_once_both_disconnect_and_both_messages_go_out() {
    let mut sides = pair();
    for side in &mut sides {
        side.endpoint.close(Close::Write);
        side.settle();
    }
    quiesce(&mut sides).unwrap();
    for side in &sides {
        assert_eq!(side.endpoint.phase(), Phase::Disconnected);
        assert!(side.endpoint.is_flushed());
    }
}

#[test]
fn data_that_arrived_before_the_end_is_read_after_it() {
    let mut sides = pair();
    sides[0].write(b"last words");
    sides[0].endpoint.close(Close::Both);
    sides[0].settle();
    quiesce(&mut sides).unwrap();
    assert_eq!(sides[0].endpoint.phase(), Phase::Disconnected);
    assert_eq!(sides[1].endpoint.phase(), Phase::Disconnected);
    assert_eq!(sides[1].write(b"too late"), 0);
    assert_eq!(sides[1].read(100), b"last words");
}

#[test]
fn data_that_is_lost_after_both_ends_stays_unconfirmed_and_what_arrived_before_does_not() {
    for signalling in [Signalling::Immediate, Signalling::Sends] {
        for has_arrived in [false, true] {
            let mut sides = connected([small(signalling, 64); 2]);
            quiesce(&mut sides).unwrap();
            assert_eq!(sides[0].write(b"last words"), 10);
            for side in &mut sides {
                side.endpoint.close(Close::Write);
                side.settle();
            }
            if has_arrived {
                quiesce(&mut sides).unwrap();
            }
            // The peer's end alone.
            let [a, b] = &mut sides;
            while deliver(b, a) {}
            while a.reap_receive().unwrap() {}
            assert_eq!(a.endpoint.phase(), Phase::Disconnected);
            a.lose();
            assert_eq!(a.endpoint.phase(), Phase::Disconnected);
            assert!(a.endpoint.is_flushed());
            assert_eq!(a.endpoint.has_unconfirmed_data(), !has_arrived);
        }
    }
}

#[test]
fn an_end_without_a_free_slot_is_sent_when_one_is_free() {
    let mut sides = pair();
    while let Some(post) = sides[0].endpoint.keepalive() {
        sides[0].post(post, &[]);
    }
    sides[0].endpoint.close(Close::Both);
    sides[0].settle();
    assert!(!sides[0].endpoint.is_flushed());
    quiesce(&mut sides).unwrap();
    assert_eq!(sides[1].endpoint.phase(), Phase::Disconnected);
}

#[test]
fn a_sender_stops_when_the_peers_buffer_is_full_and_continues_when_half_of_it_is_read() {
    let mut sides = pair();
    quiesce(&mut sides).unwrap();
    // Two halves of 500 bytes are all that the peer has.
    let mut written = 0;
    loop {
        let now = sides[0].write(&[7; 300]);
        quiesce(&mut sides).unwrap();
        written += now;
        if now == 0 {
            break;
        }
    }
    assert_eq!(written, 1000);
    assert_eq!(sides[1].read(499).len(), 499);
    quiesce(&mut sides).unwrap();
    assert!(!sides[0].endpoint.can_send());
    sides[1].read(1);
    quiesce(&mut sides).unwrap();
    assert!(sides[0].endpoint.can_send());
}

#[test]
fn a_sender_stops_without_credits_although_the_peer_has_room() {
    let mut sides = pair();
    quiesce(&mut sides).unwrap();
    let mut messages = 0;
    while sides[0].write(b"x") == 1 {
        messages += 1;
        quiesce(&mut sides).unwrap();
    }
    assert_eq!(messages, 16);
    for _ in 0..8 {
        sides[1].read(1);
    }
    quiesce(&mut sides).unwrap();
    assert_eq!(sides[0].write(b"x"), 1);
}

#[test]
fn mapped_memory_is_written_directly_and_before_what_is_sent_after() {
    for signalling in [Signalling::Immediate, Signalling::Sends] {
        let mut sides = connected([small(signalling, 64); 2]);
        let index = sides[1].offer(5000, 100, 3000);
        assert_eq!(index, Some(0));
        assert_eq!(sides[0].write_direct(b"early", 5000), None, "not known yet");
        quiesce(&mut sides).unwrap();
        let bytes: Vec<u8> = (0..2000).map(|at| at as u8).collect();
        assert_eq!(sides[0].write_direct(&bytes, 5050), Some(2000));
        sides[0].write(b"done");
        let [a, b] = &mut sides;
        while !b.reap_receive().unwrap() {
            assert!(deliver(a, b));
        }
        assert_eq!(b.program[150..2150], bytes);
        assert_eq!(b.read(10), b"done");
        assert_eq!(sides[0].write_direct(b"beyond", 8000), None);
        assert_eq!(sides[1].program.len(), PROGRAM_BYTES);
    }
}

#[test]
fn a_peers_iomap_has_only_so_many_entries_and_one_given_back_serves_again() {
    for inline in [0, 64] {
        let mut sides = connected([small(Signalling::Immediate, inline); 2]);
        for index in 0..4 {
            assert_eq!(sides[1].offer(u64::from(index) * 100, 0, 100), Some(index));
        }
        assert_eq!(sides[1].offer(400, 0, 100), None);
        quiesce(&mut sides).unwrap();
        for index in 0..4 {
            assert_eq!(
                sides[0].write_direct(&[index; 10], u64::from(index) * 100),
                Some(10)
            );
        }
        sides[1].endpoint.withdraw(2);
        assert_eq!(sides[1].offer(900, 500, 100), Some(2));
        quiesce(&mut sides).unwrap();
        assert_eq!(sides[0].write_direct(b"anew", 900), Some(4));
        assert_eq!(sides[0].write_direct(b"old", 200), None);
        quiesce(&mut sides).unwrap();
        assert_eq!(sides[1].program[500..504], *b"anew");
    }
}

#[test]
fn updates_of_iomaps_without_end_do_not_use_up_credits() {
    let mut sides = pair();
    for round in 0..100u64 {
        let index = sides[1].offer(round, 0, 1).unwrap();
        quiesce(&mut sides).unwrap();
        sides[1].endpoint.withdraw(index);
    }
    assert_eq!(sides[1].write(b"still here"), 10);
}

#[test]
fn a_peer_that_writes_beyond_its_room_or_credits_fails_the_stream() {
    let table = |side: &mut Side, message: Message| {
        let number = message.encode();
        side.inject(number)
    };
    let mut sides = pair();
    let overrun = table(&mut sides[0], Message::Data(1001));
    assert_eq!(
        overrun,
        Err(Violation::Overrun {
            announced: 1001,
            room: 1000
        })
    );
    assert_eq!(sides[0].endpoint.phase(), Phase::Failed);
    assert!(!sides[0].endpoint.can_send());

    let mut sides = pair();
    for _ in 0..16 {
        table(&mut sides[0], Message::Data(1)).unwrap();
    }
    let over = table(&mut sides[0], Message::Data(1));
    assert_eq!(over, Err(Violation::OverCredit { credits: 16 }));

    let mut sides = pair();
    table(&mut sides[0], Message::Control(Control::Shutdown)).unwrap();
    let after = table(&mut sides[0], Message::Data(1));
    assert_eq!(after, Err(Violation::DataAfterEnd));

    let mut sides = pair();
    assert_eq!(
        table(&mut sides[0], Message::Iomap(4)),
        Err(Violation::BeyondIomap { index: 4, size: 4 })
    );
}

#[test]
fn the_defaults_equal_librdmacms() {
    let config = Config::default();
    assert_eq!(
        (config.send_buffer, config.receive_buffer),
        (128 << 10, 128 << 10)
    );
    assert_eq!(
        (config.send_queue, config.receive_queue, config.inline),
        (384, 384, 64)
    );
    assert_eq!(config.iomaps, 0);
    assert_eq!(config.fitted(), config);
}

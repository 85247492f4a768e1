//! Random schedules: whatever lags, the bytes arrive whole and in order, and nothing gets stuck.

use portolan_rsocket::{Close, Config, Message, Phase, Signalling};
use proptest::prelude::*;
use proptest::test_runner::Config as TestConfig;

use crate::link::{Side, connected, deliver, quiesce};

#[derive(Clone, Copy, Debug)]
enum Step {
    Write { side: usize, length: u16 },
    Read { side: usize, length: u16 },
    Deliver(usize),
    ReapSend(usize),
    ReapReceive(usize),
    Keepalive(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let side = 0..2usize;
    let length = prop_oneof![1..80u16, 1..4000u16];
    prop_oneof![
        3 => (side.clone(), length.clone()).prop_map(|(side, length)| Step::Write { side, length }),
        3 => (side.clone(), length).prop_map(|(side, length)| Step::Read { side, length }),
        6 => side.clone().prop_map(Step::Deliver),
        4 => side.clone().prop_map(Step::ReapSend),
        6 => side.clone().prop_map(Step::ReapReceive),
        1 => side.prop_map(Step::Keepalive),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    let sizes = (2048..9000u32, 2..5000u32, 16..40u16, 16..40u16);
    let grown = (
        prop_oneof![Just(0u32), 2048..30_000u32],
        prop_oneof![Just(0u32), 2..20_000u32],
    );
    (
        sizes,
        grown,
        prop_oneof![Just(0u32), Just(4), Just(16), Just(64)],
    )
        .prop_map(
            |((send_buffer, receive_buffer, send_queue, receive_queue), grown, inline)| Config {
                send_buffer,
                receive_buffer,
                grown_send_buffer: grown.0,
                grown_receive_buffer: grown.1,
                send_queue,
                receive_queue,
                inline,
                ..Config::default()
            },
        )
}

/// Bytes whose value tells their place, so that a lost or repeated one shows.
fn pattern(from: u64, length: usize) -> Vec<u8> {
    (from..from + length as u64)
        .map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8)
        .collect()
}

#[derive(Default)]
struct Counts {
    written: [u64; 2],
    read: [u64; 2],
}

impl Counts {
    fn write(&mut self, sides: &mut [Side; 2], side: usize, length: usize) -> usize {
        let bytes = pattern(self.written[side], length);
        let written = sides[side].write(&bytes);
        self.written[side] += written as u64;
        written
    }

    fn read(&mut self, sides: &mut [Side; 2], side: usize, length: usize) -> usize {
        let bytes = sides[side].read(length);
        assert_eq!(
            bytes,
            pattern(self.read[side], bytes.len()),
            "at {}",
            self.read[side]
        );
        self.read[side] += bytes.len() as u64;
        bytes.len()
    }
}

fn run(configs: [Config; 2], steps: &[Step]) {
    let mut sides = connected(configs);
    let mut counts = Counts::default();
    for step in steps {
        match *step {
            Step::Write { side, length } => {
                counts.write(&mut sides, side, length.into());
            }
            Step::Read { side, length } => {
                counts.read(&mut sides, side, length.into());
            }
            Step::Deliver(side) => {
                let [a, b] = &mut sides;
                let (from, to) = if side == 0 { (a, b) } else { (b, a) };
                deliver(from, to);
            }
            Step::ReapSend(side) => {
                sides[side].reap_send();
            }
            Step::ReapReceive(side) => {
                sides[side].reap_receive().unwrap();
            }
            Step::Keepalive(side) => {
                let post = sides[side].endpoint.keepalive();
                if let Some(post) = post {
                    sides[side].post(post, &[]);
                }
            }
        }
    }
    finish(&mut sides, &mut counts);
}

/// Sends more both ways, reads everything, ends the stream.
fn finish(sides: &mut [Side; 2], counts: &mut Counts) {
    quiesce(sides).unwrap();
    for side in [0, 1] {
        let mut left = 20_000;
        while left > 0 {
            let written = counts.write(sides, side, left);
            left -= written;
            quiesce(sides).unwrap();
            let read = counts.read(sides, 1 - side, 700);
            quiesce(sides).unwrap();
            assert!(written + read > 0, "stuck with {left} bytes left");
        }
        sides[side].endpoint.close(Close::Write);
        sides[side].settle();
        quiesce(sides).unwrap();
        while counts.read(sides, 1 - side, 700) > 0 {
            quiesce(sides).unwrap();
        }
        assert!(sides[1 - side].endpoint.is_read_closed());
    }
    assert_eq!(counts.read[1], counts.written[0]);
    assert_eq!(counts.read[0], counts.written[1]);
    for side in sides {
        assert_eq!(side.endpoint.phase(), Phase::Disconnected);
        assert!(side.endpoint.is_flushed());
        assert_eq!(side.under_way, 0);
    }
}

proptest! {
    #![proptest_config(TestConfig { cases: 400, failure_persistence: None, ..TestConfig::default() })]

    #[test]
    fn bytes_arrive_in_order_whatever_lags(
        configs in [config(), config()],
        steps in proptest::collection::vec(step(), 0..400),
    ) {
        run(configs, &steps);
    }

    #[test]
    fn bytes_arrive_in_order_where_messages_are_sends(
        configs in [config(), config()],
        steps in proptest::collection::vec(step(), 0..400),
    ) {
        run(configs.map(|config| Config {
            signalling: Signalling::Sends,
            // iWARP's messages are inline.
            inline: config.inline.max(4),
            ..config
        }), &steps);
    }

    #[test]
    fn no_message_and_no_private_data_breaks_an_endpoint(
        private in proptest::collection::vec(any::<u8>(), 40..60),
        messages in proptest::collection::vec(message(), 0..60),
        table in proptest::collection::vec(any::<u8>(), 128),
    ) {
        hostile(private, &messages, table);
    }
}

/// Mostly a message that a peer may send.
fn message() -> impl Strategy<Value = u32> {
    prop_oneof![
        1 => any::<u32>(),
        4 => (0..3000u32).prop_map(|bytes| Message::Data(bytes).encode()),
        2 => any::<u16>().prop_map(|credits| Message::Credits(credits).encode()),
        1 => (0..6u32).prop_map(|index| Message::Iomap(index).encode()),
        // Every control message, and some that are none.
        1 => (0..4u32).prop_map(|code| 7 << 29 | code),
    ]
}

/// A peer that says anything: the endpoint refuses or goes on, and posts no more than its queue holds.
fn hostile(mut private: Vec<u8>, messages: &[u32], table: Vec<u8>) {
    use portolan_rsocket::{ConnData, Endpoint, LocalMemory, Table};
    use std::cell::RefCell;

    struct Memory(RefCell<Vec<u8>>);
    impl Table for Memory {
        fn load(&self, offset: usize, into: &mut [u8]) {
            into.copy_from_slice(&self.0.borrow()[offset..offset + into.len()]);
        }
        fn store(&self, offset: usize, from: &[u8]) {
            self.0.borrow_mut()[offset..offset + from.len()].copy_from_slice(from);
        }
    }

    private[0] = 1;
    let memory = Memory(RefCell::new(table));
    let config = Config {
        iomaps: 4,
        ..Config::default()
    };
    let mut endpoint = Endpoint::new(config, LocalMemory::default());
    let Ok(peer) = ConnData::decode(&private) else {
        return;
    };
    endpoint.connected(peer);
    let mut posts = 0;
    for message in messages {
        let failed = endpoint.on_message(*message, &memory).is_err();
        assert_eq!(failed, endpoint.phase() == Phase::Failed);
        if failed {
            return;
        }
        let read = endpoint.peek(0, 1000).length();
        endpoint.consume(read);
        let _ = endpoint.next_direct(100, u64::from(*message), &memory);
        while let Some((length, _)) = endpoint.next_write(5000) {
            assert!(length > 0);
            posts += 1;
        }
        while endpoint.next_post().is_some() {
            posts += 1;
        }
        assert!(posts <= usize::from(config.send_queue));
    }
}

//! A send that is posted and sent by one call leaves the queue pair as posting it and polling for its packet does.

use std::time::Duration;

use portolan_provider::verbs::{
    Access, Mtu, QpAttr, QpAttrMask, QpCap, QpState, QpType, RecvWr, SendData, SendFlags, SendOp,
    SendWr, Sge, WcStatus,
};
use portolan_roce::engine::{FlowConfig, PdId};
use portolan_wire::bth::Opcode;

use crate::harness::*;

const SOURCE: u64 = 0;
const TARGET: u64 = 0x8_0000;
const NOW: Duration = Duration::ZERO;

/// A send of one element.
const SEND: SendWr<'static> = SendWr {
    wr_id: 1,
    op: SendOp::Send,
    data: SendData::Inline(b"inline"),
    flags: SendFlags::SIGNALED,
    ud: None,
    srq: None,
};

/// Everything that a queue pair knows, except for the segments of the last packet that was polled.
fn state_of(host: &Host) -> String {
    let text = format!("{:?}", host.qp);
    let (before, rest) = text.split_once("segments: [").expect("the field");
    let (_, after) = rest.split_once("]").expect("its end");
    format!("{before}{after}")
}

/// Two pairs that do the same. Only the hosts of the second one send by `post_send_only`.
struct Twins {
    pairs: [Pair; 2],
    posted: [u64; 2],
    /// Sends by `post_send_only`.
    at_once: usize,
}

impl Twins {
    fn new(options: &Options) -> Self {
        let pair = |_| {
            let mut pair = Pair::new(options.clone());
            pair.left().fill(SOURCE, 4096, 1);
            pair.right().fill(SOURCE, 4096, 2);
            pair
        };
        Self {
            pairs: [0, 1].map(pair),
            posted: [0; 2],
            at_once: 0,
        }
    }

    fn post(&mut self, from: usize, (op, len, pieces): (SendOp, u32, u32), flags: SendFlags) {
        let wr_id = self.posted[from];
        self.posted[from] += 1;
        let packets = [0, 1].map(|twin| {
            let Pair { hosts, now, .. } = &mut self.pairs[twin];
            let host = &mut hosts[from];
            let sges: Vec<Sge> = (0..pieces)
                .map(|number| piece(host, SOURCE + u64::from(number * len), len))
                .collect();
            let inline = host.bytes(SOURCE, len as usize).to_vec();
            let data = match pieces {
                0 => SendData::Inline(&inline),
                _ => SendData::Sges(&sges),
            };
            let wr = SendWr {
                wr_id,
                op,
                data,
                flags,
                ..SEND
            };
            let at_once = match twin {
                1 => host.post_send_only(*now, &wr),
                _ => None,
            };
            self.at_once += usize::from(at_once.is_some());
            if at_once.is_none() {
                host.qp.post_send(&wr).unwrap();
                host.drain();
            }
            let rest = std::iter::from_fn(|| host.next_packet(*now));
            at_once.into_iter().chain(rest).collect::<Vec<_>>()
        });
        assert_eq!(packets[0], packets[1]);
        for (pair, packets) in self.pairs.iter_mut().zip(packets) {
            for bytes in packets {
                pair.network.send(pair.now, from, bytes);
            }
        }
        self.compare();
    }

    fn post_random(&mut self, from: usize, rng: &mut Rng) {
        let host = &self.pairs[0].hosts[from];
        if self.posted[from] >= 60 + host.sends.len() as u64 {
            return;
        }
        let target = remote(&self.pairs[0].hosts[1 - from], 0x4_0000);
        let op = match rng.below(10) {
            0 => SendOp::SendWithImm(rng.next() as u32),
            1 => SendOp::RdmaWrite(target),
            2 => SendOp::RdmaRead(target),
            _ => SendOp::Send,
        };
        let len = [0, 1, 64, 255, 256, 257, 1024][rng.below(7) as usize];
        let pieces = match rng.below(5) {
            0 if !matches!(op, SendOp::RdmaRead(_)) && len <= 256 => 0,
            1 => 2,
            _ => 1,
        };
        let mut flags = SendFlags::from_bits_truncate(rng.below(8) as u32);
        flags.set(SendFlags::FENCE, rng.below(20) == 0);
        self.post(from, (op, len, pieces), flags);
    }

    fn both(&mut self, act: impl Fn(&mut Pair)) {
        self.pairs.iter_mut().for_each(act);
        self.compare();
    }

    fn compare(&self) {
        for host in [0, 1] {
            let [queued, at_once] = self.pairs.each_ref().map(|pair| &pair.hosts[host]);
            assert_eq!(state_of(queued), state_of(at_once));
            assert_eq!(queued.qp.poll_timeout(), at_once.qp.poll_timeout());
            assert_eq!(queued.sends, at_once.sends);
            assert_eq!(queued.receives, at_once.receives);
            assert_eq!(queued.ram, at_once.ram);
        }
    }
}

#[test]
fn it_is_posting_and_polling_in_one_call() {
    let mut at_once = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut twins = Twins::new(&Options {
            seed,
            sends_first: true,
            mtu: [Mtu::Mtu256, Mtu::Mtu1024][rng.below(2) as usize],
            psn: 0xFF_FFFF - rng.below(60) as u32,
            timeout: 16,
            sq_sig_all: rng.below(2) == 1,
            flow: FlowConfig {
                window_initial_bytes: 1 << (9 + rng.below(7)),
                window_min_bytes: 1 << (8 + rng.below(4)),
                ..FlowConfig::default()
            },
            ..Options::default()
        });
        let lost_permille = [0, 0, 50][rng.below(3) as usize];
        twins.both(|pair| pair.network.faults.lost_permille = lost_permille);
        for _ in 0..200 {
            let host = rng.below(2) as usize;
            let random = rng.next();
            match rng.below(8) {
                0..2 => twins.both(|pair| {
                    let host = &mut pair.hosts[host];
                    let target = piece(host, TARGET + random % 4096, 2048);
                    for wr_id in 0..random % 8 {
                        // The queue may be full.
                        let _ = host.qp.post_recv(&RecvWr {
                            wr_id,
                            sges: &[target],
                        });
                    }
                }),
                2..4 => twins.both(|pair| pair.settle(Duration::from_micros(random % 300))),
                4 => twins.both(|pair| pair.settle(Duration::from_millis(20))),
                _ => twins.post_random(host, &mut rng),
            }
        }
        at_once += twins.at_once;
    }
    assert!(at_once > 1000, "{at_once}");
}

#[test]
fn only_a_short_send_in_one_piece_is_posted_so() {
    let mut pair = Pair::new(Options {
        cap: QpCap {
            max_inline_data: 8,
            ..Options::default().cap
        },
        ..Options::default()
    });
    let target = remote(pair.right(), TARGET);
    let left = pair.left();
    let piece = |len| piece(left, SOURCE, len);
    let (one, full, long, empty) = (piece(64), piece(1024), piece(1025), piece(0));
    let with = |data| SendWr { data, ..SEND };
    let op = |op| SendWr { op, ..SEND };
    for (what, wr, expected) in [
        ("one element", with(SendData::Sges(&[one])), true),
        ("a full packet", with(SendData::Sges(&[full])), true),
        ("inline data", SEND, true),
        ("immediate data", op(SendOp::SendWithImm(7)), true),
        ("two packets", with(SendData::Sges(&[long])), false),
        ("two elements", with(SendData::Sges(&[one, one])), false),
        ("no element", with(SendData::Sges(&[])), false),
        ("no bytes", with(SendData::Sges(&[empty])), false),
        ("no inline bytes", with(SendData::Inline(b"")), false),
        (
            "too many inline bytes",
            with(SendData::Inline(b"inline data")),
            false,
        ),
        ("a write", op(SendOp::RdmaWrite(target)), false),
        ("an invalidation", op(SendOp::SendWithInv(1)), false),
        (
            "a fence",
            SendWr {
                flags: SendFlags::FENCE,
                ..SEND
            },
            false,
        ),
    ] {
        assert_eq!(left.qp.may_post_send_only(&wr), expected, "{what}");
    }
}

#[test]
fn only_a_queue_pair_with_nothing_else_to_send_posts_so() {
    type Prepare = fn(&mut Pair);
    let queue: Prepare = |pair| pair.left().qp.post_send(&SEND).unwrap();
    let send: Prepare = |pair| {
        pair.left().qp.post_send(&SEND).unwrap();
        assert!(pair.left().next_packet(NOW).is_some());
    };
    let to_state = |pair: &mut Pair, state| {
        let attr = QpAttr {
            state,
            ..QpAttr::default()
        };
        pair.left().qp.modify(&attr, QpAttrMask::STATE).unwrap();
    };
    let cases: [(&str, Prepare, bool); 8] = [
        ("an idle queue pair", |_| {}, true),
        ("a request is unsent", queue, false),
        ("a request is unacknowledged", send, true),
        (
            "local work is not done",
            |pair| {
                let local = SendWr {
                    op: SendOp::LocalInv(1),
                    data: SendData::Sges(&[]),
                    ..SEND
                };
                pair.left().qp.post_send(&local).unwrap();
            },
            false,
        ),
        (
            "an acknowledgement is due",
            |pair| {
                let target = piece(pair.left(), TARGET, 64);
                post_recv(pair.left(), 1, &[target]);
                pair.right().qp.post_send(&SEND).unwrap();
                let packet = pair.right().next_packet(NOW).unwrap();
                pair.left().receive(NOW, &packet);
                assert!(!pair.left().qp.is_transmit_idle());
            },
            true,
        ),
        (
            "a refusal is due",
            |pair| {
                pair.right().qp.post_send(&SEND).unwrap();
                let packet = pair.right().next_packet(NOW).unwrap();
                pair.left().receive(NOW, &packet);
                assert!(!pair.left().qp.is_transmit_idle());
            },
            false,
        ),
        (
            "the peer has no receive",
            |pair| {
                pair.left().qp.post_send(&SEND).unwrap();
                pair.settle(Duration::from_micros(150));
            },
            false,
        ),
        (
            "a packet was lost",
            |pair| {
                pair.left().qp.post_send(&SEND).unwrap();
                assert!(pair.left().next_packet(NOW).is_some());
                let at = pair.left().qp.poll_timeout().unwrap();
                pair.left().qp.handle_timeout(at);
            },
            false,
        ),
    ];
    for (what, prepare, expected) in cases {
        let mut pair = Pair::new(Options::default());
        prepare(&mut pair);
        assert_eq!(pair.left().qp.may_post_send_only(&SEND), expected, "{what}");
    }
    for state in [QpState::Sqd, QpState::Err] {
        let mut pair = Pair::new(Options::default());
        to_state(&mut pair, state);
        assert!(!pair.left().qp.may_post_send_only(&SEND), "{state}");
    }
    let mut pair = Pair::new(Options {
        qp_type: QpType::Uc,
        ..Options::default()
    });
    assert!(!pair.left().qp.may_post_send_only(&SEND), "unreliable");
}

#[test]
fn a_stream_a_full_window_and_a_full_queue_are_not_posted_so() {
    let sent_until_refused = |options: Options| {
        let mut pair = Pair::new(options);
        let left = pair.left();
        (0..).find(|_| left.post_send_only(NOW, &SEND).is_none())
    };
    let flow = FlowConfig {
        window_initial_bytes: 4096,
        window_min_bytes: 4096,
        ..FlowConfig::default()
    };
    let cap = QpCap {
        max_send_wr: 3,
        ..Options::default().cap
    };
    let default = Options::default;
    assert_eq!(sent_until_refused(default()), Some(8));
    assert_eq!(sent_until_refused(Options { flow, ..default() }), Some(4));
    assert_eq!(sent_until_refused(Options { cap, ..default() }), Some(3));
}

#[test]
fn memory_that_may_not_be_used_changes_nothing() {
    let mut pair = Pair::new(Options::default());
    let left = pair.left();
    left.register(77, 0, 4096, Access::empty(), PdId(left.pd().0 + 1));
    let sge = Sge {
        lkey: 77,
        ..piece(left, SOURCE, 64)
    };
    let wr = SendWr {
        data: SendData::Sges(&[sge]),
        ..SEND
    };
    let before = state_of(left);
    assert!(left.qp.may_post_send_only(&wr));
    assert!(left.post_send_only(NOW, &wr).is_none());
    assert_eq!(state_of(left), before);
    left.qp.post_send(&wr).unwrap();
    pair.run();
    assert_eq!(sends(pair.left()), [(1, WcStatus::LocProtErr)]);
}

#[test]
fn a_lost_send_is_sent_again() {
    let mut pair = Pair::new(Options::default());
    let target = piece(pair.right(), TARGET, 64);
    post_recv(pair.right(), 1, &[target]);
    assert!(pair.left().post_send_only(NOW, &SEND).is_some());
    pair.run();
    assert_eq!(pair.left().qp.counters().retransmits, 1);
    assert_eq!(sends(pair.left()), [(1, WcStatus::Success)]);
    assert_eq!(pair.right().bytes(TARGET, 6), b"inline");
    assert_eq!(pair.sent_by(0)[0].opcode, Opcode::RcSendOnly);
}

//! One-sided requests carried out in another process's memory, without packets and without its help.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_provider::traits::Pd;
use portolan_provider::verbs::{
    Access, AsyncEvent, QpAttr, QpAttrMask, QpState, RemoteAddr, SendData, SendFlags, SendOp,
    SendWr, WcStatus,
};
use portolan_roce::io::{Tap, TappedPacket};
use rustix::process::Signal;

use crate::harness::*;
use crate::process::{self, SHAPE};

/// Two ends whose requests are carried out in memory, and the counters that say so.
pub struct Direct(pub Pair);

impl Direct {
    pub fn new() -> Self {
        Self::of(Pair::new("127.0.0.1", PATIENT))
    }

    pub fn of(pair: Pair) -> Self {
        let direct = Self(pair);
        // Until both have each other's memory.
        let deadline = Instant::now() + PATIENCE;
        while direct.carried_out().contains(&0) {
            assert!(
                Instant::now() < deadline,
                "nothing is carried out in memory"
            );
            for (from, to) in [(0, 1), (1, 0)] {
                direct.post_wait(from, SendOp::RdmaWrite(direct.end(to).remote(0)), 0, 8);
            }
        }
        direct
    }

    fn end(&self, number: usize) -> &End {
        [&self.0.a, &self.0.b][number]
    }

    pub fn carried_out(&self) -> [u64; 2] {
        [0, 1].map(|number: usize| self.0.stacks[number].counters().carried_out_in_memory)
    }

    pub fn sent(&self) -> u64 {
        let sent = self
            .0
            .stacks
            .iter()
            .map(|stack| stack.counters().sent_packets);
        sent.sum()
    }

    /// Posts at an end and waits for the completion.
    fn post_wait(&self, from: usize, op: SendOp, at: usize, len: usize) {
        let end = self.end(from);
        end.post(7, op, end.sge(at, len));
        end.expect(7);
    }

    /// What becomes of a request.
    pub fn status_of(&self, op: SendOp, len: usize) -> WcStatus {
        self.0.a.post(1, op, self.0.a.sge(0, len));
        self.0.a.poll().status
    }
}

#[test]
fn writes_reads_and_atomics_of_every_size_need_no_packet() {
    let direct = Direct::new();
    let (a, b) = (&direct.0.a, &direct.0.b);
    let (before, sent) = (direct.carried_out()[0], direct.sent());
    let mut requests = 0;
    for len in [1, 7, 8, 64, 100, 4096, 65_537, 500_000] {
        for at in [0, 1, 3, 8] {
            a.memory.write(0, &pattern(requests, len));
            b.memory.write(0, &vec![0x55; len + 32]);
            direct.post_wait(0, SendOp::RdmaWrite(b.remote(at)), 0, len);
            assert!(b.memory.read(at, len) == pattern(requests, len));
            assert_eq!(b.memory.read(0, at), vec![0x55; at]);
            assert_eq!(b.memory.read(at + len, 9), [0x55; 9]);
            direct.post_wait(0, SendOp::RdmaRead(b.remote(at)), 500_000 + at, len);
            assert!(a.memory.read(500_000 + at, len) == pattern(requests, len));
            requests += 2;
        }
    }
    b.memory.write(64, &5u64.to_ne_bytes());
    let word = || u64::from_ne_bytes(b.memory.read(64, 8).try_into().unwrap());
    let result = || u64::from_ne_bytes(a.memory.read(16, 8).try_into().unwrap());
    let swap = |compare, swap| SendOp::AtomicCmpSwap {
        remote: b.remote(64),
        compare,
        swap,
    };
    for (op, expected) in [
        (swap(4, 9), 5),
        (swap(5, 9), 9),
        (
            SendOp::AtomicFetchAdd {
                remote: b.remote(64),
                add: 3,
            },
            12,
        ),
    ] {
        let original = word();
        direct.post_wait(0, op, 16, 8);
        assert_eq!((result(), word()), (original, expected));
        requests += 1;
    }
    assert_eq!(direct.carried_out()[0] - before, requests);
    assert_eq!(direct.sent(), sent);
}

#[test]
fn a_request_of_many_chunks_arrives_whole() {
    let shape = Shape {
        memory: 16 << 20,
        ..PATIENT
    };
    let direct = Direct::of(Pair::new("::1", shape));
    let (a, b) = (&direct.0.a, &direct.0.b);
    let (len, sent) = ((5 << 20) + 3, direct.sent());
    a.memory.write(1, &pattern(3, len));
    direct.post_wait(0, SendOp::RdmaWrite(b.remote(2)), 1, len);
    assert!(b.memory.read(2, len) == pattern(3, len));
    direct.post_wait(0, SendOp::RdmaRead(b.remote(2)), 8 << 20, len);
    assert!(a.memory.read(8 << 20, len) == pattern(3, len));
    assert_eq!(direct.sent(), sent);
}

#[test]
fn pieces_and_inline_bytes_go_in_order() {
    let direct = Direct::new();
    let (a, b) = (&direct.0.a, &direct.0.b);
    let sent = direct.sent();
    a.memory.write(0, &pattern(1, 1000));
    let post = |data| {
        let op = SendOp::RdmaWrite(b.remote(50));
        let wr = SendWr {
            wr_id: 3,
            op,
            data,
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        };
        a.qp.post_send(&wr).unwrap();
        a.expect(3);
    };
    let pieces = [a.sge(10, 7), a.sge(0, 0), a.sge(100, 33), a.sge(3, 1)];
    post(SendData::Sges(&pieces));
    let expected: Vec<u8> = [(10, 7), (100, 33), (3, 1)]
        .into_iter()
        .flat_map(|(at, len)| a.memory.read(at, len))
        .collect();
    assert_eq!(b.memory.read(50, 41), expected);
    post(SendData::Inline(b"inline bytes"));
    assert_eq!(b.memory.read(50, 12), b"inline bytes");
    assert_eq!(direct.sent(), sent);
}

#[test]
fn sends_and_writes_that_alternate_arrive_in_their_order() {
    let direct = Direct::new();
    let (a, b) = (&direct.0.a, &direct.0.b);
    let before = direct.carried_out()[0];
    for round in 1..200u64 {
        // Each send is followed by a write without a wait, whose place says how far the sends are.
        b.receive(round, b.sge(5000, 8));
        a.memory.write(0, &round.to_ne_bytes());
        a.post(1, SendOp::Send, a.sge(0, 8));
        a.post(2, SendOp::RdmaWrite(b.remote(6000)), a.sge(0, 8));
        until("the write arrives", || {
            b.memory.read(6000, 8) == round.to_ne_bytes()
        });
        // The send is before it: it is there.
        assert_eq!(b.memory.read(5000, 8), round.to_ne_bytes());
        b.expect(round);
        a.expect(1);
        a.expect(2);
        direct.post_wait(0, SendOp::RdmaWrite(b.remote(7000)), 0, 8);
    }
    assert!(
        direct.carried_out()[0] - before >= 199,
        "those with nothing before them"
    );
}

/// Requests that must not succeed end alike through memory and through packets.
#[test]
fn a_request_beyond_the_rights_ends_as_it_does_by_packets() {
    type Wrong = fn(&End, &Arc<dyn Pd>) -> (SendOp, usize);
    let cases: [(&str, Wrong, WcStatus); 8] = [
        (
            "an unknown key",
            |b, _| {
                let RemoteAddr { addr, rkey } = b.remote(0);
                (
                    SendOp::RdmaWrite(RemoteAddr {
                        addr,
                        rkey: rkey ^ 1,
                    }),
                    8,
                )
            },
            WcStatus::RemAccessErr,
        ),
        (
            "beyond the end",
            |b, _| (SendOp::RdmaWrite(b.remote((1 << 20) - 7)), 8),
            WcStatus::RemAccessErr,
        ),
        (
            "before the start",
            |b, _| {
                let RemoteAddr { addr, rkey } = b.remote(0);
                (
                    SendOp::RdmaRead(RemoteAddr {
                        addr: addr - 1,
                        rkey,
                    }),
                    8,
                )
            },
            WcStatus::RemAccessErr,
        ),
        (
            "a key for reading only",
            |b, _| (SendOp::RdmaWrite(also(b, &b.pd, Access::REMOTE_READ)), 8),
            WcStatus::RemAccessErr,
        ),
        (
            "a key for writing only",
            |b, _| {
                let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
                (SendOp::RdmaRead(also(b, &b.pd, access)), 8)
            },
            WcStatus::RemAccessErr,
        ),
        (
            "a key without atomics",
            |b, _| {
                let access = Access::REMOTE_WRITE | Access::LOCAL_WRITE;
                let remote = also(b, &b.pd, access);
                (SendOp::AtomicFetchAdd { remote, add: 1 }, 8)
            },
            WcStatus::RemAccessErr,
        ),
        (
            "another protection domain",
            |b, other| (SendOp::RdmaWrite(also(b, other, ALL_RIGHTS)), 8),
            WcStatus::RemAccessErr,
        ),
        (
            "an atomic that is not aligned",
            |b, _| {
                (
                    SendOp::AtomicFetchAdd {
                        remote: b.remote(4),
                        add: 1,
                    },
                    8,
                )
            },
            WcStatus::RemInvReqErr,
        ),
    ];
    for (name, wrong, expected) in cases {
        let direct = Direct::new();
        let b = &direct.0.b;
        let other = b.device.alloc_pd().unwrap();
        let (op, len) = wrong(b, &other);
        let before = b.memory.read(0, 1 << 20);
        assert_eq!(direct.status_of(op, len), expected, "{name}");
        assert!(b.memory.read(0, 1 << 20) == before, "{name}");
        // The peer's queue pair fails with it, and tells.
        assert_eq!(b.qp.query().unwrap().0.state, QpState::Err, "{name}");
        until("the event", || match b.device.take_async_event().unwrap() {
            Some(event) => matches!(event, AsyncEvent::QpAccessErr(_) | AsyncEvent::QpReqErr(_)),
            None => false,
        });
    }
}

/// The first bytes of an end's memory under another key, which lives on.
fn also(end: &End, pd: &Arc<dyn Pd>, access: Access) -> RemoteAddr {
    let mr = end.memory.register(pd, access);
    let rkey = mr.rkey();
    std::mem::forget(mr);
    RemoteAddr {
        addr: end.memory.addr(),
        rkey,
    }
}

#[test]
fn a_key_for_writing_alone_lets_write_without_packets() {
    let direct = Direct::new();
    let b = &direct.0.b;
    let remote = also(b, &b.pd, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let sent = direct.sent();
    direct.post_wait(0, SendOp::RdmaWrite(remote), 0, 8);
    assert_eq!(direct.sent(), sent);
}

#[test]
fn rights_taken_from_a_queue_pair_hold_when_the_call_returns() {
    let direct = Direct::new();
    let (b, sent) = (&direct.0.b, direct.sent());
    let set = |access| {
        let attr = QpAttr {
            access,
            ..QpAttr::default()
        };
        b.qp.modify(&attr, QpAttrMask::ACCESS_FLAGS).unwrap();
    };
    set(Access::REMOTE_WRITE);
    direct.post_wait(0, SendOp::RdmaWrite(b.remote(0)), 0, 8);
    assert_eq!(direct.sent(), sent);
    assert_eq!(
        direct.status_of(SendOp::RdmaRead(b.remote(0)), 8),
        WcStatus::RemInvReqErr
    );
}

#[test]
fn a_deregistered_region_is_not_reached_any_more() {
    let direct = Direct::new();
    let (a, b) = (&direct.0.a, &direct.0.b);
    a.memory.write(0, &[9; 8]);
    let remote = b.remote(0);
    b.mr.deregister().unwrap();
    assert!(!b.memory.pages.as_ref().unwrap().is_held());
    assert_eq!(
        direct.status_of(SendOp::RdmaWrite(remote), 8),
        WcStatus::RemAccessErr
    );
    assert_ne!(b.memory.read(0, 8), [9; 8]);
}

#[test]
fn a_queue_pair_that_has_ended_takes_nothing() {
    // Half a second: the requests that set the pair up must not time out beside other programs.
    let shape = Shape {
        timeout: 14,
        retry_cnt: 7,
        ..PATIENT
    };
    for destroy in [true, false] {
        let direct = Direct::of(Pair::new("127.0.0.1", shape));
        let (a, b) = (&direct.0.a, &direct.0.b);
        a.memory.write(0, &[9; 8]);
        if destroy {
            b.qp.destroy().unwrap();
        } else {
            let attr = QpAttr {
                state: QpState::Err,
                ..QpAttr::default()
            };
            b.qp.modify(&attr, QpAttrMask::STATE).unwrap();
        }
        let status = direct.status_of(SendOp::RdmaWrite(b.remote(0)), 8);
        assert_eq!(status, WcStatus::RetryExcErr);
        assert_ne!(b.memory.read(0, 8), [9; 8]);
    }
}

#[test]
fn while_either_end_has_a_tap_it_sees_packets() {
    #[derive(Debug)]
    struct Counting;
    impl Tap for Counting {
        fn packet(&self, _: &TappedPacket<'_>) {}
    }
    let direct = Direct::new();
    for number in [0, 1] {
        direct.0.stacks[number].set_tap(Some(Arc::new(Counting)));
        let (before, sent) = (direct.carried_out()[0], direct.sent());
        direct.post_wait(0, SendOp::RdmaWrite(direct.0.b.remote(0)), 0, 8);
        assert_eq!(direct.carried_out()[0], before);
        assert!(direct.sent() > sent);
        direct.0.stacks[number].set_tap(None);
        direct.post_wait(0, SendOp::RdmaWrite(direct.0.b.remote(0)), 0, 8);
        assert_eq!(direct.carried_out()[0], before + 1);
    }
}

#[test]
fn a_stopped_process_is_written_to_and_read_from() {
    let (stack, end, mut peer, remote) = process::connect_stack("127.0.0.1", SHAPE);
    process::until_without_packet(&stack, &end, SendOp::RdmaWrite(remote), 8);
    peer.signal(Signal::STOP);
    for round in 0..100 {
        end.memory.write(1000, &pattern(round, 9000));
        end.post(2, SendOp::RdmaWrite(remote), end.sge(1000, 9000));
        end.expect(2);
        end.post(3, SendOp::RdmaRead(remote), end.sge(20_000, 9000));
        end.expect(3);
        assert!(end.memory.read(20_000, 9000) == pattern(round, 9000));
        end.memory.write(1000, &round.to_ne_bytes());
        end.post(4, SendOp::RdmaWrite(remote), end.sge(1000, 8));
        end.expect(4);
        let op = SendOp::AtomicCmpSwap {
            remote,
            compare: round,
            swap: 5,
        };
        end.post(5, op, end.sge(0, 8));
        end.expect(5);
        assert_eq!(end.memory.read(0, 8), round.to_ne_bytes());
    }
    peer.signal(Signal::CONT);
    end.memory.write(1000, &[3; 9000]);
    end.post(6, SendOp::RdmaWrite(remote), end.sge(1000, 9000));
    end.expect(6);
    peer.tell("spin 3");
    assert_eq!(peer.answer(), "saw 3");
}

#[test]
fn memory_taken_from_a_process_that_is_stopped_anywhere_is_not_written_to_later() {
    let (end, mut peer, _) = process::connect("127.0.0.1", SHAPE);
    let mine = end.remote(0);
    peer.tell(&format!("stamp {}", mine.addr));
    peer.tell(&mine.rkey.to_string());
    assert_eq!(peer.answer(), "stamping");
    until("it writes", || end.memory.byte(0) == 0xee);
    std::thread::sleep(Duration::from_millis(50));
    peer.signal(Signal::STOP);
    let began = Instant::now();
    end.mr.deregister().unwrap();
    assert!(began.elapsed() < PATIENCE, "it waits for nobody");
    let is_held = end.memory.pages.as_ref().unwrap().is_held();
    if !is_held {
        // It is this process's alone.
        end.memory.write(0, &vec![1; 1 << 19]);
    }
    peer.signal(Signal::CONT);
    assert_eq!(peer.answer(), "refused");
    if !is_held {
        assert!(end.memory.read(0, 1 << 19) == vec![1; 1 << 19]);
    }
}

#[test]
fn processes_killed_anywhere_leave_nothing_behind() {
    pass_in_own_process("one_sided::killing_process");
}

#[test]
#[ignore = "runs as a process of its own, started by another test"]
fn killing_process() {
    // As often as this says, or a few times.
    let kills = std::env::var("PORTOLAN_TEST_KILLS").map_or(12, |kills| kills.parse().unwrap());
    let config = config();
    let ip: IpAddr = "127.0.0.1".parse().unwrap();
    let stack = stack(&config);
    // Shared memory files that are mapped, and descriptors.
    let counts = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let maps = maps.matches("memfd:portolan").count();
        (maps, std::fs::read_dir("/proc/self/fd").unwrap().count())
    };
    let once = |round: u64| {
        let end = End::new(&stack, ip, SHAPE);
        let (mut peer, _) = process::connect_end(&config, &end, SHAPE);
        let mine = end.remote(0);
        peer.tell(&format!("stamp {}", mine.addr));
        peer.tell(&mine.rkey.to_string());
        assert_eq!(peer.answer(), "stamping");
        until("it writes", || end.memory.byte(0) == 0xee);
        std::thread::sleep(Duration::from_micros(round * 7919 % 20_000));
        peer.kill();
        let began = Instant::now();
        end.mr.deregister().unwrap();
        assert!(began.elapsed() < PATIENCE);
    };
    // What is made once stays.
    once(0);
    let mut before = counts();
    until("the first one's is gone", || {
        std::thread::sleep(Duration::from_millis(100));
        std::mem::replace(&mut before, counts()) == before
    });
    for round in 1..=kills {
        once(round);
    }
    until("nothing is left", || {
        std::thread::sleep(Duration::from_millis(10));
        counts() == before
    });
}

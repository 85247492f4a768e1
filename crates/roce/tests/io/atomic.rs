//! Atomics on real memory: with other connections and with the program itself.

use std::sync::atomic::{AtomicU64, Ordering};

use portolan_provider::verbs::{AtomicCap, SendOp, WcStatus};

use crate::harness::{End, Pair, Shape};

/// The word at the start of an end's memory.
fn word(end: &End) -> &AtomicU64 {
    let at = std::ptr::with_exposed_provenance_mut(end.memory.addr() as usize);
    // SAFETY: the memory is aligned (asserted where it is used), lives as long as the end, and is accessed only
    // by atomics while the test runs.
    unsafe { AtomicU64::from_ptr(at) }
}

fn add_one(from: &End, to: &End, wr_id: u64) {
    let remote = to.remote(0);
    from.post(
        wr_id,
        SendOp::AtomicFetchAdd { remote, add: 1 },
        from.sge(8, 8),
    );
    from.expect(wr_id);
}

#[test]
fn additions_of_a_peer_and_of_the_program_itself_are_all_counted() {
    const ROUNDS: u64 = 2_000;
    for ip in ["127.0.0.1", "::1"] {
        let pair = Pair::new(ip, Shape::default());
        let (a, b) = (&pair.a, &pair.b);
        assert_eq!(b.memory.addr() % 8, 0, "a large allocation is aligned");
        let own = std::thread::scope(|scope| {
            let program = scope.spawn(|| {
                let mut own = 0u64;
                while word(b).load(Ordering::Relaxed) >> 32 == 0 {
                    word(b).fetch_add(1, Ordering::Relaxed);
                    own += 1;
                }
                own
            });
            for round in 0..ROUNDS {
                add_one(a, b, round);
            }
            // The high half shows that the peer is done.
            let (remote, add) = (b.remote(0), 1 << 32);
            a.post(ROUNDS, SendOp::AtomicFetchAdd { remote, add }, a.sge(8, 8));
            a.expect(ROUNDS);
            program.join().expect("the program counts")
        });
        let total = word(b).load(Ordering::Relaxed);
        assert_eq!(total & 0xffff_ffff, (ROUNDS + own) & 0xffff_ffff);
    }
}

#[test]
fn a_compare_and_swap_lock_goes_to_one_of_two_peers() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    let attempt = |wr_id, swap| {
        let (remote, compare) = (b.remote(0), 0);
        let op = SendOp::AtomicCmpSwap {
            remote,
            compare,
            swap,
        };
        a.post(wr_id, op, a.sge(16, 8));
        a.expect(wr_id);
        u64::from_ne_bytes(a.memory.read(16, 8).try_into().unwrap())
    };
    assert_eq!(attempt(1, 11), 0);
    assert_eq!(attempt(2, 22), 11, "the second sees the holder");
    assert_eq!(word(b).load(Ordering::SeqCst), 11);
}

#[test]
fn a_word_that_is_not_aligned_is_refused_and_untouched() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    let remote = b.remote(4);
    a.post(1, SendOp::AtomicFetchAdd { remote, add: 1 }, a.sge(8, 8));
    assert_eq!(a.poll().status, WcStatus::RemInvReqErr);
    assert_eq!(b.memory.read(0, 16), [0; 16]);
}

#[test]
fn the_device_reports_that_its_atomics_are_the_processors() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    assert_eq!(pair.a.device.attr().unwrap().atomic_cap, AtomicCap::Global);
}

//! Changed memory regions (`ibv_rereg_mr(3)`): what peers can access before and after.

use std::sync::atomic::{AtomicBool, Ordering};

use portolan_provider::Cause;
use portolan_provider::error::errno;
use portolan_provider::verbs::{Access, MrRange, MwBind, MwType, SendFlags, SendOp, WcStatus};

use crate::harness::{ALL_RIGHTS, End, Pair, Shape, until};

const HALF: usize = 1 << 19;

/// The first or the second half of an end's memory.
fn half(end: &End, number: usize) -> MrRange {
    let addr = end.memory.addr() + (number * HALF) as u64;
    MrRange {
        addr,
        length: HALF as u64,
        iova: addr,
    }
}

fn reregister(
    end: &End,
    range: Option<MrRange>,
    access: Option<Access>,
) -> portolan_provider::Result<()> {
    // SAFETY: the ranges are in the end's memory or refused; the memory outlives the region.
    unsafe { end.pd.reregister(&end.mr, range, access) }
}

fn write(pair: &Pair, at: usize) -> WcStatus {
    let (a, b) = (&pair.a, &pair.b);
    a.post(1, SendOp::RdmaWrite(b.remote(at)), a.sge(0, 64));
    a.poll().status
}

#[test]
fn the_same_key_reaches_the_new_range_and_not_the_old_one() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let key = pair.b.mr.rkey();
    reregister(&pair.b, Some(half(&pair.b, 0)), None).unwrap();
    assert_eq!(write(&pair, 0), WcStatus::Success);
    reregister(&pair.b, Some(half(&pair.b, 1)), None).unwrap();
    assert_eq!(pair.b.mr.rkey(), key);
    pair.a.memory.write(0, &[5; 64]);
    assert_eq!(write(&pair, HALF), WcStatus::Success);
    assert_eq!(pair.b.memory.read(HALF, 64), [5; 64]);
    assert_eq!(write(&pair, 0), WcStatus::RemAccessErr);
    assert_eq!(pair.b.memory.read(0, 64), [0; 64]);
}

#[test]
fn the_old_range_is_not_touched_after_the_change_returns_even_under_traffic() {
    for _ in 0..10 {
        let pair = Pair::new("127.0.0.1", Shape::default());
        let (a, b) = (&pair.a, &pair.b);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut posted, mut done) = (0, 0);
                let failed = loop {
                    while posted - done < 16 {
                        a.post(posted, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 16_384));
                        posted += 1;
                    }
                    let wc = a.poll();
                    if wc.status != WcStatus::Success {
                        break wc.status;
                    }
                    done += 1;
                };
                assert_eq!(failed, WcStatus::RemAccessErr);
                stop.store(true, Ordering::Release);
            });
            a.memory.write(0, &[1; 16_384]);
            until("the first write arrives", || b.memory.byte(0) != 0);
            reregister(b, Some(half(b, 1)), None).unwrap();
            b.memory.write(0, &[7; 16_384]);
            until("a write is refused", || stop.load(Ordering::Acquire));
            assert!(b.memory.read(0, 16_384).iter().all(|byte| *byte == 7));
        });
    }
}

#[test]
fn a_receive_posted_before_the_change_does_not_reach_the_old_range() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    b.receive(1, b.sge(0, 64));
    reregister(b, Some(half(b, 1)), None).unwrap();
    a.memory.write(0, &[5; 64]);
    a.post(1, SendOp::Send, a.sge(0, 64));
    assert_eq!(a.poll().status, WcStatus::RemOpErr);
    assert_eq!(b.poll().status, WcStatus::LocProtErr);
    assert_eq!(b.memory.read(0, 64), [0; 64]);
}

#[test]
fn rights_are_revoked_and_granted_and_the_range_stays() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    reregister(&pair.b, None, Some(Access::LOCAL_WRITE)).unwrap();
    reregister(&pair.b, None, Some(ALL_RIGHTS)).unwrap();
    assert_eq!(write(&pair, 2 * HALF - 64), WcStatus::Success);
    reregister(&pair.b, None, Some(Access::LOCAL_WRITE)).unwrap();
    assert_eq!(write(&pair, 0), WcStatus::RemAccessErr);
}

#[test]
fn in_another_protection_domain_the_queue_pair_cannot_access_it() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let other = pair.b.device.alloc_pd().unwrap();
    // SAFETY: the memory stays the same.
    unsafe { other.reregister(&pair.b.mr, None, None) }.unwrap();
    assert_eq!(write(&pair, 0), WcStatus::RemAccessErr);
    let pair = Pair::new("127.0.0.1", Shape::default());
    let other = pair.b.device.alloc_pd().unwrap();
    // SAFETY: as above.
    unsafe { other.reregister(&pair.b.mr, None, None) }.unwrap();
    reregister(&pair.b, None, None).unwrap();
    assert_eq!(write(&pair, 0), WcStatus::Success);
}

#[test]
fn a_refused_change_leaves_the_region_as_it_was() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let b = &pair.b;
    let nowhere = MrRange {
        addr: 4096,
        length: 4096,
        iova: 4096,
    };
    let error = reregister(b, Some(nowhere), None).unwrap_err();
    assert!(matches!(error.cause, Cause::BadMemory { .. }), "{error}");
    let rights = Some(Access::REMOTE_WRITE);
    let error = reregister(b, Some(half(b, 1)), rights).unwrap_err();
    assert_eq!(error.errno(), errno::EINVAL, "{error}");
    assert_eq!(write(&pair, 0), WcStatus::Success);

    reregister(b, None, Some(ALL_RIGHTS | Access::MW_BIND)).unwrap();
    let mw = b.pd.alloc_mw(MwType::Type1).unwrap();
    let bind = MwBind {
        lkey: b.mr.lkey(),
        addr: b.memory.addr(),
        length: 64,
        access: Access::REMOTE_WRITE,
    };
    b.qp.bind_mw(&mw, 1, &bind, SendFlags::SIGNALED).unwrap();
    b.expect(1);
    let error = reregister(b, Some(half(b, 1)), None).unwrap_err();
    assert_eq!(error.errno(), errno::EBUSY, "{error}");
    mw.deallocate().unwrap();
    reregister(b, Some(half(b, 1)), None).unwrap();
    b.mr.deregister().unwrap();
    let error = reregister(b, None, Some(ALL_RIGHTS)).unwrap_err();
    assert_eq!(error.cause, Cause::NoSuchObject("memory region"));
}

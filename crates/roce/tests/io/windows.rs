//! Memory windows over real sockets, and resized completion queues.

use std::sync::Arc;

use portolan_provider::Cause;
use portolan_provider::error::errno;
use portolan_provider::traits::Mr;
use portolan_provider::verbs::{
    Access, MwBind, MwType, RemoteAddr, SendData, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};

use crate::harness::{ALL_RIGHTS, End, Pair, Shape, config, pattern, stack};

/// Registers the end's memory so that windows may be bound to it.
fn region(end: &End) -> Arc<dyn Mr> {
    let (addr, access) = (end.memory.addr(), ALL_RIGHTS | Access::MW_BIND);
    // SAFETY: the memory outlives the region, which the test drops before the end.
    unsafe { end.pd.register(addr, 1 << 20, access) }.unwrap()
}

fn part(end: &End, mr: &Arc<dyn Mr>) -> MwBind {
    MwBind {
        lkey: mr.lkey(),
        addr: end.memory.addr() + 4096,
        length: 8192,
        access: Access::REMOTE_READ | Access::REMOTE_WRITE,
    }
}

fn work(end: &End, wr_id: u64, op: SendOp) {
    let wr = SendWr {
        wr_id,
        op,
        data: SendData::Sges(&[]),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    end.qp.post_send(&wr).unwrap();
}

fn write_through(pair: &Pair, wr_id: u64, rkey: u32) -> WcStatus {
    let addr = pair.b.memory.addr() + 4096;
    let op = SendOp::RdmaWrite(RemoteAddr { addr, rkey });
    pair.a.post(wr_id, op, pair.a.sge(0, 8192));
    pair.a.poll().status
}

#[test]
fn a_window_of_type_1_is_bound_rebound_and_closed() {
    for ip in ["127.0.0.1", "::1"] {
        let pair = Pair::new(ip, Shape::default());
        let mr = region(&pair.b);
        let mw = pair.b.pd.alloc_mw(MwType::Type1).unwrap();
        let unbound = mw.rkey();
        let bind = part(&pair.b, &mr);
        let signaled = SendFlags::SIGNALED;
        let first = pair.b.qp.bind_mw(&mw, 1, &bind, signaled).unwrap();
        assert_eq!(pair.b.expect(1).opcode, WcOpcode::BindMw);
        assert_eq!(mw.rkey(), first);
        assert_eq!(first >> 8, unbound >> 8);
        assert_ne!(first, unbound);
        pair.a.memory.write(0, &pattern(7, 8192));
        assert_eq!(write_through(&pair, 1, first), WcStatus::Success);
        assert_eq!(pair.b.memory.read(4096, 8192), pattern(7, 8192));
        let second = pair.b.qp.bind_mw(&mw, 2, &bind, signaled).unwrap();
        pair.b.expect(2);
        assert_eq!(write_through(&pair, 2, second), WcStatus::Success);
        let busy = mr.deregister().unwrap_err();
        assert_eq!(busy.errno(), errno::EBUSY, "{busy}");
        let nothing = MwBind { length: 0, ..bind };
        let third = pair.b.qp.bind_mw(&mw, 3, &nothing, signaled).unwrap();
        pair.b.expect(3);
        assert_eq!(write_through(&pair, 3, third), WcStatus::RemAccessErr);
        mr.deregister().unwrap();
    }
}

#[test]
fn a_window_of_type_2_is_bound_by_work_and_invalidated_by_the_peers_send() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let mr = region(&pair.b);
    let mw = pair.b.pd.alloc_mw(MwType::Type2).unwrap();
    let refused = pair
        .b
        .qp
        .bind_mw(&mw, 1, &part(&pair.b, &mr), SendFlags::SIGNALED);
    assert_eq!(
        refused.unwrap_err().errno(),
        errno::EINVAL,
        "for type 1 only"
    );
    let (rkey, new_rkey) = (mw.rkey(), mw.rkey() ^ 0x55);
    let bind = part(&pair.b, &mr);
    let op = SendOp::BindMw {
        rkey,
        new_rkey,
        bind,
    };
    work(&pair.b, 1, op);
    pair.b.expect(1);
    assert_eq!(write_through(&pair, 1, new_rkey), WcStatus::Success);
    pair.b.receive(5, pair.b.sge(0, 64));
    let op = SendOp::SendWithInv(new_rkey);
    pair.a.post(2, op, pair.a.sge(0, 64));
    let received = pair.b.expect(5);
    assert_eq!(received.invalidated_rkey, Some(new_rkey));
    pair.a.expect(2);
    mr.deregister().unwrap();
    assert_eq!(write_through(&pair, 3, new_rkey), WcStatus::RemAccessErr);
}

#[test]
fn a_window_deallocated_and_a_region_dropped_close_it() {
    for is_region in [false, true] {
        let pair = Pair::new("127.0.0.1", Shape::default());
        let mr = region(&pair.b);
        let mw = pair.b.pd.alloc_mw(MwType::Type1).unwrap();
        let bind = part(&pair.b, &mr);
        let rkey = pair.b.qp.bind_mw(&mw, 1, &bind, SendFlags::SIGNALED);
        pair.b.expect(1);
        match is_region {
            true => drop(mr),
            false => {
                mw.deallocate().unwrap();
                mr.deregister().unwrap();
            }
        }
        let status = write_through(&pair, 2, rkey.unwrap());
        assert_eq!(status, WcStatus::RemAccessErr);
    }
}

#[test]
fn a_region_is_free_of_windows_once_their_queue_pair_is_destroyed() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let mr = region(&pair.b);
    let mw = pair.b.pd.alloc_mw(MwType::Type2).unwrap();
    let (rkey, bind) = (mw.rkey(), part(&pair.b, &mr));
    let op = SendOp::BindMw {
        rkey,
        new_rkey: rkey ^ 1,
        bind,
    };
    work(&pair.b, 1, op);
    pair.b.expect(1);
    assert_eq!(mr.deregister().unwrap_err().errno(), errno::EBUSY);
    pair.b.qp.destroy().unwrap();
    mr.deregister().unwrap();
    let objects = pair.stacks[1].objects();
    assert_eq!((objects.memory_windows, objects.memory_regions), (1, 2));
}

#[test]
fn a_wrong_binding_is_reported_by_its_completion() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let mw = pair.b.pd.alloc_mw(MwType::Type1).unwrap();
    // This region does not allow windows.
    let bind = part(&pair.b, &pair.b.mr);
    let posted = pair.b.qp.bind_mw(&mw, 1, &bind, SendFlags::SIGNALED);
    assert!(posted.is_ok());
    assert_eq!(pair.b.poll().status, WcStatus::MwBindErr);
}

#[test]
fn windows_are_bounded() {
    let mut config = config();
    config.limits.max_mw = 1;
    let stack = stack(&config);
    let end = End::new(&stack, "127.0.0.1".parse().unwrap(), Shape::default());
    assert_eq!(end.device.attr().unwrap().max_mw, 1);
    let first = end.pd.alloc_mw(MwType::Type2).unwrap();
    let second = end.pd.alloc_mw(MwType::Type2).unwrap_err();
    assert!(
        matches!(second.cause, Cause::LimitReached { .. }),
        "{second}"
    );
    drop(first);
    end.pd.alloc_mw(MwType::Type2).unwrap();
}

#[test]
fn a_completion_queue_grows_and_shrinks_while_work_is_in_progress() {
    let shape = Shape {
        cqe: 4,
        ..Shape::default()
    };
    let pair = Pair::new("127.0.0.1", shape);
    let (a, b) = (&pair.a, &pair.b);
    a.cq.resize(32).unwrap();
    assert_eq!(a.cq.capacity(), 32);
    for wr_id in 0..20 {
        a.post(wr_id, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8));
    }
    a.expect(0);
    // The peer's write arrives after its acknowledgement of our last one, so all completions wait in the queue:
    // more than it held at first.
    let last = 20;
    a.memory.write(8, &[1]);
    a.post(last, SendOp::RdmaWrite(b.remote(8)), a.sge(8, 8));
    crate::harness::until("the last one is written", || b.memory.byte(8) == 1);
    b.post(0, SendOp::RdmaWrite(a.remote(64)), b.sge(0, 8));
    b.expect(0);
    let refused = a.cq.resize(19).unwrap_err();
    assert_eq!(refused.errno(), errno::EINVAL, "{refused}");
    for wr_id in 1..=last {
        a.expect(wr_id);
    }
    a.cq.resize(1).unwrap();
    for wrong in [0, u32::MAX] {
        assert_eq!(a.cq.resize(wrong).unwrap_err().errno(), errno::EINVAL);
    }
    assert_eq!(a.cq.capacity(), 1);
}

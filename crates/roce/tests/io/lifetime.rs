//! After destroying or deregistering returns, nothing touches memory or completes.

use std::sync::atomic::{AtomicBool, Ordering};

use portolan_provider::Cause;
use portolan_provider::address::ip_to_gid;
use portolan_provider::verbs::{QpAttrMask, QpState, SendOp, WcStatus, WorkCompletion};

use crate::harness::{End, Pair, Shape, config, stack, until};
use crate::ud_end::UdEnd;

#[test]
fn memory_is_not_touched_after_deregistering_returns_even_under_traffic() {
    for _ in 0..20 {
        let pair = Pair::new("127.0.0.1", Shape::default());
        let (a, b) = (&pair.a, &pair.b);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut posted = 0;
                let mut done = 0;
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
            b.mr.deregister().unwrap();
            b.memory.write(0, &[7; 16_384]);
            until("a write is refused", || stop.load(Ordering::Acquire));
            assert!(b.memory.read(0, 16_384).iter().all(|byte| *byte == 7));
        });
        b.mr.deregister().unwrap();
    }
}

#[test]
fn a_destroyed_queue_pair_completes_nothing_and_its_number_is_dead() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    b.receive(1, b.sge(0, 64));
    a.post(1, SendOp::Send, a.sge(0, 64));
    a.expect(1);
    // Its completion is in the queue or may arrive at any moment.
    b.qp.destroy().unwrap();
    assert_eq!(b.try_poll(), None);
    let refused = b.qp.post_recv(&portolan_provider::verbs::RecvWr {
        wr_id: 2,
        sges: &[],
    });
    assert_eq!(
        refused.unwrap_err().cause,
        Cause::NoSuchObject("queue pair")
    );
    b.qp.destroy().unwrap();
    a.post(2, SendOp::Send, a.sge(0, 64));
    until("its number is found dead", || {
        assert_eq!(a.try_poll().map(|wc| wc.wr_id), None);
        pair.stacks[1].counters().dropped_no_queue_pair > 0
    });
}

/// Destroys the queue pair, or moves it to ERR.
fn end_queue_pair(end: &End, destroys: bool) {
    if destroys {
        return end.qp.destroy().unwrap();
    }
    let error = portolan_provider::verbs::QpAttr {
        state: QpState::Err,
        ..Default::default()
    };
    end.qp.modify(&error, QpAttrMask::STATE).unwrap();
}

#[test]
fn arrived_messages_are_acknowledged_even_if_the_receiver_ends_before_it_sees_them() {
    for destroys in [true, false] {
        for _ in 0..50 {
            let pair = Pair::new("127.0.0.1", Shape::default());
            let (a, b) = (&pair.a, &pair.b);
            b.receive(1, b.sge(0, 64));
            // While the receiver polls, its progress thread leaves the packets to it.
            let polled = std::time::Instant::now();
            while polled.elapsed() < std::time::Duration::from_millis(3) {
                assert_eq!(b.try_poll(), None);
            }
            a.post(1, SendOp::Send, a.sge(0, 64));
            end_queue_pair(b, destroys);
            a.expect(1);
        }
    }
}

#[test]
fn received_messages_are_acknowledged_even_if_the_receiver_ends_at_once() {
    for destroys in [true, false] {
        for _ in 0..50 {
            let pair = Pair::new("127.0.0.1", Shape::default());
            let (a, b) = (&pair.a, &pair.b);
            b.receive(1, b.sge(0, 64));
            a.post(1, SendOp::Send, a.sge(0, 64));
            // Polled, so that the acknowledgement waits to be sent with an answer.
            b.expect(1);
            end_queue_pair(b, destroys);
            // From the only acknowledgement: nobody would send another.
            a.expect(1);
        }
    }
}

#[test]
fn a_dropped_stack_leaves_the_group_even_if_its_objects_live_on() {
    let (config, ip) = (config(), "127.0.0.1".parse().unwrap());
    let first = stack(&config);
    let second = stack(&config);
    assert!(first.group_status().is_coordinator);
    let group = ip_to_gid("239.68.0.1".parse().unwrap());
    let kept = UdEnd::new(&first, ip);
    kept.qp.attach_mcast(&group, 0).unwrap();
    drop(first);
    until("another leads", || second.group_status().is_coordinator);
    until("the first stack is known to be gone", || {
        second.group_status().members.len() == 1
    });
    let third = stack(&config);
    // The rest of a stack can only be used without effect.
    assert_eq!(kept.cq.poll(&mut [WorkCompletion::EMPTY]).unwrap(), 0);
    kept.qp.attach_mcast(&group, 0).unwrap_err();
    kept.qp.detach_mcast(&group, 0).unwrap_err();
    let also_kept = End::new(&second, ip, Shape::default());
    drop((second, third));
    // The port becomes free with the last stack.
    let founder = stack(&config);
    assert!(founder.group_status().is_coordinator);
    assert_eq!(also_kept.try_poll(), None);
}

#[test]
fn a_forked_child_is_refused_and_leaves_the_parent_its_connection() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    // SAFETY: the child makes only calls that are refused before they take a lock, and ends with `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let poll = a.cq.poll(&mut [WorkCompletion::EMPTY]);
        let post = a.qp.post_recv(&portolan_provider::verbs::RecvWr {
            wr_id: 2,
            sges: &[],
        });
        let refused = [poll.map(|_| ()), post, a.qp.destroy(), a.mr.deregister()]
            .iter()
            .all(|result| matches!(result, Err(error) if error.errno() == 95));
        // SAFETY: ends the child at once, without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child created above; `status` is valid for the write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child was not refused");
    a.post(1, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 64));
    a.expect(1);
}

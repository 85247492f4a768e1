//! Failures as verbs define them: at the side that caused them, with the status of the cause.

use std::time::{Duration, Instant};

use portolan_provider::Cause;
use portolan_provider::verbs::{
    Access, AsyncEvent, QpAttr, QpAttrMask, QpState, RemoteAddr, SendOp, WcStatus,
};

use crate::harness::{End, PATIENCE, Pair, Shape, config, stack};

#[test]
fn a_missing_peer_exhausts_the_retries_and_later_work_is_flushed() {
    let shape = Shape {
        timeout: 8,
        retry_cnt: 2,
        ..Shape::default()
    };
    let Pair {
        a,
        b,
        stacks,
        config: _,
    } = Pair::new("127.0.0.1", shape);
    drop(b);
    drop(stacks);
    a.post(1, SendOp::Send, a.sge(0, 100));
    let failed = a.poll();
    assert_eq!((failed.wr_id, failed.status), (1, WcStatus::RetryExcErr));
    assert_eq!(a.qp.query().unwrap().0.state, QpState::Err);
    a.post(2, SendOp::Send, a.sge(0, 100));
    assert_eq!(a.poll().status, WcStatus::WrFlushErr);
}

#[test]
fn timers_run_without_polling() {
    let shape = Shape {
        timeout: 8,
        retry_cnt: 1,
        ..Shape::default()
    };
    let Pair {
        a,
        b,
        stacks,
        config: _,
    } = Pair::new("127.0.0.1", shape);
    b.qp.destroy().unwrap();
    a.cq.arm(false).unwrap();
    a.post(1, SendOp::Send, a.sge(0, 100));
    a.sleep(Instant::now() + PATIENCE);
    assert_eq!(a.try_poll().unwrap().status, WcStatus::RetryExcErr);
    drop(stacks);
}

#[test]
fn a_receiver_that_is_not_ready_is_waited_for_as_long_as_the_attribute_says() {
    let patient = Pair::new("127.0.0.1", Shape::default());
    patient.a.post(1, SendOp::Send, patient.a.sge(0, 10));
    let until = Instant::now() + Duration::from_millis(50);
    while Instant::now() < until {
        assert_eq!(patient.a.try_poll(), None);
    }
    patient.b.receive(9, patient.b.sge(0, 10));
    patient.a.expect(1);
    patient.b.expect(9);

    let impatient = Pair::new(
        "127.0.0.1",
        Shape {
            rnr_retry: 2,
            ..Shape::default()
        },
    );
    impatient.a.post(1, SendOp::Send, impatient.a.sge(0, 10));
    assert_eq!(impatient.a.poll().status, WcStatus::RnrRetryExcErr);
}

#[test]
fn a_wrong_key_a_wrong_range_and_a_wrong_length_have_distinct_errors() {
    let status = |op: fn(&Pair) -> SendOp, receive: usize| {
        let pair = Pair::new("127.0.0.1", Shape::default());
        if receive > 0 {
            pair.b.receive(5, pair.b.sge(0, receive));
        }
        pair.a.post(1, op(&pair), pair.a.sge(0, 1000));
        let at_sender = pair.a.poll().status;
        let at_receiver = (receive > 0).then(|| pair.b.poll().status);
        (at_sender, at_receiver)
    };
    let wrong_key = |pair: &Pair| {
        let remote = pair.b.remote(0);
        SendOp::RdmaWrite(RemoteAddr {
            rkey: remote.rkey ^ 1,
            ..remote
        })
    };
    assert_eq!(status(wrong_key, 0), (WcStatus::RemAccessErr, None));
    let past_the_end = |pair: &Pair| SendOp::RdmaRead(pair.b.remote((1 << 20) - 999));
    assert_eq!(status(past_the_end, 0), (WcStatus::RemAccessErr, None));
    let too_long = (WcStatus::RemInvReqErr, Some(WcStatus::LocLenErr));
    assert_eq!(status(|_| SendOp::Send, 999), too_long);
}

#[test]
fn a_full_completion_queue_fails_the_queue_pair_and_raises_an_event() {
    let shape = Shape {
        cqe: 2,
        ..Shape::default()
    };
    let pair = Pair::new("127.0.0.1", shape);
    let (a, b) = (&pair.a, &pair.b);
    for number in 0..4 {
        a.post(number, SendOp::RdmaWrite(b.remote(0)), a.sge(0, 8));
    }
    let deadline = Instant::now() + PATIENCE;
    let mut events = Vec::new();
    while events.len() < 2 {
        assert!(Instant::now() < deadline, "only {events:?}");
        events.extend(a.device.take_async_event().unwrap());
    }
    let expected = [
        AsyncEvent::CqErr(a.cq.number()),
        AsyncEvent::QpFatal(a.qp.qpn()),
    ];
    assert_eq!(events, expected);
    assert!(pair.stacks[0].counters().completion_overflows > 0);
    assert_eq!(a.qp.query().unwrap().0.state, QpState::Err);
    // The kept completions can still be polled.
    assert_eq!(a.poll().wr_id, 0);
    assert_eq!(a.poll().wr_id, 1);
}

#[test]
fn a_completion_queue_that_overflows_during_a_flush_raises_one_event() {
    let shape = Shape {
        cqe: 2,
        ..Shape::default()
    };
    let pair = Pair::new("127.0.0.1", shape);
    let b = &pair.b;
    for number in 0..4 {
        b.receive(number, b.sge(0, 8));
    }
    let attr = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    b.qp.modify(&attr, QpAttrMask::STATE).unwrap();
    b.receive(4, b.sge(0, 8));
    let events: Vec<_> = std::iter::from_fn(|| b.device.take_async_event().unwrap()).collect();
    assert_eq!(events, [AsyncEvent::CqErr(b.cq.number())]);
    assert_eq!(pair.stacks[1].counters().completion_overflows, 3);
    assert_eq!((b.poll().wr_id, b.poll().wr_id), (0, 1));
}

#[test]
fn unmapped_or_excessive_memory_is_refused_at_registration() {
    let config = config();
    let stack = stack(&config);
    let end = End::new(&stack, "127.0.0.1".parse().unwrap(), Shape::default());
    // SAFETY: nothing is mapped there, so the call must fail.
    let unmapped = unsafe { end.pd.register(0x1000, 4096, Access::LOCAL_WRITE) }.unwrap_err();
    assert_eq!(
        unmapped.cause,
        Cause::BadMemory {
            addr: 0x1000,
            len: 4096
        }
    );
    assert_eq!(unmapped.errno(), 14);
    let text = "constant";
    let (addr, len) = (text.as_ptr() as u64, text.len() as u64);
    // SAFETY: the call must fail, because constants are not writable.
    let constant = unsafe { end.pd.register(addr, len, Access::LOCAL_WRITE) }.unwrap_err();
    assert!(
        matches!(constant.cause, Cause::BadMemory { .. }),
        "{constant}"
    );
    // SAFETY: a constant can be read for the lifetime of the process.
    unsafe { end.pd.register(addr, len, Access::REMOTE_READ) }.unwrap();
    // SAFETY: the call must fail.
    let without_local = unsafe { end.pd.register(end.memory.addr(), 8, Access::REMOTE_WRITE) };
    assert_eq!(without_local.unwrap_err().errno(), 22);
}

#[test]
fn every_limit_is_an_error_that_names_it() {
    let mut config = config();
    config.limits.max_pd = 2;
    config.limits.max_cq = 2;
    config.limits.max_qp = 1;
    config.limits.max_mr = 1;
    let stack = stack(&config);
    let end = End::new(&stack, "127.0.0.1".parse().unwrap(), Shape::default());
    let limit = |error: portolan_provider::Error| match error.cause {
        Cause::LimitReached { what, limit } => (what, limit),
        _ => panic!("{error}"),
    };
    let second = end.device.alloc_pd().unwrap();
    assert_eq!(
        limit(end.device.alloc_pd().unwrap_err()),
        ("protection domains", 2)
    );
    drop(second);
    end.device.alloc_pd().unwrap();
    let _cq = end.device.create_cq(1, None, 0).unwrap();
    let full = end.device.create_cq(1, None, 0).unwrap_err();
    assert_eq!(limit(full), ("completion queues", 2));
    let init = end.qp.query().unwrap().1;
    let full = end.pd.create_qp(&init, &end.cq, &end.cq, None).unwrap_err();
    assert_eq!(limit(full), ("queue pairs", 1));
    // SAFETY: a part of the existing region.
    let full = unsafe { end.pd.register(end.memory.addr(), 8, Access::empty()) }.unwrap_err();
    assert_eq!(limit(full), ("memory regions", 1));
}

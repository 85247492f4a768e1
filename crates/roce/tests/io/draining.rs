//! A send queue is drained over real sockets, its path is changed, and it is used again.

use std::time::Instant;

use portolan_provider::verbs::{AsyncEvent, QpAttr, QpAttrMask, QpState, SendOp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::harness::{PATIENCE, Pair, Shape, expect};

fn go(pair: &Pair, state: QpState, mask: QpAttrMask) {
    let attr = QpAttr {
        state,
        ..pair.a.qp.query().unwrap().0
    };
    let mask = mask | QpAttrMask::STATE;
    pair.a.qp.modify(&attr, mask).unwrap();
}

#[test]
fn a_queue_drains_under_load_raises_an_event_and_continues() {
    for ip in ["127.0.0.1", "::1"] {
        let pair = Pair::new(ip, Shape::default());
        let (a, b) = (&pair.a, &pair.b);
        const SIZE: usize = 200_000;
        const WRITES: u64 = 12;
        const HELD: u64 = 3;
        for wr_id in 0..WRITES {
            a.post(wr_id, SendOp::RdmaWrite(b.remote(0)), a.sge(0, SIZE));
        }
        go(&pair, QpState::Sqd, QpAttrMask::EN_SQD_ASYNC_NOTIFY);
        for wr_id in WRITES..WRITES + HELD {
            a.post(wr_id, SendOp::RdmaWrite(b.remote(0)), a.sge(0, SIZE));
        }
        let mut completed = 0;
        let deadline = Instant::now() + PATIENCE;
        let event = loop {
            assert!(Instant::now() < deadline);
            if let Some(wc) = a.try_poll() {
                expect(wc, completed);
                completed += 1;
            }
            let fd = PollFd::from_borrowed_fd(a.device.async_fd().unwrap(), PollFlags::IN);
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            if poll(&mut [fd], Some(&now)).unwrap() == 1 {
                break a.device.take_async_event().unwrap();
            }
        };
        assert_eq!(event, Some(AsyncEvent::SqDrained(a.qp.qpn())));
        while let Some(wc) = a.try_poll() {
            expect(wc, completed);
            completed += 1;
        }
        let sent = a.qp.counters().unwrap();
        // Nothing more is sent, and at least the later work is held back.
        assert!(completed <= WRITES, "{completed} done, {WRITES} may be");
        assert_eq!(a.try_poll(), None);
        assert_eq!(a.qp.counters().unwrap()[0], sent[0]);
        let mask = QpAttrMask::AV | QpAttrMask::TIMEOUT;
        let attr = a.qp.query().unwrap().0;
        a.qp.modify(&attr, mask).unwrap();
        go(&pair, QpState::Rts, QpAttrMask::empty());
        for wr_id in completed..WRITES + HELD {
            a.expect(wr_id);
        }
    }
}

//! Completion queues that time-stamp their completions.

use std::sync::Arc;
use std::time::Instant;

use portolan_provider::traits::Cq;
use portolan_provider::verbs::{RecvWr, SendData, SendFlags, SendOp, SendWr, WorkCompletion};

use crate::harness::{PATIENCE, Pair, Shape};

fn next(cq: &Arc<dyn Cq>) -> WorkCompletion {
    let deadline = Instant::now() + PATIENCE;
    let mut taken = [WorkCompletion::EMPTY];
    while cq.poll(&mut taken).unwrap() == 0 {
        assert!(Instant::now() < deadline, "no completion");
    }
    taken[0]
}

#[test]
fn time_stamps_rise_between_readings_of_the_clock_and_other_queues_have_none() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    let stamping = b.device.create_stamping_cq(16, None, 0).unwrap();
    let init = b.qp.query().unwrap().1;
    let qp = b.pd.create_qp(&init, &stamping, &stamping, None).unwrap();
    let from = a.pd.create_qp(&init, &a.cq, &a.cq, None).unwrap();
    b.connect_qp(&qp, a.ip, from.qpn(), Shape::default());
    a.connect_qp(&from, b.ip, qp.qpn(), Shape::default());
    let mut last = b.device.clock_ns().unwrap();
    for wr_id in 0..10 {
        let sges = [b.sge(0, 64)];
        qp.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
        let wr = SendWr {
            wr_id,
            op: SendOp::Send,
            data: SendData::Sges(&[a.sge(0, 64)]),
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: None,
        };
        from.post_send(&wr).unwrap();
        assert_eq!(a.poll().timestamp_ns, 0);
        let wc = next(&stamping);
        assert!(wc.timestamp_ns >= last, "{wc:?} after {last}");
        last = wc.timestamp_ns;
        assert!(last <= b.device.clock_ns().unwrap());
    }
}

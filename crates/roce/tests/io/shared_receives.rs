//! Shared receive queues, counters and asynchronous events of real devices.

use std::sync::Arc;
use std::time::Instant;

use portolan_provider::traits::{Device, Qp};
use portolan_provider::verbs::{
    AsyncEvent, Counter, QpAttr, QpAttrMask, QpInit, QpState, QpType, RecvWr, SendOp, SrqAttr,
};
use portolan_provider::{Cause, error::errno};
use rustix::event::{PollFd, PollFlags, poll};

use crate::harness::{End, PATIENCE, Pair, Shape, config, stack, until};
use crate::ud_end::{UdEnd, make_ready};

const ATTR: SrqAttr = SrqAttr {
    max_wr: 16,
    max_sge: 4,
    srq_limit: 0,
};

/// Waits for an event on the device's descriptor.
fn next_event(device: &Arc<dyn Device>) -> AsyncEvent {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(event) = device.take_async_event().unwrap() {
            return event;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let fd = PollFd::from_borrowed_fd(device.async_fd().unwrap(), PollFlags::IN);
        let ready = poll(&mut [fd], Some(&left.try_into().unwrap())).unwrap();
        assert_eq!(ready, 1, "no event within {PATIENCE:?}");
    }
}

#[test]
fn queue_pairs_of_several_peers_share_one_queue_and_the_limit_is_reported() {
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let (ip, shape) = ("127.0.0.1".parse().unwrap(), Shape::default());
    let server = End::new(&stacks[1], ip, shape);
    let srq = server.pd.create_srq(&ATTR).unwrap();
    let init = server.qp.query().unwrap().1;
    let clients: Vec<_> = (0..2).map(|_| End::new(&stacks[0], ip, shape)).collect();
    let qps: Vec<_> = clients
        .iter()
        .map(|client| {
            let made = server
                .pd
                .create_qp(&init, &server.cq, &server.cq, Some(&srq));
            let qp = made.unwrap();
            client.connect(ip, qp.qpn(), shape);
            server.connect_qp(&qp, ip, client.qp.qpn(), shape);
            qp
        })
        .collect();
    for wr_id in 0..8 {
        let sges = [server.sge(wr_id as usize * 64, 64)];
        srq.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    }
    srq.modify(None, Some(7)).unwrap();
    for round in 0..4u8 {
        for (index, client) in clients.iter().enumerate() {
            let number = usize::from(round) * 2 + index;
            client.memory.write(0, &[number as u8 + 1; 64]);
            client.post(9, SendOp::Send, client.sge(0, 64));
            let wc = server.expect(number as u64);
            assert_eq!(wc.qp_num, qps[index].qpn(), "the queue pair that took it");
            client.expect(9);
            assert_eq!(server.memory.read(number * 64, 64), [number as u8 + 1; 64]);
        }
    }
    // Events that are not about a connection: the limit, once. Seven left was not fewer than seven.
    assert_eq!(
        next_event(&server.device),
        AsyncEvent::SrqLimitReached(srq.number())
    );
    assert_eq!(server.device.take_async_event().unwrap(), None);
    assert_eq!(srq.query().unwrap().srq_limit, 0);
    let error = srq.destroy().unwrap_err();
    assert_eq!(error.errno(), errno::EBUSY, "{error}");
    drop(qps);
    srq.destroy().unwrap();
    let gone = srq
        .post_recv(&RecvWr {
            wr_id: 1,
            sges: &[],
        })
        .unwrap_err();
    assert!(matches!(gone.cause, Cause::NoSuchObject(_)), "{gone}");
    let made = server
        .pd
        .create_qp(&init, &server.cq, &server.cq, Some(&srq));
    assert!(
        made.is_err(),
        "a queue pair was created on a destroyed queue"
    );
}

#[test]
fn reliable_and_unreliable_connections_and_datagrams_share_one_queue() {
    const PLACE: usize = 1024;
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let (ip, shape) = ("127.0.0.1".parse().unwrap(), Shape::default());
    let server = End::new(&stacks[1], ip, shape);
    let srq = server.pd.create_srq(&ATTR).unwrap();
    let of_server = server.qp.query().unwrap().1;
    let drawing = |qp_type| {
        let init = QpInit {
            qp_type,
            ..of_server
        };
        let made = server
            .pd
            .create_qp(&init, &server.cq, &server.cq, Some(&srq));
        made.unwrap()
    };
    let connected = [QpType::Rc, QpType::Uc].map(|qp_type| {
        let client = End::of_type(&stacks[0], ip, shape, qp_type);
        let qp = drawing(qp_type);
        client.connect(ip, qp.qpn(), shape);
        server.connect_qp(&qp, ip, client.qp.qpn(), shape);
        (client, qp)
    });
    let sender = UdEnd::new(&stacks[0], ip);
    let datagrams = drawing(QpType::Ud);
    make_ready(&datagrams);
    let ah = sender.ah(ip);
    let post = |wr_id: u64| {
        let sges = [server.sge(wr_id as usize * PLACE, PLACE)];
        srq.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    };
    let holds = |wr_id: u64, at: usize, text: &[u8]| {
        let place = wr_id as usize * PLACE + at;
        assert_eq!(server.memory.read(place, text.len()), text);
    };
    (0..6).for_each(post);
    for round in 0..2 {
        for (index, (client, qp)) in connected.iter().enumerate() {
            let (wr_id, text) = (round * 3 + index as u64, [round as u8 + 1; 64]);
            client.memory.write(0, &text);
            client.post(9, SendOp::Send, client.sge(0, text.len()));
            let wc = server.expect(wr_id);
            assert_eq!((wc.qp_num, wc.byte_len, wc.has_grh), (qp.qpn(), 64, false));
            client.expect(9);
            holds(wr_id, 0, &text);
        }
        let (wr_id, text) = (round * 3 + 2, [round as u8 + 11; 100]);
        sender.memory.write(0, &text);
        sender.send(8, 0, text.len(), &*ah, datagrams.qpn());
        let wc = server.expect(wr_id);
        assert_eq!((wc.qp_num, wc.src_qp), (datagrams.qpn(), sender.qp.qpn()));
        assert_eq!((wc.byte_len, wc.has_grh), (140, true));
        holds(wr_id, 40, &text);
        assert_eq!(sender.poll().wr_id, 8);
    }
    // None is left: unacknowledged messages are lost and counted; acknowledged ones wait.
    let [(reliable, _), (unreliable, unreliable_qp)] = &connected;
    unreliable.post(1, SendOp::Send, unreliable.sge(0, 64));
    unreliable.expect(1);
    sender.send(2, 0, 64, &*ah, datagrams.qpn());
    assert_eq!(sender.poll().wr_id, 2);
    for qp in [unreliable_qp, &datagrams] {
        until("a message is lost", || {
            let counters = qp.counters().unwrap();
            counters
                .iter()
                .any(|counter| counter.name == "dropped_no_receive_posted" && counter.value == 1)
        });
    }
    reliable.memory.write(0, &[77; 64]);
    reliable.post(3, SendOp::Send, reliable.sge(0, 64));
    post(7);
    assert_eq!(server.expect(7).qp_num, connected[0].1.qpn());
    reliable.expect(3);
    holds(7, 0, &[77; 64]);
    assert_eq!(server.try_poll(), None);
}

#[test]
fn a_queue_pair_in_error_reports_its_last_receive() {
    let config = config();
    let stack = stack(&config);
    let end = End::new(&stack, "127.0.0.1".parse().unwrap(), Shape::default());
    let srq = end.pd.create_srq(&ATTR).unwrap();
    let init = end.qp.query().unwrap().1;
    let qp = end
        .pd
        .create_qp(&init, &end.cq, &end.cq, Some(&srq))
        .unwrap();
    // There is no transition from RESET to ERR.
    let to_init = |qp: &Arc<dyn Qp>| {
        end.connect_to(qp, end.ip, end.qp.qpn(), Shape::default(), QpState::Init)
    };
    to_init(&qp);
    let attr = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    qp.modify(&attr, QpAttrMask::STATE).unwrap();
    let last = AsyncEvent::QpLastWqeReached(qp.qpn());
    assert_eq!(next_event(&end.device), last);
    // A destroyed queue pair raises no events.
    let qp = end
        .pd
        .create_qp(&init, &end.cq, &end.cq, Some(&srq))
        .unwrap();
    to_init(&qp);
    qp.modify(&attr, QpAttrMask::STATE).unwrap();
    qp.destroy().unwrap();
    assert_eq!(end.device.take_async_event().unwrap(), None);
}

#[test]
fn the_devices_limits_are_enforced() {
    let mut config = config();
    config.limits.max_srq = 1;
    config.limits.max_srq_wr = 32;
    let stack = stack(&config);
    let end = End::new(&stack, "127.0.0.1".parse().unwrap(), Shape::default());
    let attr = end.device.attr().unwrap();
    assert_eq!((attr.max_srq, attr.max_srq_wr), (1, 32));
    let large = SrqAttr { max_wr: 33, ..ATTR };
    let refused = end.pd.create_srq(&large).unwrap_err();
    assert_eq!(refused.errno(), errno::EINVAL, "{refused}");
    let srq = end.pd.create_srq(&ATTR).unwrap();
    let second = end.pd.create_srq(&ATTR).unwrap_err();
    assert!(
        matches!(second.cause, Cause::LimitReached { .. }),
        "{second}"
    );
    drop(srq);
    end.pd.create_srq(&ATTR).unwrap();
}

#[test]
fn data_before_the_connection_is_established_are_reported() {
    let config = config();
    let stacks = [stack(&config), stack(&config)];
    let (ip, shape) = ("127.0.0.1".parse().unwrap(), Shape::default());
    let (a, b) = (
        End::new(&stacks[0], ip, shape),
        End::new(&stacks[1], ip, shape),
    );
    b.connect_to(&b.qp, ip, a.qp.qpn(), shape, QpState::Rtr);
    a.connect(ip, b.qp.qpn(), shape);
    b.receive(5, b.sge(0, 8));
    a.post(1, SendOp::Send, a.sge(0, 8));
    b.expect(5);
    let told = next_event(&b.device);
    assert_eq!(told, AsyncEvent::CommEst(b.qp.qpn()));
    a.expect(1);
}

#[test]
fn counters_of_device_and_queue_pair_count_the_traffic() {
    let pair = Pair::new("127.0.0.1", Shape::default());
    let (a, b) = (&pair.a, &pair.b);
    let value = |counters: &[Counter], name: &str| {
        let found = counters.iter().find(|counter| counter.name == name);
        found.unwrap_or_else(|| panic!("no counter {name}")).value
    };
    // The receive is posted late, so the sender is told to wait.
    a.post(1, SendOp::Send, a.sge(0, 5000));
    let deadline = Instant::now() + PATIENCE;
    while value(&b.qp.counters().unwrap(), "tx_rnr_naks") == 0 {
        assert!(Instant::now() < deadline);
        assert_eq!(a.try_poll(), None);
    }
    b.receive(2, b.sge(0, 8000));
    a.expect(1);
    let sent = a.qp.counters().unwrap();
    assert!(
        value(&sent, "tx_packets") >= 4,
        "two, and two again: {sent:?}"
    );
    assert!(value(&sent, "tx_bytes") >= 10_000, "{sent:?}");
    assert!(value(&sent, "rx_rnr_naks") >= 1);
    assert!(value(&sent, "retransmits") >= 1);
    let received = b.qp.counters().unwrap();
    assert!(value(&received, "rx_bytes") >= 5000);
    assert_eq!(value(&received, "dropped_malformed"), 0);
    let sum = b.device.counters().unwrap();
    assert_eq!(value(&sum, "tx_rnr_naks"), value(&received, "tx_rnr_naks"));
    assert_eq!(value(&sum, "async_overflows"), 0);
    // The counts of a destroyed queue pair remain.
    b.qp.destroy().unwrap();
    let sum = b.device.counters().unwrap();
    assert!(value(&sum, "rx_bytes") >= 5000);
    assert!(b.qp.counters().is_err());
}

//! Receives shared by several queue pairs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use portolan_provider::error::errno;
use portolan_provider::verbs::{
    AsyncEvent, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, RecvWr, SendOp, Sge, SrqAttr,
    Srqn, WcStatus,
};
use portolan_roce::engine::{
    DropReason, FlowConfig, PdId, QpConfig, QpLimits, QueuePair, ReceiveEntry, ReceiveSource,
    SharedReceiveQueue,
};

use crate::datagram;
use crate::harness::*;

const OK: WcStatus = WcStatus::Success;
const TARGET: u64 = 0x8_0000;
const SIZE: u32 = 8;

/// A shared receive queue with the lock that its host uses.
#[derive(Debug)]
pub(crate) struct Shared(Mutex<SharedReceiveQueue>, PdId);

impl Shared {
    pub(crate) fn new(pd: PdId) -> Arc<Self> {
        let attr = SrqAttr {
            max_wr: SIZE,
            max_sge: 2,
            srq_limit: 0,
        };
        let queue = SharedReceiveQueue::new(Srqn(1), pd, &attr, 64, &QpLimits::default());
        Arc::new(Self(Mutex::new(queue.expect("modest sizes")), pd))
    }

    fn with<R>(&self, work: impl FnOnce(&mut SharedReceiveQueue) -> R) -> R {
        work(&mut self.0.lock().expect("no panic"))
    }

    pub(crate) fn post(&self, wr_id: u64, sges: &[Sge]) {
        self.with(|queue| queue.post(&RecvWr { wr_id, sges }).expect("room"));
    }
}

impl ReceiveSource for Shared {
    fn pd(&self) -> PdId {
        self.1
    }

    fn take(&self, spare: Vec<Sge>) -> Option<ReceiveEntry> {
        self.with(|queue| queue.take(spare))
    }
}

fn pair(options: Options) -> (Pair, Arc<Shared>) {
    let shared = Shared::new(Host::new(1, &options).pd());
    let source = Arc::clone(&shared) as Arc<dyn ReceiveSource>;
    (Pair::with_shared_receives(options, source), shared)
}

#[test]
fn queue_pairs_take_receives_in_the_order_of_their_messages() {
    let (mut first, shared) = pair(Options::default());
    let source = Arc::clone(&shared) as Arc<dyn ReceiveSource>;
    let mut second = Pair::with_shared_receives(Options::default(), source);
    // Both right hosts have the same addresses, so one place works for both.
    let places = [0, 4096].map(|at| piece(first.right(), TARGET + at, 4096));
    shared.post(1, &places[..1]);
    shared.post(2, &places[1..]);
    for (pair, seed) in [(&mut second, 5), (&mut first, 6)] {
        pair.left().fill(0, 3000, seed);
        let source = piece(pair.left(), 0, 3000);
        post(pair.left(), 1, SendOp::Send, &[source]);
        pair.run();
        assert_eq!(sends(pair.left()), [(1, OK)]);
    }
    assert_eq!(receives(second.right()), [(1, OK)]);
    assert_eq!(receives(first.right()), [(2, OK)]);
    assert_eq!(second.right().bytes(TARGET, 3000), pattern(3000, 5));
    assert_eq!(first.right().bytes(TARGET + 4096, 3000), pattern(3000, 6));
}

#[test]
fn a_message_keeps_the_receive_that_its_first_packet_took() {
    let (mut first, shared) = pair(Options::default());
    let source = Arc::clone(&shared) as Arc<dyn ReceiveSource>;
    let mut second = Pair::with_shared_receives(Options::default(), source);
    for wr_id in [1, 2] {
        shared.post(wr_id, &[piece(first.right(), TARGET, 8192)]);
    }
    for pair in [&mut first, &mut second] {
        let source = piece(pair.left(), 0, 8192);
        post(pair.left(), 9, SendOp::Send, &[source]);
        pair.transmit();
    }
    // The packets of the two messages alternate.
    for _ in 0..20 {
        for pair in [&mut first, &mut second] {
            pair.settle(Duration::from_micros(20));
        }
    }
    first.run();
    second.run();
    let ended = [receives(first.right()), receives(second.right())];
    assert_eq!(ended, [[(1, OK)], [(2, OK)]]);
}

#[test]
fn an_empty_queue_makes_the_sender_wait_until_something_is_posted() {
    let (mut pair, shared) = pair(Options::default());
    post(pair.left(), 1, SendOp::Send, &[]);
    pair.settle(Duration::from_millis(5));
    assert!(pair.right().qp.counters().rnr_naks_sent > 0);
    assert!(sends(pair.left()).is_empty());
    shared.post(7, &[]);
    pair.run();
    assert_eq!(receives(pair.right()), [(7, OK)]);
    assert_eq!(sends(pair.left()), [(1, OK)]);
}

#[test]
fn nothing_is_posted_to_the_queue_pair_itself() {
    let (mut pair, _) = pair(Options::default());
    let wr = RecvWr {
        wr_id: 1,
        sges: &[],
    };
    let error = pair
        .right()
        .qp
        .post_recv(&wr)
        .expect_err("the queue pair has a shared");
    assert_eq!(error.errno(), errno::EINVAL);
}

#[test]
fn the_limit_is_reported_once_when_fewer_are_left_and_is_then_disarmed() {
    let shared = Shared::new(PdId(1));
    for wr_id in 0..6 {
        shared.post(wr_id, &[]);
    }
    shared.with(|queue| queue.modify(None, Some(4)).expect("in range"));
    let mut told = Vec::new();
    for _ in 0..6 {
        shared.take(Vec::new()).expect("one is left");
        told.push(shared.with(SharedReceiveQueue::take_limit_event));
    }
    assert_eq!(told, [false, false, true, false, false, false]);
    assert_eq!(shared.with(|queue| queue.query().srq_limit), 0);
    assert!(shared.take(Vec::new()).is_none());
    assert!(!shared.with(SharedReceiveQueue::take_limit_event));
    // Armed again above the remaining number, the limit is reported with the next receive taken.
    shared.post(9, &[]);
    shared.with(|queue| queue.modify(None, Some(8)).expect("in range"));
    assert!(!shared.with(SharedReceiveQueue::take_limit_event));
    shared.take(Vec::new()).expect("one was posted");
    assert!(shared.with(SharedReceiveQueue::take_limit_event));
}

#[test]
fn the_queue_holds_its_capacity_and_refuses_impossible_sizes() {
    let shared = Shared::new(PdId(1));
    for wr_id in 0..u64::from(SIZE) {
        shared.post(wr_id, &[]);
    }
    let wr = RecvWr {
        wr_id: 99,
        sges: &[],
    };
    let full = shared.with(|queue| queue.post(&wr)).expect_err("full");
    assert_eq!(full.errno(), errno::ENOMEM);
    for (max_wr, srq_limit) in [
        (Some(SIZE - 1), None),
        (Some(65), None),
        (Some(0), None),
        (None, Some(SIZE + 1)),
        (Some(SIZE + 1), Some(SIZE + 2)),
    ] {
        let refused = shared.with(|queue| queue.modify(max_wr, srq_limit));
        let error = refused.expect_err("out of range");
        assert_eq!(error.errno(), errno::EINVAL, "{error}");
    }
    assert_eq!(shared.with(|queue| queue.query().max_wr), SIZE);
    shared.with(|queue| queue.modify(Some(SIZE + 1), None).expect("in range"));
    shared.post(99, &[]);
    assert_eq!(shared.with(|queue| queue.len()), 9);
    let sge = Sge::default();
    let wide = RecvWr {
        wr_id: 1,
        sges: &[sge; 3],
    };
    shared.take(Vec::new()).expect("nine were posted");
    let error = shared.with(|queue| queue.post(&wide)).expect_err("three");
    assert_eq!(error.errno(), errno::EINVAL);
    let absurd = SrqAttr {
        max_wr: 1,
        max_sge: u32::MAX,
        srq_limit: 0,
    };
    let made = SharedReceiveQueue::new(Srqn(2), PdId(1), &absurd, 64, &QpLimits::default());
    assert_eq!(made.expect_err("absurd").errno(), errno::EINVAL);
}

#[test]
fn receives_are_checked_against_the_domain_of_their_queue() {
    let options = Options::default();
    let other = PdId(Host::new(1, &options).pd().0 + 1);
    let shared = Shared::new(other);
    let source = Arc::clone(&shared) as Arc<dyn ReceiveSource>;
    let mut pair = Pair::with_shared_receives(options, source);
    let theirs = 0x2000_0002;
    pair.right()
        .register(theirs, TARGET, 4096, all_rights(), other);
    let place = piece(pair.right(), TARGET, 100);
    shared.post(
        1,
        &[Sge {
            lkey: theirs,
            ..place
        }],
    );
    // This key is in the queue pair's domain, but not in the shared queue's.
    shared.post(2, &[place]);
    let source = piece(pair.left(), 0, 100);
    for wr_id in [1, 2] {
        post(pair.left(), wr_id, SendOp::Send, &[source]);
    }
    pair.run();
    let ended = [(1, OK), (2, WcStatus::LocProtErr)];
    assert_eq!(receives(pair.right()), ended);
}

#[test]
fn a_queue_pair_in_error_flushes_only_its_taken_receives_and_reports_the_last_one_once() {
    let (mut pair, shared) = pair(Options::default());
    let place = piece(pair.right(), TARGET, 8192);
    for wr_id in [1, 2, 3] {
        shared.post(wr_id, &[place]);
    }
    // Only one packet of the message arrives.
    let mut packets = 0;
    pair.network.script = Some(Box::new(move |sent| {
        packets += u32::from(sent.from == 0);
        if packets > 1 {
            Action::Drop
        } else {
            Action::Pass
        }
    }));
    let source = piece(pair.left(), 0, 8192);
    post(pair.left(), 1, SendOp::Send, &[source]);
    pair.settle(Duration::from_millis(1));
    let to_error = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    for _ in 0..2 {
        let host = pair.right();
        host.qp
            .modify(&to_error, QpAttrMask::STATE)
            .expect("always");
        host.drain();
    }
    assert_eq!(receives(pair.right()), [(1, WcStatus::WrFlushErr)]);
    let qpn = pair.right().qp.qpn();
    assert_eq!(pair.right().events, [AsyncEvent::QpLastWqeReached(qpn)]);
    assert_eq!(shared.with(|queue| queue.len()), 2);
}

#[test]
fn a_queue_pair_uses_the_shared_queue_again_after_a_reset() {
    let (mut pair, shared) = pair(Options::default());
    let attr = QpAttr {
        state: QpState::Reset,
        ..QpAttr::default()
    };
    for host in &mut pair.hosts {
        host.qp.modify(&attr, QpAttrMask::STATE).expect("always");
        host.connect(&Options::default());
    }
    shared.post(4, &[]);
    post(pair.left(), 1, SendOp::Send, &[]);
    pair.run();
    assert_eq!(receives(pair.right()), [(4, OK)]);
}

#[test]
fn queue_pairs_of_different_types_share_one_queue() {
    let (mut reliable, shared) = pair(Options::default());
    let source = Arc::clone(&shared) as Arc<dyn ReceiveSource>;
    let options = Options {
        qp_type: QpType::Uc,
        ..Options::default()
    };
    let mut unreliable = Pair::with_shared_receives(options, source);
    let place = piece(reliable.right(), TARGET, 4096);
    // Without a receive, a message waits on the reliable connection and is lost on the unreliable one.
    for pair in [&mut reliable, &mut unreliable] {
        post(pair.left(), 0, SendOp::Send, &[]);
        pair.settle(Duration::from_millis(1));
    }
    assert!(receives(reliable.right()).is_empty());
    assert_eq!(sends(unreliable.left()), [(0, OK)]);
    let lost = unreliable.right().qp.counters();
    assert_eq!(lost.drops(DropReason::NoReceive), 1);
    for wr_id in 1..=4 {
        shared.post(wr_id, &[place]);
    }
    reliable.run();
    for seed in [8, 9, 10] {
        let pair = match seed {
            9 => &mut reliable,
            _ => &mut unreliable,
        };
        pair.left().fill(0, 3000, seed);
        let source = piece(pair.left(), 0, 3000);
        post(pair.left(), seed, SendOp::Send, &[source]);
        pair.run();
        assert!(pair.right().bytes(TARGET, 3000) == pattern(3000, seed));
    }
    assert_eq!(receives(reliable.right()), [(1, OK), (3, OK)]);
    assert_eq!(receives(unreliable.right()), [(2, OK), (4, OK)]);
    assert!(shared.with(|queue| queue.is_empty()));
}

#[test]
fn datagrams_take_receives_in_order_of_arrival_and_are_lost_when_none_is_left() {
    let (mut pair, shared) = pair(datagram::options());
    let length = 1000 + NETWORK_HEADER.len() as u32;
    let places = [0, 2048].map(|at| piece(pair.right(), TARGET + at, length));
    for (wr_id, place) in (7..).zip(places) {
        shared.post(wr_id, &[place]);
    }
    for seed in 1..=3 {
        pair.left().fill(0, 1000, seed);
        let from = piece(pair.left(), 0, 1000);
        datagram::send(pair.left(), seed, from, datagram::right());
        pair.run();
    }
    assert_eq!(sends(pair.left()), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(receives(pair.right()), [(7, OK), (8, OK)]);
    let counters = pair.right().qp.counters();
    assert_eq!(counters.drops(DropReason::NoReceive), 1);
    for (at, seed) in [(0, 1), (2048, 2)] {
        let header = TARGET + at;
        let data = header + NETWORK_HEADER.len() as u64;
        assert_eq!(
            pair.right().bytes(header, NETWORK_HEADER.len()),
            NETWORK_HEADER
        );
        assert!(pair.right().bytes(data, 1000) == pattern(1000, seed));
    }
    // A receive too short for a datagram with its header is used up, and ends the queue pair's receiving.
    let short = piece(pair.right(), TARGET, length - 1);
    shared.post(9, &[short]);
    let from = piece(pair.left(), 0, 1000);
    datagram::send(pair.left(), 4, from, datagram::right());
    pair.run();
    assert_eq!(receives(pair.right())[2], (9, WcStatus::LocLenErr));
    assert!(shared.with(|queue| queue.is_empty()));
}

#[test]
fn the_sizes_of_a_receive_queue_of_its_own_do_not_matter() {
    let make = |max_send_wr, max_recv_wr, max_recv_sge| {
        let cap = QpCap {
            max_send_wr,
            max_recv_wr,
            max_recv_sge,
            ..Options::default().cap
        };
        let config = QpConfig {
            qpn: Host::qpn(1),
            pd: PdId(1),
            init: QpInit {
                qp_type: QpType::Rc,
                cap,
                sq_sig_all: false,
            },
            limits: QpLimits::default(),
            flow: FlowConfig::default(),
        };
        let made = QueuePair::with_shared_receives(config, Shared::new(PdId(1)));
        made.map(|_| ()).map_err(|error| error.errno())
    };
    for recv in [0, u32::MAX] {
        assert_eq!(make(64, recv, recv), Ok(()), "{recv}");
        assert_eq!(make(0, recv, recv), Ok(()), "{recv}, and it sends nothing");
        let refused = Err(errno::EINVAL);
        assert_eq!(make(u32::MAX, recv, recv), refused, "{recv}");
    }
}

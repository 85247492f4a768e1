//! Extended reliable connections: one connection to several shared receive queues, with lost, repeated and late
//! packets.

use std::sync::Arc;
use std::time::Duration;

use portolan_provider::verbs::{
    QpState, QpType, RemoteAddr, SendData, SendFlags, SendOp, SendWr, Sge, Srqn, WcStatus,
};
use portolan_roce::engine::{PdId, QueuePair, ReceiveDomain, ReceiveSource};
use portolan_wire::bth::Transport;

use crate::harness::*;
use crate::shared_receives::Shared;

const OK: WcStatus = WcStatus::Success;
const SOURCE: u64 = 0;
const TARGET: u64 = 0x8_0000;
const SIZE: u32 = 5000;
/// The right host's second region, in the second queue's protection domain.
const OTHER_KEY: u32 = 77;
const OTHER_PLACE: u64 = 0x4_0000;

/// Two queues, each with its own protection domain.
#[derive(Debug)]
struct Domain([Arc<Shared>; 2]);

impl ReceiveDomain for Domain {
    fn find(&self, srqn: Srqn) -> Option<Arc<dyn ReceiveSource>> {
        let index = srqn.0.checked_sub(1)? as usize;
        let queue = Arc::clone(self.0.get(index)?);
        Some(queue)
    }
}

/// A sending end on the left, and a receiving one on the right.
fn pair() -> (Pair, Arc<Domain>) {
    let of_type = |qp_type| Options {
        qp_type,
        ..Options::default()
    };
    let mut pair = Pair::new(Options::default());
    let (left, right) = (of_type(QpType::XrcSend), of_type(QpType::XrcRecv));
    pair.hosts[0] = Host::new(0, &left);
    let pds = [pair.hosts[0].pd(), PdId(99)];
    let domain = Arc::new(Domain(pds.map(Shared::new)));
    let joined = Arc::clone(&domain);
    let make = |config| QueuePair::in_domain(config, joined);
    pair.hosts[1] = Host::with(1, &right, make);
    let (length, rights) = (2 * u64::from(SIZE), all_rights());
    pair.right()
        .register(OTHER_KEY, OTHER_PLACE, length, rights, pds[1]);
    pair.hosts[0].connect(&left);
    pair.hosts[1].connect(&right);
    (pair, domain)
}

fn post_to(host: &mut Host, wr_id: u64, op: SendOp, sge: Sge, srqn: u32) {
    let wr = SendWr {
        wr_id,
        op,
        data: SendData::Sges(&[sge]),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: Some(Srqn(srqn)),
    };
    host.qp.post_send(&wr).expect("the send queue takes it");
    host.drain();
}

/// Two sends to the first queue, and between them a read and a write of the second queue's memory.
fn mixture() -> (Pair, Arc<Domain>) {
    let (mut pair, domain) = pair();
    pair.left().fill(SOURCE, 20_000, 1);
    pair.right().fill(OTHER_PLACE, SIZE as usize, 2);
    let [read, written] = [0, u64::from(SIZE)].map(|at| RemoteAddr {
        addr: pair.hosts[1].base + OTHER_PLACE + at,
        rkey: OTHER_KEY,
    });
    let receives = [0, 1].map(|at| piece(&pair.hosts[1], TARGET + at * u64::from(SIZE), SIZE));
    domain.0[0].post(10, &receives[..1]);
    domain.0[0].post(11, &receives[1..]);
    domain.0[1].post(12, &[]);
    let local = |at| piece(&pair.hosts[0], at, SIZE);
    let work = [
        (SendOp::Send, local(SOURCE), 1),
        (SendOp::RdmaRead(read), local(TARGET), 2),
        (
            SendOp::RdmaWriteWithImm(written, 7),
            local(SOURCE + 5000),
            2,
        ),
        (SendOp::Send, local(SOURCE + 10_000), 1),
    ];
    for (wr_id, (op, sge, srqn)) in (0..).zip(work) {
        post_to(pair.left(), wr_id, op, sge, srqn);
    }
    (pair, domain)
}

fn assert_arrived(pair: &Pair, what: &str) {
    let all: Vec<_> = (0..4).map(|wr_id| (wr_id, OK)).collect();
    assert_eq!(sends(&pair.hosts[0]), all, "{what}");
    let received = receives(&pair.hosts[1]);
    assert_eq!(received, [(10, OK), (12, OK), (11, OK)], "{what}");
    let [left, right] = &pair.hosts;
    let (size, next) = (SIZE as usize, u64::from(SIZE));
    for (there, here) in [
        (TARGET, SOURCE),
        (TARGET + next, SOURCE + 2 * next),
        (OTHER_PLACE + next, SOURCE + next),
        (OTHER_PLACE, TARGET),
    ] {
        let is_same = right.bytes(there, size) == left.bytes(here, size);
        assert!(is_same, "{what}: {there:#x} there, {here:#x} here");
    }
    assert_eq!(pair.states(), [QpState::Rts; 2], "{what}");
}

#[test]
fn every_request_but_no_answer_names_its_queue() {
    let (mut pair, _domain) = mixture();
    pair.run();
    assert_arrived(&pair, "nothing lost");
    for sent in &pair.network.log {
        assert_eq!(sent.opcode.transport(), Transport::Xrc, "{}", sent.opcode);
        assert_eq!(
            sent.headers.xrceth.is_some(),
            sent.from == 0,
            "{}",
            sent.opcode
        );
    }
}

#[test]
fn any_packet_may_be_lost_repeated_or_late() {
    let packets = {
        let (mut pair, _domain) = mixture();
        pair.run();
        pair.network.log.len()
    };
    let late = Duration::from_micros(300);
    for action in [Action::Drop, Action::Repeat, Action::Delay(late)] {
        for victim in 0..packets {
            let (mut pair, _domain) = mixture();
            let mut index = 0;
            pair.network.script = Some(Box::new(move |_| {
                index += 1;
                match index == victim + 1 {
                    true => action,
                    false => Action::Pass,
                }
            }));
            pair.run();
            assert_arrived(&pair, &format!("{action:?} of packet {victim}"));
        }
    }
}

#[test]
fn an_unknown_queue_number_ends_the_connection() {
    let (mut pair, _domain) = pair();
    let sge = piece(&pair.hosts[0], SOURCE, 64);
    post_to(pair.left(), 1, SendOp::Send, sge, 3);
    pair.run();
    assert_eq!(sends(&pair.hosts[0]), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(pair.states(), [QpState::Err; 2]);
}

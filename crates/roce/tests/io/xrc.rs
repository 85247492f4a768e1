//! Extended reliable connections (IBTA annex A14): one connection to several shared receive queues.

use std::sync::Arc;
use std::time::Instant;

use portolan_provider::Cause;
use portolan_provider::traits::{Cq, Mr, Pd, Qp, Srq, Xrcd};
use portolan_provider::verbs::{
    QpAttr, QpAttrMask, QpInit, QpState, QpType, RecvWr, RemoteAddr, SendData, SendFlags, SendOp,
    SendWr, Sge, SrqAttr, Srqn, WcOpcode, WcStatus, WorkCompletion,
};
use portolan_roce::io::Stack;

use crate::harness::{ALL_RIGHTS, End, Memory, PATIENCE, Shape, config, pattern, stack};

const PLACE: usize = 64 << 10;

/// A shared receive queue with its own completion queue, domain and memory.
struct Room {
    srq: Arc<dyn Srq>,
    cq: Arc<dyn Cq>,
    mr: Arc<dyn Mr>,
    memory: Memory,
    _pd: Arc<dyn Pd>,
}

impl Room {
    fn new(end: &End, xrcd: &Arc<dyn Xrcd>) -> Self {
        let pd = end.device.alloc_pd().unwrap();
        let cq = end.device.create_cq(64, None, 0).unwrap();
        let attr = SrqAttr {
            max_wr: 16,
            max_sge: 1,
            srq_limit: 0,
        };
        let srq = pd.create_xrc_srq(&attr, xrcd, &cq).unwrap();
        let memory = Memory::new(PLACE);
        // SAFETY: the memory outlives the region, which is dropped before it.
        let mr = unsafe { pd.register(memory.addr(), PLACE as u64, ALL_RIGHTS) }.unwrap();
        Self {
            srq,
            cq,
            mr,
            memory,
            _pd: pd,
        }
    }

    fn receive(&self, wr_id: u64, length: usize) {
        let sges = [Sge {
            addr: self.memory.addr(),
            length: length as u32,
            lkey: self.mr.lkey(),
        }];
        self.srq.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    }

    fn remote(&self) -> RemoteAddr {
        RemoteAddr {
            addr: self.memory.addr(),
            rkey: self.mr.rkey(),
        }
    }
}

fn next(cq: &Arc<dyn Cq>) -> WorkCompletion {
    let deadline = Instant::now() + PATIENCE;
    let mut taken = [WorkCompletion::EMPTY];
    while cq.poll(&mut taken).unwrap() == 0 {
        assert!(Instant::now() < deadline, "no completion");
    }
    taken[0]
}

/// A sending end, and a receiving end for a domain.
struct Connection {
    client: End,
    sender: Arc<dyn Qp>,
    server: End,
    receiver: Arc<dyn Qp>,
    xrcd: Arc<dyn Xrcd>,
    _stacks: [Arc<Stack>; 2],
}

impl Connection {
    fn new() -> Self {
        let config = config();
        let stacks = [stack(&config), stack(&config)];
        let (ip, shape) = ("127.0.0.1".parse().unwrap(), Shape::default());
        let client = End::new(&stacks[0], ip, shape);
        let server = End::new(&stacks[1], ip, shape);
        let init = QpInit {
            qp_type: QpType::XrcSend,
            ..client.qp.query().unwrap().1
        };
        let sender = client.pd.create_qp(&init, &client.cq, &client.cq, None);
        let sender = sender.unwrap();
        let xrcd = server.device.open_xrcd().unwrap();
        let receiver = xrcd.create_qp().unwrap();
        client.connect_qp(&sender, ip, receiver.qpn(), shape);
        server.connect_qp(&receiver, ip, sender.qpn(), shape);
        Self {
            client,
            sender,
            server,
            receiver,
            xrcd,
            _stacks: stacks,
        }
    }

    fn post(&self, op: SendOp, srqn: Srqn, length: usize) -> WcStatus {
        let sges = [self.client.sge(0, length)];
        let wr = SendWr {
            wr_id: 7,
            op,
            data: SendData::Sges(&sges),
            flags: SendFlags::SIGNALED,
            ud: None,
            srq: Some(srqn),
        };
        self.sender.post_send(&wr).unwrap();
        self.client.poll().status
    }
}

#[test]
fn each_message_reaches_the_queue_that_it_names_and_completes_there() {
    let connection = Connection::new();
    let rooms = [0, 1].map(|_| Room::new(&connection.server, &connection.xrcd));
    // Several packets, alternating.
    for round in 0..4 {
        for (index, room) in rooms.iter().enumerate() {
            let text = pattern(round * 2 + index as u64, 20_000);
            connection.client.memory.write(0, &text);
            room.receive(round, text.len());
            let op = SendOp::SendWithImm(5);
            let sent = connection.post(op, room.srq.number(), text.len());
            assert_eq!(sent, WcStatus::Success);
            let wc = next(&room.cq);
            assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, round));
            assert_eq!((wc.byte_len, wc.imm_data), (20_000, Some(5)));
            assert_eq!(wc.qp_num, connection.receiver.qpn());
            assert_eq!(room.memory.read(0, text.len()), text);
        }
    }
}

#[test]
fn memory_is_looked_up_in_the_domain_of_the_named_queue() {
    let connection = Connection::new();
    let [mine, other] = [0, 1].map(|_| Room::new(&connection.server, &connection.xrcd));
    let text = pattern(3, 20_000);
    connection.client.memory.write(0, &text);
    let number = mine.srq.number();
    let written = connection.post(SendOp::RdmaWrite(mine.remote()), number, text.len());
    assert_eq!(written, WcStatus::Success);
    assert_eq!(mine.memory.read(0, text.len()), text);
    connection.client.memory.write(0, &vec![0; text.len()]);
    let read = connection.post(SendOp::RdmaRead(mine.remote()), number, text.len());
    assert_eq!(read, WcStatus::Success);
    assert_eq!(connection.client.memory.read(0, text.len()), text);
    mine.memory.write(0, &9u64.to_ne_bytes());
    let added = SendOp::AtomicFetchAdd {
        remote: mine.remote(),
        add: 1,
    };
    assert_eq!(connection.post(added, number, 8), WcStatus::Success);
    assert_eq!(mine.memory.read(0, 8), 10u64.to_ne_bytes());
    // The key is valid, but in another domain.
    let number = other.srq.number();
    let refused = connection.post(SendOp::RdmaWrite(mine.remote()), number, 8);
    assert_eq!(refused, WcStatus::RemAccessErr);
    assert_eq!(mine.memory.read(0, 8), 10u64.to_ne_bytes());
}

#[test]
fn a_queue_of_another_domain_or_a_destroyed_one_is_an_invalid_request() {
    let connection = Connection::new();
    let elsewhere = connection.server.device.open_xrcd().unwrap();
    let room = Room::new(&connection.server, &elsewhere);
    room.receive(1, 64);
    let refused = connection.post(SendOp::Send, room.srq.number(), 64);
    assert_eq!(refused, WcStatus::RemInvReqErr);

    let connection = Connection::new();
    let room = Room::new(&connection.server, &connection.xrcd);
    room.receive(1, 64);
    room.receive(2, 64);
    let number = room.srq.number();
    assert_eq!(connection.post(SendOp::Send, number, 64), WcStatus::Success);
    room.srq.destroy().unwrap();
    room.memory.write(0, &[9; 64]);
    let refused = connection.post(SendOp::Send, number, 64);
    assert_eq!(refused, WcStatus::RemInvReqErr);
    assert_eq!(room.memory.read(0, 64), [9; 64]);
}

#[test]
fn an_empty_queue_makes_the_sender_wait_and_delays_no_other() {
    let connection = Connection::new();
    let room = Room::new(&connection.server, &connection.xrcd);
    let status = std::thread::scope(|scope| {
        let sent = scope.spawn(|| connection.post(SendOp::Send, room.srq.number(), 64));
        std::thread::sleep(std::time::Duration::from_millis(50));
        room.receive(1, 64);
        sent.join().unwrap()
    });
    assert_eq!(status, WcStatus::Success);
    assert_eq!(next(&room.cq).wr_id, 1);
}

#[test]
fn each_end_does_its_half_only() {
    let connection = Connection::new();
    let (sender, receiver) = (&connection.sender, &connection.receiver);
    let sges = [connection.client.sge(0, 8)];
    let receive = RecvWr {
        wr_id: 1,
        sges: &sges,
    };
    for qp in [sender, receiver] {
        assert!(qp.post_recv(&receive).is_err());
    }
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        data: SendData::Sges(&sges),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    let error = sender.post_send(&wr).unwrap_err();
    assert!(
        matches!(error.cause, Cause::InvalidArgument { .. }),
        "{error}"
    );
    let wide = SendWr {
        srq: Some(Srqn(1 << 24)),
        ..wr
    };
    assert!(sender.post_send(&wide).is_err());
    let named = SendWr {
        srq: Some(Srqn(1)),
        ..wr
    };
    assert!(receiver.post_send(&named).is_err());
    let init = QpInit {
        qp_type: QpType::XrcRecv,
        ..sender.query().unwrap().1
    };
    let (pd, cq) = (&connection.client.pd, &connection.client.cq);
    assert!(pd.create_qp(&init, cq, cq, None).is_err());
    let reset = QpAttr {
        state: QpState::Reset,
        ..QpAttr::default()
    };
    // It keeps its domain.
    receiver.modify(&reset, QpAttrMask::STATE).unwrap();
    sender.modify(&reset, QpAttrMask::STATE).unwrap();
    let (ip, shape) = (connection.client.ip, Shape::default());
    connection
        .client
        .connect_qp(sender, ip, receiver.qpn(), shape);
    connection
        .server
        .connect_qp(receiver, ip, sender.qpn(), shape);
    let room = Room::new(&connection.server, &connection.xrcd);
    room.receive(1, 64);
    assert_eq!(
        connection.post(SendOp::Send, room.srq.number(), 64),
        WcStatus::Success
    );
    assert_eq!(next(&room.cq).opcode, WcOpcode::Recv);
}

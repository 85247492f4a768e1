//! Connections between two channels with external queue pairs. Their numbers and the ids' names differ between
//! tests, because a second connection of a queue pair makes the first one stale.

use std::os::fd::{AsFd, AsRawFd};

use portolan_kernel::raw::*;
use rustix::io::Errno;

use crate::support::*;

const ECE: Ece = Ece {
    vendor_id: 0x1234,
    attr_mod: 7,
};

fn connect(device: &Opened, id: u32, conn_param: ConnParam) -> Result<(), Errno> {
    device.command(&Connect {
        conn_param,
        id,
        reserved: 0,
        ece: ECE,
    })
}

fn accept(device: &Opened, uid: u64, id: u32, conn_param: ConnParam) -> Result<(), Errno> {
    device.command(&Accept {
        uid,
        conn_param,
        id,
        reserved: 0,
        ece: Ece::zeroed(),
    })
}

fn conn(event: &EventResp) -> ConnParam {
    ConnParam::from_bytes(&event.param)
}

fn qp_attr(device: &Opened, id: u32, qp_state: u32) -> Result<QpAttr, Errno> {
    let init = InitQpAttr {
        id,
        qp_state,
        ..InitQpAttr::zeroed()
    };
    device.ask(number::INIT_QP_ATTR, init)
}

#[test]
fn each_event_of_a_connection_is_counted() {
    let (server, client) = (open_channel(), open_channel());
    let (listener, port) = server.listener(110, TCP);
    let caller = client.caller(120, TCP, port);
    assert_eq!(
        connect(&client, caller, ConnParam::zeroed()),
        Err(Errno::INVAL)
    );
    connect(&client, caller, param(177, b"request")).unwrap();

    let request = server.expect(CONNECT_REQUEST);
    assert_eq!(request.uid, 110);
    assert_eq!(request.ece, ECE);
    let asked = conn(&request);
    assert_eq!((asked.qp_num, asked.private_data_len), (177, 56));
    assert!(asked.private_data.starts_with(b"request\0"));
    let child = request.id;
    let ready = qp_attr(&server, child, 2).unwrap();
    assert_eq!((ready.dest_qp_num, ready.ah_attr.is_global), (177, 1));
    assert_eq!(ready.ah_attr.dgid[10..], [255, 255, 127, 0, 0, 1]);
    assert_eq!(qp_attr(&server, child, 7), Err(Errno::INVAL));
    accept(&server, 130, child, param(178, b"reply")).unwrap();

    let response = client.expect(CONNECT_RESPONSE);
    assert_eq!((response.uid, conn(&response).qp_num), (120, 178));
    assert_eq!(qp_attr(&client, caller, 3).unwrap().qp_attr_mask & 1, 1);
    // Invalid parameters: this confirms the reply.
    accept(&client, 0, caller, ConnParam::zeroed()).unwrap();
    assert_eq!(server.expect(ESTABLISHED).uid, 130);

    server.command(&Disconnect { id: child }).unwrap();
    assert_eq!(client.expect(DISCONNECTED).uid, 120);
    client.command(&Disconnect { id: caller }).unwrap();
    assert_eq!(server.expect(DISCONNECTED).uid, 130);
    // The request counts for the listener.
    assert_eq!(server.destroy(child), Ok(2));
    assert_eq!(server.destroy(listener), Ok(1));
    // Two for address and route, one response, one disconnect.
    assert_eq!(client.destroy(caller), Ok(4));
}

#[test]
fn a_rejection_carries_its_reason_and_private_data() {
    let (server, client) = (open_channel(), open_channel());
    let (_, port) = server.listener(210, TCP);
    let caller = client.caller(220, TCP, port);
    connect(&client, caller, param(277, b"")).unwrap();
    let id = server.expect(CONNECT_REQUEST).id;
    let mut reject = Reject {
        id,
        private_data_len: 4,
        reason: 3,
        reserved: [0; 2],
        private_data: [0; 256],
    };
    reject.private_data[..4].copy_from_slice(b"away");
    assert_eq!(server.command(&reject), Err(Errno::INVAL), "no such reason");
    reject.reason = 28;
    server.command(&reject).unwrap();
    let rejected = client.event();
    assert_eq!((rejected.event, rejected.status), (REJECTED, 28));
    assert!(conn(&rejected).private_data.starts_with(b"away\0"));
}

#[test]
fn an_id_moves_with_its_waiting_events_and_the_count_of_those_taken() {
    let (server, client, to) = (open_channel(), open_channel(), open_channel());
    let (_, port) = server.listener(310, TCP);
    let caller = client.caller(320, TCP, port);
    connect(&client, caller, param(377, b"")).unwrap();
    let child = server.expect(CONNECT_REQUEST).id;
    accept(&server, 330, child, param(378, b"")).unwrap();
    client.expect(CONNECT_RESPONSE);
    let migrate = |fd: i32| MigrateId {
        response: 0,
        id: caller,
        fd: fd.cast_unsigned(),
    };
    let moved =
        |fd: i32| -> Result<EventsReported, Errno> { to.ask(number::MIGRATE_ID, migrate(fd)) };
    assert_eq!(moved(-1), Err(Errno::NOENT));
    let foreign = server.channel.as_fd().as_raw_fd();
    assert_eq!(
        moved(foreign),
        Err(Errno::INVAL),
        "the id belongs to another channel"
    );
    let from = client.channel.as_fd().as_raw_fd();
    assert_eq!(moved(from), Ok(EventsReported { events_reported: 3 }));
    assert_eq!(client.destroy(caller), Err(Errno::INVAL));
    accept(&to, 0, caller, ConnParam::zeroed()).unwrap();
    server.expect(ESTABLISHED);
    server.command(&Disconnect { id: child }).unwrap();
    to.expect(DISCONNECTED);
    assert_eq!(to.destroy(caller), Ok(4));
}

#[test]
fn closing_a_channel_destroys_its_ids_and_disconnects_their_peers() {
    let (server, client) = (open_channel(), open_channel());
    let (_, port) = server.listener(410, TCP);
    let caller = client.caller(420, TCP, port);
    connect(&client, caller, param(477, b"")).unwrap();
    let child = server.expect(CONNECT_REQUEST).id;
    accept(&server, 430, child, param(478, b"")).unwrap();
    client.expect(CONNECT_RESPONSE);
    accept(&client, 0, caller, ConnParam::zeroed()).unwrap();
    server.expect(ESTABLISHED);
    drop(client);
    server.expect(DISCONNECTED);
    let other = open_channel();
    assert_eq!(other.destroy(caller), Err(Errno::NOENT));
}

#[test]
fn a_datagram_service_returns_its_queue_pair_and_key() {
    let (server, client) = (open_channel(), open_channel());
    let (_, port) = server.listener(510, UDP);
    let caller = client.caller(520, UDP, port);
    connect(&client, caller, param(0, b"ask")).unwrap();
    let request = server.expect(CONNECT_REQUEST);
    let asked = UdParam::from_bytes(&request.param);
    assert!(asked.private_data.starts_with(b"ask\0"));
    assert_eq!(qp_attr(&server, request.id, 1).unwrap().qkey, 0x0123_4567);
    accept(&server, 530, request.id, param(599, b"here")).unwrap();
    let found = client.expect(ESTABLISHED);
    let found = UdParam::from_bytes(&found.param);
    assert_eq!((found.qp_num, found.qkey), (599, 0x0123_4567));
    assert!(found.private_data.starts_with(b"here\0"));
    assert_eq!(found.ah_attr.dgid[10..], [255, 255, 127, 0, 0, 1]);
}

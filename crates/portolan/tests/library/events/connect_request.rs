//! RDMA_CM_EVENT_CONNECT_REQUEST: generated on the passive side to notify the user of a new connection
//! request.

use std::sync::Arc;

use portolan::cm::EventChannel;
use portolan::provider::cm::{ConnParam, Ece, EventType, UserId};
use portolan::provider::traits::{CmChannel, Provider};
use portolan::wire::addr::{QKey, Qpn};

use crate::harness::*;
use crate::low::*;

/// The C library's ids and those of its rsockets are numbered apart.
#[test]
fn listeners_whose_owners_gave_them_the_same_number_get_their_own_requests() {
    let port = free_port();
    let (here, there) = (start(port), start(port));
    let listeners = [(); 2].map(|()| {
        let channel = here.open_channel().unwrap();
        let id = channel.create_id(UserId(1), TCP).unwrap();
        channel.bind(id, "127.0.0.1:0".parse().unwrap()).unwrap();
        channel.listen(id, 5).unwrap();
        let address = channel.addresses(id).unwrap().local.unwrap();
        (channel, id, address.inet().unwrap())
    });
    let request = |channel: &Arc<dyn CmChannel>| {
        let event = channel.wait_event(Some(PATIENCE)).unwrap();
        assert_eq!(event.event, EventType::ConnectRequest);
        event.id
    };
    let connect = |address| {
        let open = EventChannel::open_on(there.clone()).unwrap();
        let (channel, id) = routed_on(open, TCP, address);
        id.connect(&param(b"")).unwrap();
        (channel, id)
    };
    let [(first, id, address), (second, other, other_address)] = listeners;
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(connect(address));
        request(&first);
    }
    clients.push(connect(other_address));
    request(&second);
    assert_eq!(first.destroy_id(id).unwrap(), 2, "requests reported");
    clients.push(connect(other_address));
    request(&second);
    assert_eq!(second.destroy_id(other).unwrap(), 2, "requests reported");
}

#[test]
fn connect_request_has_a_new_id_its_listener_and_the_peers_swapped_parameters() {
    // Two members of a port group, like two processes.
    let port = free_port();
    let (here, there) = (start(port), start(port));
    let open = |provider| EventChannel::open_on(provider).unwrap();
    let passive = Passive::listen_on(open(here), TCP);
    let (_channel, id) = routed_on(open(there), TCP, passive.address);
    let ece = Ece {
        vendor_id: 0x15b3,
        options: 0x1234_5678,
    };
    id.set_local_ece(ece).unwrap();
    let asked = ConnParam {
        responder_resources: 3,
        initiator_depth: 5,
        flow_control: true,
        retry_count: 6,
        rnr_retry_count: 4,
        srq: true,
        ..param(&pattern(56, 1))
    };
    id.connect(&asked).unwrap();

    let event = next(&passive.channel, EventType::ConnectRequest);
    assert_eq!(event.status(), 0);
    assert_eq!(
        event.listener().unwrap().number(),
        passive.listener.number()
    );
    assert_ne!(event.id().number(), passive.listener.number());
    assert_eq!(event.ud(), None);
    let request = event.conn().unwrap().clone();
    // The number of responder resources requested of the recipient matches the sender's initiator
    // depth, and the other way round.
    let swapped = ConnParam {
        responder_resources: 5,
        initiator_depth: 3,
        ..asked
    };
    assert_eq!(request, swapped);
    assert_eq!((event.ece(), event.id().remote_ece()), (ece, ece));

    let (ours, theirs) = (event.id().addresses().unwrap(), id.addresses().unwrap());
    assert_eq!((ours.local, ours.remote), (theirs.remote, theirs.local));
    assert_eq!((ours.sgid, ours.dgid), (theirs.dgid, theirs.sgid));
}

#[test]
fn private_data_of_a_request_is_the_whole_field_padded_with_zeros() {
    for (service, length) in [(TCP, 56), (UDP, 180)] {
        let passive = Passive::listen_on(channel(), service);
        for sent in [0, 1, length] {
            let (_channel, id) = routed_on(channel(), service, passive.address);
            let data = pattern(sent, 9);
            id.connect(&param(&data)).unwrap();
            let event = next(&passive.channel, EventType::ConnectRequest);
            assert_eq!(event.private_data().len(), length);
            let (theirs, padding) = event.private_data().split_at(sent);
            assert_eq!(theirs, data);
            assert!(padding.iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn a_datagram_request_has_private_data_and_no_queue_pair_yet() {
    let passive = Passive::listen_on(channel(), UDP);
    let (_channel, id) = routed_on(channel(), UDP, passive.address);
    id.connect(&param(b"who serves?")).unwrap();
    let event = next(&passive.channel, EventType::ConnectRequest);
    assert_eq!((event.status(), event.conn()), (0, None));
    assert_eq!(
        event.listener().unwrap().number(),
        passive.listener.number()
    );
    assert_eq!(event.id().service(), UDP);
    let ud = event.ud().unwrap();
    assert_eq!((ud.qp_num, ud.qkey), (Qpn::new(0), QKey(0)));
    assert!(ud.private_data.starts_with(b"who serves?\0"));
}

//! The contents of an event of any type: it owns a copy of the private data until it is acknowledged.

use portolan::provider::cm::EventType;
use portolan::provider::cm::{ConnParam, Service};
use portolan::wire::addr::{PortSpace, QKey, Qpn};

use crate::harness::*;
use crate::low::*;

#[test]
fn an_event_keeps_its_private_data_until_it_is_acknowledged_even_if_its_id_is_destroyed() {
    let passive = Passive::listen();
    let (channel, id) = routed(passive.address);
    id.connect(&param(&pattern(56, 5))).unwrap();
    let request = next(&passive.channel, EventType::ConnectRequest);
    let copy = |event: &portolan::cm::Event| event.private_data().to_vec();
    let held = copy(&request);
    request.id().reject(b"").unwrap();
    drop(next(&channel, EventType::Rejected));
    // Other events follow; the ids and the channels are dropped.
    drop((id, channel, passive));
    assert_eq!(held, pattern(56, 5));
    assert_eq!(copy(&request), held);
    // Moved to another thread and acknowledged there.
    std::thread::spawn(move || drop(request)).join().unwrap();
}

#[test]
fn the_port_space_determines_which_parameters_an_event_has() {
    for (port_space, qp_type) in [
        (PortSpace::Tcp, TCP.qp_type),
        (PortSpace::Udp, UDP.qp_type),
        (PortSpace::Ipoib, UDP.qp_type),
    ] {
        let service = Service {
            port_space,
            qp_type,
        };
        let passive = Passive::listen_on(channel(), service);
        let (channel, id) = routed_on(channel(), service, passive.address);
        id.connect(&param(b"who?")).unwrap();
        let request = next(&passive.channel, EventType::ConnectRequest);
        let connects = port_space == PortSpace::Tcp;
        assert_eq!(
            (request.conn().is_some(), request.ud().is_some()),
            (connects, !connects)
        );
        assert!(request.private_data().starts_with(b"who?\0"));
        assert_eq!(request.id().service(), service);

        let answer = ConnParam {
            qp_num: Qpn::new(0x777),
            ..param(b"me")
        };
        request.id().accept(&answer).unwrap();
        let event = channel.next_event_within(PATIENCE).unwrap();
        assert!(event.private_data().starts_with(b"me\0"));
        match event.ud() {
            None => assert_eq!(event.conn().unwrap().qp_num, answer.qp_num),
            Some(ud) => {
                assert_eq!(event.event_type(), EventType::Established);
                assert_eq!((ud.qp_num, ud.qkey), (answer.qp_num, QKey::RDMA_CM));
            }
        }
        assert_eq!(event.conn().is_some(), connects);
    }
}

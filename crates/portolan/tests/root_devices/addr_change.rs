//! RDMA_CM_EVENT_ADDR_CHANGE: the network device associated with this id through address resolution
//! changed its hardware address. The event can serve as a hint.

use std::thread;

use portolan::cm::EventChannel;
use portolan::provider::cm::EventType;

use crate::harness::*;
use crate::low::{TCP, routed_on};
use crate::support::ip_batch;
use crate::{addr, assert_silent, bound, hear, on_interfaces};

const INTERFACES: &str = "link add tmac type veth peer name pmac\n\
    link set tmac address 02:00:00:00:01:01\n\
    addr add 10.9.1.1/24 dev tmac\n\
    link set tmac up\n\
    link set pmac up\n\
    link add tsame type veth peer name psame\n\
    addr add 10.9.2.1/24 dev tsame\n\
    link set tsame up\n\
    link set psame up\n";

#[test]
fn addr_change_comes_to_each_id_of_the_interface_and_changes_nothing_else() {
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let (listen_channel, listener) = bound(&provider, "10.9.1.1:7471");
        listener.listen(0).unwrap();
        let (wildcard_channel, wildcard) = bound(&provider, "0.0.0.0:7472");
        wildcard.listen(0).unwrap();
        let (elsewhere_channel, _elsewhere) = bound(&provider, "10.9.2.1:0");
        let channel = EventChannel::open_on(provider.clone()).unwrap();
        let (routed_channel, routed) = routed_on(channel, TCP, addr("10.9.1.1:7471"));

        ip_batch("link set tmac address 02:00:00:00:01:02");
        for (channel, id) in [(&listen_channel, &listener), (&routed_channel, &routed)] {
            hear(channel, id, EventType::AddrChange, 0);
            assert_silent(channel);
            assert!(id.device().is_ok());
        }
        assert_silent(&wildcard_channel);
        assert_silent(&elsewhere_channel);
        // It is still a listener.
        routed.connect(&crate::low::param(b"")).unwrap();
        let request = listen_channel.next_event_within(PATIENCE).unwrap();
        assert_eq!(request.event_type(), EventType::ConnectRequest);
    });
}

#[test]
fn a_connection_continues_after_a_change_of_hardware_address() {
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let listener = listener_on(provider.clone(), "0.0.0.0:7473");
        let connector = connector_on(provider.clone());
        let to = addr("10.9.1.1:7473");
        let (one, other) = pair_at(connector, &listener, to, &options());
        for round in 0..3 {
            ip_batch(&format!("link set tmac address 02:00:00:00:01:1{round}"));
            let sent = one.send(one.buffer_from(&[round]).unwrap()).unwrap();
            assert_eq!(other.receive_within(PATIENCE).unwrap()[..], [round]);
            sent.wait().unwrap();
        }
    });
}

#[test]
fn a_connect_continues_after_a_change_of_hardware_address() {
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let listener = listener_on(provider.clone(), "0.0.0.0:7474");
        let (witness_channel, witness) = bound(&provider, "10.9.1.1:0");
        let connector = connector_on(provider.clone());
        let connecting = thread::spawn(move || connector.connect_to(addr("10.9.1.1:7474")));
        let incoming = listener.accept_within(PATIENCE).unwrap();
        ip_batch("link set tmac address 02:00:00:00:01:20");
        hear(&witness_channel, &witness, EventType::AddrChange, 0);
        let passive = incoming.accept_with(&options()).unwrap();
        let active = connecting.join().unwrap().unwrap();
        active.send(vec![7]).unwrap().wait().unwrap();
        assert_eq!(passive.receive_within(PATIENCE).unwrap()[..], [7]);
    });
}

#[test]
fn untaken_changes_wait_as_one_event() {
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let (channel, id) = bound(&provider, "10.9.1.1:0");
        let (witness_channel, witness) = bound(&provider, "10.9.1.1:0");
        for round in 2..6 {
            ip_batch(&format!("link set tmac address 02:00:00:00:01:0{round}"));
            // Waits until each change is reported before making the next.
            hear(&witness_channel, &witness, EventType::AddrChange, 0);
        }
        hear(&channel, &id, EventType::AddrChange, 0);
        assert_silent(&channel);
        ip_batch("link set tmac address 02:00:00:00:01:09");
        hear(&channel, &id, EventType::AddrChange, 0);
    });
}

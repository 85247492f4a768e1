//! RDMA_CM_EVENT_UNREACHABLE, as Linux since 6.0 gives it to ids whose next hop changes its hardware address:
//! with status -ETIMEDOUT, because messages in flight to the old address would time out.

use portolan::cm::EventChannel;
use portolan::provider::cm::EventType;
use portolan::provider::error::errno::ETIMEDOUT;

use crate::harness::*;
use crate::low::{TCP, routed_on};
use crate::support::{Namespace, ip_batch};
use crate::{addr, assert_silent, bound, hear, on_interfaces};

#[test]
fn a_neighbours_changed_address_is_reported_once_to_its_connections() {
    const INTERFACES: &str = "link add tnear type veth peer name pnear\n\
        addr add 10.9.1.1/24 dev tnear\n\
        link set tnear up\n\
        link set pnear up\n\
        neigh replace 10.9.1.2 lladdr 02:00:00:00:02:02 dev tnear nud permanent\n\
        neigh replace 10.9.1.3 lladdr 02:00:00:00:02:03 dev tnear nud permanent\n";
    on_interfaces(INTERFACES, || {
        let provider = own_provider();
        let open = || EventChannel::open_on(provider.clone()).unwrap();
        let (one_channel, one) = routed_on(open(), TCP, addr("10.9.1.2:7471"));
        let (two_channel, two) = routed_on(open(), TCP, addr("10.9.1.2:7472"));
        let (other_channel, _other) = routed_on(open(), TCP, addr("10.9.1.3:7471"));
        let (bound_channel, _bound) = bound(&provider, "10.9.1.1:0");
        for last in [7, 2] {
            ip_batch(&format!(
                "neigh replace 10.9.1.2 lladdr 02:00:00:00:02:0{last} dev tnear nud permanent"
            ));
            hear(&one_channel, &one, EventType::Unreachable, -ETIMEDOUT);
            hear(&two_channel, &two, EventType::Unreachable, -ETIMEDOUT);
            assert_silent(&one_channel);
        }
        assert_silent(&other_channel);
        assert_silent(&bound_channel);
    });
}

#[test]
fn a_peers_changed_hardware_address_is_reported_to_its_connections() {
    on_interfaces("link add tlink type veth peer name tpeer\n", || {
        let peer = Namespace::new();
        ip_batch(&format!("link set tpeer netns {}", peer.thread_id()));
        ip_batch("addr add 10.9.4.1/24 dev tlink\nlink set tlink up");
        // Allows an announcement by the peer right after another.
        std::fs::write("/proc/sys/net/ipv4/neigh/tlink/locktime", "0").unwrap();
        peer.ip("addr add 10.9.4.2/24 dev tpeer\nlink set tpeer up");
        peer.sysctl("net/ipv4/conf/tpeer/arp_notify", "1");
        let port = free_port();
        let provider = start(port);
        let there = peer.run(move || start(port));
        let listener = peer.run(move || listener_on(there, "0.0.0.0:7475"));
        let connector = connector_on(provider.clone());
        let (one, other) = pair_at(connector, &listener, addr("10.9.4.2:7475"), &options());
        let open = || EventChannel::open_on(provider.clone()).unwrap();
        let (channel, id) = routed_on(open(), TCP, addr("10.9.4.2:7475"));

        peer.ip("link set tpeer address 02:00:00:00:04:77");
        hear(&channel, &id, EventType::Unreachable, -ETIMEDOUT);
        // It is the same peer, so the connection continues.
        let sent = one.send(one.buffer_from(b"still here").unwrap()).unwrap();
        assert_eq!(other.receive_within(PATIENCE).unwrap()[..], *b"still here");
        sent.wait().unwrap();
    });
}

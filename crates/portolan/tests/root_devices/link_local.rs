//! A link-local address on two interfaces: its zone selects one.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use portolan::Cause;
use portolan::cm::{CmId, EventChannel};
use portolan::provider::cm::{EventType, JoinKind};
use portolan::software::SoftwareProvider;

use crate::harness::{eventually, own_provider};
use crate::low::{Passive, TCP, UDP, Verbs, next, param, routed_on};
use crate::on_interfaces;
use crate::support::{interface_index, ip_batch};

const INTERFACES: &str = "link add tlla type veth peer name pa\n\
    link add tllb type veth peer name pb\n\
    link set pa up\n\
    link set pb up\n\
    link set tlla up\n\
    link set tllb up\n";
const IP: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x77);

/// Runs a test with a provider while two interfaces have the same link-local address.
fn on_both_interfaces(test: fn(Arc<SoftwareProvider>)) {
    on_interfaces(INTERFACES, move || {
        for name in ["tlla", "tllb"] {
            let off = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
            std::fs::write(off, "0").unwrap();
            ip_batch(&format!("addr add {IP}/64 dev {name} nodad"));
        }
        // The kernel adds them once it has seen the carrier. Before, it looks for the address on the link.
        eventually("the routes to the addresses", || {
            let routes = std::fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap();
            let to_this = format!("{:032x} 80 ", u128::from(IP));
            let leads = |name| {
                let mut routes = routes.lines();
                routes.any(|route| route.starts_with(&to_this) && route.ends_with(name))
            };
            leads("tlla") && leads("tllb")
        });
        test(own_provider());
    });
}

fn at(name: &str, port: u16) -> SocketAddr {
    SocketAddrV6::new(IP, port, 0, interface_index(name)).into()
}

fn open(provider: &Arc<SoftwareProvider>) -> EventChannel {
    EventChannel::open_on(provider.clone()).unwrap()
}

#[test]
fn an_id_is_bound_to_the_device_of_the_zone_of_its_link_local_address() {
    on_both_interfaces(|provider| {
        let channel = open(&provider);
        for name in ["tlla", "tllb", "tlla"] {
            let id = CmId::new(&channel).unwrap();
            id.bind(at(name, 0)).unwrap();
            assert_eq!(id.device().unwrap().name(), format!("sw_{name}"));
        }
        let without_zone: SocketAddr = SocketAddrV6::new(IP, 0, 0, 0).into();
        let refused = CmId::new(&channel).unwrap().bind(without_zone);
        let error = refused.unwrap_err();
        let names_the_zone = error.to_string().contains("with its zone");
        assert!(
            matches!(error.cause, Cause::InvalidArgument { .. }) && names_the_zone,
            "{error}"
        );
    });
}

#[test]
fn both_addresses_have_listeners_at_one_port_and_each_gets_the_requests_for_its_own() {
    on_both_interfaces(|provider| {
        let listeners = ["tlla", "tllb"].map(|name| {
            let channel = open(&provider);
            let listener = CmId::with_service(&channel, TCP).unwrap();
            let address = at(name, 7471);
            listener.bind(address).unwrap();
            listener.listen(0).unwrap();
            Passive {
                channel,
                listener,
                address,
            }
        });
        for passive in listeners.iter().rev().chain(&listeners) {
            let (channel, id) = routed_on(open(&provider), TCP, passive.address);
            let _queue_pair = Verbs::of(&id.device().unwrap()).give(&id);
            id.connect(&param(b"")).unwrap();
            let child = passive.request();
            assert_eq!(
                child.device().unwrap().name(),
                passive.listener.device().unwrap().name()
            );
            child.reject(b"").unwrap();
            next(&channel, EventType::Rejected);
        }
    });
}

#[test]
fn a_datagram_id_joins_a_group_on_the_interface_that_it_is_bound_to() {
    on_both_interfaces(|provider| {
        let channel = open(&provider);
        let group = "ff02::7471".parse().unwrap();
        for name in ["tlla", "tllb"] {
            let id = CmId::with_service(&channel, UDP).unwrap();
            id.bind(at(name, 0)).unwrap();
            id.join_multicast(group, JoinKind::FullMember, 0).unwrap();
            drop(next(&channel, EventType::MulticastJoin));
            let joined = std::fs::read_to_string("/proc/thread-self/net/igmp6").unwrap();
            let mut of_group = joined.lines().filter(|line| line.contains("7471 "));
            assert!(of_group.any(|line| line.contains(name)), "{joined}");
        }
    });
}

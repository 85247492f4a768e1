//! Multicast between hosts, which are network namespaces. Only root can create them.
#![allow(unsafe_code, reason = "registering memory is unsafe by contract")]
#![allow(unreachable_pub, reason = "a test")]

#[path = "../io/harness.rs"]
#[allow(dead_code, reason = "shared with the tests that need no root")]
mod harness;
#[path = "../../../addrinfo/tests/support/mod.rs"]
mod support;
#[path = "../io/ud_end.rs"]
#[allow(dead_code, reason = "shared with the tests that need no root")]
mod ud_end;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_provider::address::ip_to_gid;
use portolan_roce::io::{Stack, StackConfig};
use portolan_wire::Qpn;

use harness::{config, expect, stack};
use support::Namespace;
use ud_end::UdEnd;

/// Longer than a datagram takes to arrive.
const MEANWHILE: Duration = Duration::from_millis(50);

/// Two hosts on one link.
fn hosts() -> [Namespace; 2] {
    let hosts = [Namespace::new(), Namespace::new()];
    hosts[0].join(&hosts[1]);
    hosts[0].ip("addr add 10.66.0.1/24 dev eth0
                 addr add fd66::1/64 dev eth0 nodad");
    hosts[1].ip("addr add 10.66.0.2/24 dev eth0
                 addr add fd66::2/64 dev eth0 nodad");
    hosts
}

/// A stack on a host with two queue pairs, optionally attached to `group`.
fn member(
    host: &Namespace,
    config: &StackConfig,
    ip: &'static str,
    group: Option<IpAddr>,
) -> (Arc<Stack>, Arc<[UdEnd; 2]>) {
    let config = config.clone();
    host.run(move || {
        let stack = stack(&config);
        let ends = [(); 2].map(|()| UdEnd::new(&stack, ip.parse().unwrap()));
        for end in &ends {
            if let Some(group) = group {
                end.qp.attach_mcast(&ip_to_gid(group), 0).unwrap();
            }
            for wr_id in 0..10 {
                end.receive(wr_id, 4096 + wr_id as usize * 100, 100);
            }
        }
        (stack, Arc::new(ends))
    })
}

fn everybody_hears(hosts: &[Namespace; 2], ips: [&'static str; 2], group: &str) {
    let config = config();
    let group: IpAddr = group.parse().unwrap();
    let (_a, own) = member(&hosts[0], &config, ips[0], Some(group));
    let (_b, neighbours) = member(&hosts[0], &config, ips[0], Some(group));
    let (_c, others) = member(&hosts[1], &config, ips[1], Some(group));
    let (silent, strangers) = member(&hosts[1], &config, ips[1], None);
    let ah = own[0].ah(group);
    // The hosts' joins may still be in flight; there is no forwarding between them here.
    for round in 0..5u8 {
        own[0].memory.write(0, &[round + 1; 50]);
        own[0].send(100, 0, 50, &*ah, Qpn::MULTICAST);
        expect(own[0].poll(), 100);
        for end in [
            &own[1],
            &neighbours[0],
            &neighbours[1],
            &others[0],
            &others[1],
        ] {
            let wc = expect(end.poll(), round.into());
            assert_eq!((wc.src_qp, wc.byte_len), (own[0].qp.qpn(), 90));
            let at = 4096 + usize::from(round) * 100;
            assert_eq!(end.memory.read(at + 40, 50), [round + 1; 50]);
            if let IpAddr::V6(group) = group {
                let area = end.memory.read(at, 40);
                let traffic_class = (area[0] & 0x0f) << 4 | area[1] >> 4;
                assert_eq!((area[0] >> 4, traffic_class, area[7]), (6, 0x48, 9));
                assert_eq!(area[4..6], (8 + 12 + 8 + 4 + 50 + 2 + 4u16).to_be_bytes());
                assert_eq!(area[8..24], ip_to_gid(own[0].ip).0);
                assert_eq!(area[24..], group.octets());
            }
        }
    }
    // From the other host, past a queue pair that has left.
    own[1].qp.detach_mcast(&ip_to_gid(group), 0).unwrap();
    others[0].send(7, 0, 8, &*others[0].ah(group), Qpn::MULTICAST);
    for end in [&own[0], &neighbours[0], &neighbours[1], &others[1]] {
        assert_eq!(end.poll().src_qp, others[0].qp.qpn());
    }
    expect(others[0].poll(), 7);
    std::thread::sleep(MEANWHILE);
    for end in [&own[1], &others[0], &strangers[0], &strangers[1]] {
        assert_eq!(end.try_poll(), None);
    }
    assert_eq!(silent.counters().received_packets, 0);
}

#[test]
fn hosts_on_one_link_receive_an_ipv4_groups_datagrams() {
    everybody_hears(&hosts(), ["10.66.0.1", "10.66.0.2"], "239.66.1.2");
}

#[test]
fn hosts_on_one_link_receive_the_datagrams_of_global_and_link_local_ipv6_groups() {
    let hosts = hosts();
    everybody_hears(&hosts, ["fd66::1", "fd66::2"], "ff15::66");
    everybody_hears(&hosts, ["fd66::1", "fd66::2"], "ff02::66");
}

//! RDMA_CM_EVENT_ADDR_ERROR: address resolution (rdma_resolve_addr) failed, for a host on the link that
//! does not answer.

use std::time::Instant;

use portolan::cm::{CmId, EventChannel};
use portolan::datagram::{Options, Socket};
use portolan::provider::cm::EventType;
use portolan::provider::error::errno::EHOSTUNREACH;
use portolan::{Cause, Step};

use crate::harness::*;
use crate::support::{Namespace, ip_batch};
use crate::{addr, assert_bare, assert_silent, on_interfaces};

#[test]
fn addr_error_reports_a_silent_host_on_the_link_in_both_families() {
    on_interfaces("link add tlink type veth peer name tpeer\n", || {
        let peer = Namespace::new();
        ip_batch(&format!("link set tpeer netns {}", peer.thread_id()));
        std::fs::write("/proc/sys/net/ipv6/conf/tlink/disable_ipv6", "0").unwrap();
        ip_batch(
            "addr add 10.9.6.1/24 dev tlink\n\
             addr add fd09:6::1/64 dev tlink nodad\n\
             link set tlink up",
        );
        // The other end of the link is up, but no host has the requested address.
        peer.ip("addr add 10.9.6.2/24 dev tpeer\nlink set tpeer up");
        let provider = own_provider();
        for silent in ["10.9.6.77:7471", "[fd09:6::77]:7471"] {
            let channel = EventChannel::open_on(provider.clone()).unwrap();
            let id = CmId::new(&channel).unwrap();
            let asked = Instant::now();
            id.resolve_addr(None, addr(silent), PATIENCE).unwrap();
            let event = channel.next_event_within(PATIENCE).unwrap();
            assert_bare(&event, &id, EventType::AddrError, -EHOSTUNREACH);
            // The kernel gives up after three seconds. Our own deadline would have given ETIMEDOUT.
            assert!(asked.elapsed() < PATIENCE, "{:?}", asked.elapsed());
            let error = event.failure().unwrap();
            assert_eq!(
                (error.step, &error.cause),
                (Step::ResolveAddress, &Cause::HostUnreachable)
            );
            assert_silent(&channel);
            drop(event);
            // The id can try another address: its own always answers.
            let own = if silent.starts_with('[') {
                "[fd09:6::1]:7471"
            } else {
                "10.9.6.1:7471"
            };
            id.resolve_addr(None, addr(own), PATIENCE).unwrap();
            let event = channel.next_event_within(PATIENCE).unwrap();
            assert_bare(&event, &id, EventType::AddrResolved, 0);
        }
        let error = connector_on(provider)
            .connect_to(addr("10.9.6.78:7471"))
            .unwrap_err();
        assert_eq!(error.cause, Cause::HostUnreachable, "{error}");
        assert!(error.to_string().contains("10.9.6.78:7471"), "{error}");
        // Linux gives up after more than one round of resolving a datagram service's address.
        let silent = [addr("10.9.6.79:7471")];
        let options = Options::default().timeout(PATIENCE);
        let error = Socket::connect_to(&silent, &options).unwrap_err();
        assert_eq!(error.cause, Cause::HostUnreachable, "{error}");
        // Deletes the link now; otherwise the kernel deletes it some time after the other end's namespace is
        // gone.
        ip_batch("link del tlink");
    });
}

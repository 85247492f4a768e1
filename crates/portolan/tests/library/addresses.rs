//! Which addresses listeners serve and connections have.

use std::net::SocketAddr;
use std::thread;
use std::time::Instant;

use portolan::{Cause, ListenOptions, Listener, Step};

use crate::harness::*;

#[test]
fn ipv4_and_ipv6_connect_to_specific_and_wildcard_listeners() {
    let cases = [
        ("127.0.0.1:0", "127.0.0.1"),
        ("0.0.0.0:0", "127.0.0.1"),
        ("[::1]:0", "::1"),
        ("[::]:0", "::1"),
    ];
    for (bound, reached) in cases {
        let listener = listener(bound);
        let port = listener.local_addr().unwrap().port();
        assert_ne!(port, 0, "{bound} was given a port");
        let address = SocketAddr::new(reached.parse().unwrap(), port);
        let (active, passive) = pair_at(connector(), &listener, address, &options());
        assert_eq!(active.peer_addr(), Some(address), "{bound}");
        assert_eq!(passive.local_addr(), Some(address), "{bound}");
        assert_eq!(active.local_addr(), passive.peer_addr(), "{bound}");
        active.send(b"over".to_vec()).unwrap().wait().unwrap();
        assert_eq!(&passive.receive_within(PATIENCE).unwrap()[..], b"over");
    }
}

#[test]
fn a_listener_for_ipv6_alone_leaves_its_port_to_one_for_ipv4() {
    let for_v4 = listener("0.0.0.0:0");
    let port = for_v4.local_addr().unwrap().port();
    let everywhere = SocketAddr::new("::".parse().unwrap(), port);
    let for_both = ListenOptions::default().provider(provider());
    let error = Listener::bind_to_with(everywhere, &for_both).unwrap_err();
    assert!(matches!(error.cause, Cause::AddressInUse { .. }), "{error}");
    let alone = for_both.only_v6(true);
    let for_v6 = Listener::bind_to_with(everywhere, &alone).unwrap();
    for (listener, reached) in [(&for_v4, "127.0.0.1"), (&for_v6, "::1")] {
        let address = SocketAddr::new(reached.parse().unwrap(), port);
        let (active, passive) = pair_at(connector(), listener, address, &options());
        active.send(b"over".to_vec()).unwrap().wait().unwrap();
        assert_eq!(&passive.receive_within(PATIENCE).unwrap()[..], b"over");
    }
}

#[test]
fn an_address_of_this_host_that_no_interface_has_is_refused_at_once() {
    let listener = listener("0.0.0.0:0");
    let port = listener.local_addr().unwrap().port();
    let begun = Instant::now();
    let nobodys = SocketAddr::new("127.0.0.2".parse().unwrap(), port);
    let error = connector().connect_to(nobodys).unwrap_err();
    assert!(begun.elapsed() < PATIENCE / 2, "{error}");
    assert_eq!(error.step, Step::ResolveAddress, "{error}");
}

#[test]
fn a_pinned_source_is_the_address_that_the_peer_sees() {
    let listener = listener("127.0.0.1:0");
    let address = listener.local_addr().unwrap();
    let free = crate::harness::listener("127.0.0.1:0");
    let source = free.local_addr().unwrap();
    drop(free);
    let (active, passive) = pair_at(connector().source(source), &listener, address, &options());
    assert_eq!(active.local_addr(), Some(source));
    assert_eq!(passive.peer_addr(), Some(source));
}

#[test]
fn a_name_is_resolved_and_its_addresses_are_tried_in_order() {
    let listener = listener("127.0.0.1:0");
    let port = listener.local_addr().unwrap().port();
    let connector = connector();
    let active = thread::spawn(move || connector.connect(&format!("localhost:{port}")));
    let passive = listener.accept_within(PATIENCE).unwrap().accept().unwrap();
    let active = active.join().unwrap().unwrap();
    assert_eq!(active.peer_addr(), passive.local_addr());
}

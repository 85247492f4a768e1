//! Names, addresses and ports.

use std::net::SocketAddr;

use portolan::{Cause, Listener, Step, resolve};

use super::{deserted, says};
use crate::harness::*;
use crate::process::Peer;

#[test]
fn an_unknown_host_is_named() {
    let error = connector()
        .connect("no-such-host.invalid:7471")
        .unwrap_err();
    assert!(
        matches!(
            error.cause,
            Cause::NameNotKnown(_) | Cause::NameTemporaryFailure(_)
        ),
        "{error}"
    );
    says(
        &error,
        Step::ResolveName,
        &["resolve name", "no-such-host.invalid"],
    );
}

#[test]
fn an_unknown_service_is_named() {
    let error = resolve("localhost:no-such-service").unwrap_err();
    assert!(matches!(error.cause, Cause::NameNotKnown(_)), "{error}");
    says(&error, Step::ResolveName, &["no-such-service"]);
}

#[test]
fn text_that_is_not_an_endpoint_is_refused() {
    for text in ["127.0.0.1:65536", "127.0.0.1:-1", "[::1:7471", "", "[]:1"] {
        let error = connector().connect(text).unwrap_err();
        assert!(
            matches!(
                error.cause,
                Cause::InvalidArgument { .. } | Cause::NameNotKnown(_)
            ),
            "{text:?}: {error:?}"
        );
        assert_eq!(error.step, Step::ResolveName);
    }
    let error = connector().connect("127.0.0.1:65536").unwrap_err();
    says(&error, Step::ResolveName, &["65536"]);
}

#[test]
fn an_address_of_no_device_cannot_be_bound() {
    let error = Listener::bind_on(provider(), "192.0.2.1:0".parse().unwrap()).unwrap_err();
    assert_eq!(error.cause, Cause::AddressNotAvailable);
    let sentence = "bind: no network interface has this address [local 192.0.2.1:0]";
    assert_eq!(error.to_string(), sentence);

    let elsewhere = connector().source("192.0.2.1:0".parse().unwrap());
    let error = elsewhere.connect_to(deserted()).unwrap_err();
    assert!(
        matches!(
            error.cause,
            Cause::AddressNotAvailable | Cause::NetworkUnreachable | Cause::NoDevice { .. }
        ),
        "{error:?}"
    );
    says(&error, Step::ResolveAddress, &["192.0.2.1"]);
}

#[test]
fn destinations_that_are_not_hosts_are_refused() {
    for destination in [
        "0.0.0.0:7471",
        "224.0.0.1:7471",
        "[::]:7471",
        "[ff02::1]:7471",
    ] {
        let error = connector()
            .connect_to(destination.parse().unwrap())
            .unwrap_err();
        assert!(
            matches!(error.cause, Cause::InvalidArgument { .. }),
            "{error}"
        );
        says(
            &error,
            Step::ResolveAddress,
            &["expected the address of one host"],
        );
    }
}

#[test]
fn a_port_that_is_in_use_in_this_process_is_refused() {
    let first = listener("127.0.0.1:0");
    let address = first.local_addr().unwrap();
    let error = Listener::bind_on(provider(), address).unwrap_err();
    assert!(matches!(error.cause, Cause::AddressInUse { .. }), "{error}");
    says(
        &error,
        Step::Bind,
        &["in use by this process", &address.to_string()],
    );
    let wildcard = SocketAddr::new([0, 0, 0, 0].into(), address.port());
    let error = Listener::bind_on(provider(), wildcard).unwrap_err();
    assert!(matches!(error.cause, Cause::AddressInUse { .. }), "{error}");
}

#[test]
fn a_port_that_is_in_use_in_another_process_is_refused_until_that_process_ends() {
    let port = free_port();
    let ours = start(port);
    let mut peer = Peer::start(port);
    let address = peer.listen();
    let error = Listener::bind_on(ours.clone(), address).unwrap_err();
    assert!(matches!(error.cause, Cause::AddressInUse { .. }), "{error}");
    let holder = "in use by the process with block";
    says(&error, Step::Bind, &[holder, &address.to_string()]);
    peer.kill();
    eventually("the port's release", || {
        Listener::bind_on(ours.clone(), address).is_ok()
    });
}

#[test]
fn a_listener_on_one_address_does_not_listen_on_another() {
    let listener = listener("127.0.0.1:0");
    let mut address = listener.local_addr().unwrap();
    address.set_ip([127, 0, 0, 2].into());
    let error = connector().connect_to(address).unwrap_err();
    // Loopback receives packets for its whole network, but its device has only the interface's addresses.
    assert_eq!(error.step, Step::ResolveAddress, "{error}");
    assert_eq!(error.errno(), libc::ENODEV, "{error}");
    let why = "127.0.0.2 is an address of this host that no device has; use one that `portolan devices` lists";
    says(&error, Step::ResolveAddress, &[why]);
}

#[test]
fn a_privileged_port_needs_its_capability() {
    use rustix::thread::{CapabilitySet, capabilities};
    let effective = capabilities(None).unwrap().effective;
    let bound = Listener::bind_on(provider(), "127.0.0.1:1023".parse().unwrap());
    if effective.contains(CapabilitySet::NET_BIND_SERVICE) {
        assert_eq!(bound.unwrap().local_addr().unwrap().port(), 1023);
    } else {
        let error = bound.unwrap_err();
        assert_eq!(error.cause, Cause::PrivilegedPort { port: 1023 });
        says(&error, Step::Bind, &["CAP_NET_BIND_SERVICE"]);
    }
}
